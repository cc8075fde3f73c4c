// Hashes of the journals of seeded runs, for comparison between compilers: the same seed has to give the same
// journal.
//
//   log_hashes [seeds]     default 300; one line a run: "swarm SEED HASH", "simulate PLACEMENT HASH"

#include <cstdio>
#include <cstdlib>

#include "scheduler/simulator/simulator.h"
#include "tests/scheduler/rehearsal.h"
#include "tests/scheduler/swarm.h"

namespace tidepool::scheduler {
namespace {

// With turns as well, so that every model of the simulator takes part with its floating-point numbers.
SimJob Job(PlacementKind placement, bool turns) {
  SimJob j = Rehearsal(placement, 6);
  if (turns)
    j.turns = {.mean_turns = 5,
               .sigma_turns = 0.6,
               .step_s_mean = 2,
               .step_s_sd = 1,
               .slow_chance = 0.02,
               .slow_s = 60};
  j.controller.batch.max_lag_versions = 1;
  j.controller.steps = 5;
  return j;
}

int Run(uint64_t seeds) {
  for (uint64_t seed = 0; seed < seeds; ++seed) {
    SimCluster cluster(Swarm(seed));
    std::printf("swarm %llu %016llx\n", static_cast<unsigned long long>(seed),
                static_cast<unsigned long long>(cluster.Run().journal_hash));
  }
  for (const PlacementKind placement : AllOf<PlacementKind>()) {
    for (const bool turns : {false, true}) {
      Simulator simulator(Job(placement, turns));
      const auto report = simulator.Run();
      if (!report.ok()) {
        std::fprintf(stderr, "%s: %s\n", Name(placement), report.status().ToString().c_str());
        return 1;
      }
      std::printf("simulate %s%s %016llx\n", Name(placement), turns ? "-turns" : "",
                  static_cast<unsigned long long>(report->log_hash));
    }
  }
  return 0;
}

}  // namespace
}  // namespace tidepool::scheduler

int main(int argc, char** argv) {
  return tidepool::scheduler::Run(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 300);
}
