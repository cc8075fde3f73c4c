// A million faults: runs of the modelled cluster, seed by seed, until enough faults were dealt out.
//
//   swarm [faults [first_seed [seconds [gangs|slots|shards]]]]     default 1000000 0 600; gangs: of two slots
//   each; slots: two of a worker; shards: of the optimizer's state (train.zero); one JSON object at the end;
//   exit 4 on a violation. A check that fails ends it, and the seed comes after the check's message.

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/scheduler/swarm.h"

namespace {

thread_local std::string seed_text;  // of the run that this thread is in
void SaySeed(int) { (void)!write(STDERR_FILENO, seed_text.data(), seed_text.size()); }

}  // namespace

int main(int argc, char** argv) {
  using namespace tidepool::scheduler;
  const long long wanted = argc > 1 ? std::atoll(argv[1]) : 1000000;
  std::atomic<unsigned long long> next{argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0};
  const double limit = argc > 3 ? std::atof(argv[3]) : 600;
  const std::string shape = argc > 4 ? argv[4] : "";
  std::atomic<long long> faults{0}, events{0}, records{0}, violations{0}, seeds{0}, lives{0}, moves{0};
  std::atomic<unsigned long long> hash{0};
  std::mutex print;
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  std::signal(SIGABRT, SaySeed);
  const auto work = [&] {
    while (faults < wanted && seconds() < limit) {
      const unsigned long long seed = next++;
      seed_text = "seed " + std::to_string(seed) + "\n";
      const SimOptions options = shape == "gangs"    ? SwarmOfGangs(seed)
                                 : shape == "slots"  ? SwarmOfSlots(seed)
                                 : shape == "shards" ? SwarmOfShards(seed)
                                                     : Swarm(seed);
      SimCluster cluster(options);
      SimResult r = cluster.Run();
      if (WasStopped(r)) r = cluster.Run();
      const CheckResult check = Check(cluster.journal());
      const std::string end = Unexplained(options, r);
      faults += r.faults, events += r.events, lives += r.lives, ++seeds;
      records += static_cast<long long>(cluster.journal().size());
      hash ^= r.journal_hash * (seed * 2 + 1);
      for (const auto& e : cluster.journal())
        moves += std::holds_alternative<tidepool::record::TransitionRolledBack>(e.record) ? 1 : 0;
      if (check.ok && end.empty()) continue;
      ++violations;
      const std::lock_guard lock(print);
      std::printf("seed %llu: %s %s%s\n", seed, check.ok ? "L2" : check.predicate.c_str(), check.why.c_str(),
                  end.c_str());
      std::fflush(stdout);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i) threads.emplace_back(work);
  for (std::thread& t : threads) t.join();
  std::printf(
      "{\"swarm\":{\"faults\":%lld,\"seeds\":%lld,\"violations\":%lld,\"controller_lives\":%lld,"
      "\"rollbacks\":%lld,\"events\":%lld,\"records\":%lld,"
      "\"seconds\":%.1f,\"threads\":%zu,\"hash\":\"%016llx\"}}\n",
      faults.load(), seeds.load(), violations.load(), lives.load(), moves.load(), events.load(),
      records.load(), seconds(), threads.size(), static_cast<unsigned long long>(hash.load()));
  return violations > 0 ? 4 : 0;
}
