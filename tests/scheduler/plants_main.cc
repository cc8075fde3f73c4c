// Does the checker find known bugs? Each (plants/*.patch) is switched on in turn and seeds are run
// until something fires.
//
//   plants [bug ...]     default: all 17; one JSON object a bug; exit 4 if one is not found, or found by
//   another predicate

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/scheduler/plants/planted.h"
#include "tests/scheduler/swarm.h"

namespace tidepool::scheduler {
namespace {

struct Bug {
  const char* what;
  std::set<std::string> predicates;  // by which it may be seen
  // Makes a swarm run more likely to meet it; what is left out is drawn as always.
  std::function<void(SimOptions&)> lean;
  std::function<bool(const Event&)> lose;  // events that never arrive
};

// An rl job whose samples are graded by reward workers.
void OneTurn(SimOptions& o) {
  o.controller.job = JobKind::kRl;
  o.controller.batch.group_size = SmallJob().batch.group_size;
  o.controller.environment = {};
}

const std::map<int, Bug>& Bugs() {
  static const std::map<int, Bug> bugs = {
      {1,
       {"generation error becomes empty text, reward 0",
        {"Q6"},
        [](SimOptions& o) { o.faults.chunk_error = 0.2; },
        nullptr}},
      {2,
       {"dead endpoint parks requests, no time-out",
        {"L1", "L2"},
        [](SimOptions& o) { o.faults.kill_mean_s = 5; },
        nullptr}},
      {3,
       {"watchdog armed only while work is in flight",
        {"L2"},
        nullptr,
        [](const Event& e) { return !std::holds_alternative<event::PayloadStored>(e); }}},
      {4, {"restarted engine serves before weights are loaded", {"W3"}, nullptr, nullptr}},
      {5,
       {"restart resets the version counter",
        {"Q4", "W1"},
        [](SimOptions& o) { o.faults.controller_crash_mean_s = 5; },
        nullptr}},
      // Rows that are read ahead of what may be open show first as holes in the order of those that are.
      {6,
       {"restore inflates admission by the restored version",
        {"Q5", "Q9"},
        [](SimOptions& o) { OneTurn(o); },
        nullptr}},
      {7,
       {"data cursor ahead of consumption",
        {"Q9", "Q10"},
        [](SimOptions& o) {
          o.faults.controller_crash_mean_s = 3;
          o.faults.kill_mean_s = 3;
        },
        nullptr}},
      {8,
       {"one dropped group pins the cursor, rest trained twice",
        {"Q2", "Q9"},
        [](SimOptions& o) { o.faults.controller_crash_mean_s = 3; },
        nullptr}},
      {9,
       {"full queue drops what it has without a word",
        {"Q1"},
        [](SimOptions& o) {
          o.controller.batch.oversample = 1.5;
          o.controller.job = JobKind::kRl;
          o.controller.batch.group_size = SmallJob().batch.group_size;
        },
        nullptr}},
      // Such a set is open after its deadline, or is committed without the slot that timed out.
      {10,
       {"shrink time-out leaves the set half changed",
        {"G4", "G5"},
        [](SimOptions& o) { o.faults.slow_drain = 0.3; },
        nullptr}},
      {11,
       {"one recovery file overwritten in place; unreadable: far back",
        {"C5"},
        [](SimOptions& o) {
          o.faults.checkpoint_rots = 0.4;
          o.faults.kill_mean_s = 4;
          o.controller.checkpoint.every_steps = 1;
        },
        nullptr}},
      {12, {"marker rewritten in place, crash between", {"C8", "C5"}, nullptr, nullptr}},
      {13,
       {"health check waits 300 s after each resume, so never runs",
        {"L2", "L4"},
        [](SimOptions& o) {
          o.faults.hang_mean_s = 3;
          o.controller.fleet.stall_timeout_s = 120;
        },
        nullptr}},
      {14,
       {"failure streak never reset by success",
        {"L5"},
        [](SimOptions& o) {
          // One worker that dies seldom, in a run that does little else: six deaths are soon there.
          ControllerOptions& c = o.controller;
          c.job = JobKind::kSft;
          c.batch.group_size = 1;
          c.environment = {};
          c.fleet.placement = PlacementKind::kColocated;
          c.fleet.slots = 1;
          c.fleet.min_slots = 0;
          c.steps = 50000;
          o.controller.eval.rows = 0;
          o.faults = {};
          o.faults.kill_mean_s = 300;
          o.faults.heal_after_s = 1e9;
          o.limit_s = 12000;
        },
        nullptr}},
      {15,
       {"non-finite gradient skipped for ever, the rate advances",
        {"W5", "L2"},
        [](SimOptions& o) { o.faults.nonfinite = 0.3; },
        nullptr}},
      {16,
       {"reward time-out becomes 0, stuck process kept",
        {"Q6"},
        [](SimOptions& o) {
          OneTurn(o);
          o.faults.hang_mean_s = 4;
          o.controller.fleet.heartbeat_s = 60;  // so that the stuck grading is noticed first
        },
        nullptr}},
      {17,
       {"sleeping engine keeps its memory",
        {"G5"},
        [](SimOptions& o) { o.faults.keeps_memory = 0.3; },
        nullptr}},
  };
  return bugs;
}

bool Find(int id) {
  const Bug& bug = Bugs().at(id);
  PlantedBug() = id;
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  int64_t faults = 0;
  std::string other;
  for (uint64_t seed = 0; seconds() < 600; ++seed) {
    SimOptions options = Swarm(seed);
    options.check_online = true;
    if (bug.lean) bug.lean(options);
    SimCluster cluster(options);
    if (bug.lose) cluster.on_event = bug.lose;
    SimResult r = cluster.Run();
    if (r.violation.ok && r.ended && WasStopped(r)) r = cluster.Run();
    faults += r.faults;
    std::string predicate = r.violation.ok ? "" : r.violation.predicate;
    // With lost events the run has to end by itself, saying so.
    if (predicate.empty() && (bug.lose ? !r.ended : r.code != 0 && !Unexplained(options, r).empty()))
      predicate = "L2";
    if (predicate.empty()) continue;
    const bool right = bug.predicates.contains(predicate);
    std::printf(
        "{\"plant\":\"B%d\",\"found\":%s,\"predicate\":\"%s\",\"faults\":%lld,\"seeds\":%llu,\"seconds\":%."
        "2f,\"what\":\"%s\"}\n",
        id, right ? "true" : "false", predicate.c_str(), static_cast<long long>(faults),
        static_cast<unsigned long long>(seed + 1), seconds(), bug.what);
    if (!right) std::printf("B%d: %s\n", id, r.violation.why.c_str());
    std::fflush(stdout);
    return right;
  }
  std::printf("{\"plant\":\"B%d\",\"found\":false,\"faults\":%lld,\"seconds\":%.2f,\"what\":\"%s\"}\n", id,
              static_cast<long long>(faults), seconds(), bug.what);
  return false;
}

}  // namespace
}  // namespace tidepool::scheduler

int main(int argc, char** argv) {
  std::vector<int> ids;
  for (int i = 1; i < argc; ++i) ids.push_back(std::atoi(argv[i]));
  if (ids.empty()) {
    for (const auto& [id, bug] : tidepool::scheduler::Bugs()) ids.push_back(id);
  }
  int found = 0;
  for (const int id : ids) found += tidepool::scheduler::Find(id) ? 1 : 0;
  std::printf("found %d of %zu planted bugs\n", found, ids.size());
  return found == static_cast<int>(ids.size()) ? 0 : 4;
}
