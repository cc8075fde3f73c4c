// Collectives of ranks on one host, by the memory that they share against Gloo's sockets on loopback, in
// turns: ranks are threads. Prints one JSON object a case on standard output and a table on standard error.
//
//   group_bench [--ranks 2] [--rounds 15] [--mbytes 200]
//
// --mbytes: of the gradients that are summed, and of the weights that are told, in millions.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/base/check.h"
#include "core/comm/collective.h"
#include "core/comm/rendezvous_table.h"
#include "tests/bench/bench_model.h"

namespace tidepool::comm {
namespace {

struct Case {
  const char* name;
  int64_t times = 1;  // in a round
  std::function<Status(Collective&, std::vector<float>&)> run;
};

double Median(std::vector<double> v) {
  std::ranges::sort(v);
  return v[v.size() / 2];
}

int Main(int argc, char** argv) {
  int ranks = 2, rounds = 15;
  int64_t mbytes = 200;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i];
    if (key == "--ranks")
      ranks = std::atoi(argv[i + 1]);
    else if (key == "--rounds")
      rounds = std::atoi(argv[i + 1]);
    else if (key == "--mbytes")
      mbytes = std::atol(argv[i + 1]);
    else
      return std::fprintf(stderr, "%s: not an option\n", argv[i]), 2;
  }
  const int64_t n = mbytes * 1'000'000 / static_cast<int64_t>(sizeof(float));
  const std::vector<sharding::Interval> floats = sharding::OwnedByAll(n, ranks),
                                        bytes = sharding::OwnedByAll(n * 4, ranks);
  const Case cases[] = {
      {"all_reduce_8_bytes", 200,
       [](Collective& c, std::vector<float>& v) { return c.AllReduceSum(std::span(v).first(2), "bench"); }},
      {"all_reduce_64_kb", 200,
       [](Collective& c, std::vector<float>& v) {
         return c.AllReduceSum(std::span(v).first(16384), "bench");
       }},
      {"reduce_scatter", 1,
       [&](Collective& c, std::vector<float>& v) {
         const sharding::Interval& own = floats[static_cast<size_t>(c.rank())];
         return c.ReduceScatterSum(
             {.values = v,
              .of_rank = floats,
              .into = std::span(v).subspan(static_cast<size_t>(own.from), static_cast<size_t>(own.size()))},
             "bench");
       }},
      {"all_gather", 1,
       [&](Collective& c, std::vector<float>& v) {
         return c.AllGather(std::as_writable_bytes(std::span(v)), bytes, "bench");
       }},
  };
  const std::string folder = std::filesystem::exists("/dev/shm") ? "/dev/shm" : "/tmp";
  const auto rendezvous = std::make_shared<RendezvousTable>();
  std::vector<double> seconds[std::size(cases)][2];  // [case][by memory], of rank 0
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      std::unique_ptr<Collective> group[2];
      for (const bool memory : {false, true}) {
        auto made = MakeGroup({.rendezvous = rendezvous,
                               .name = memory ? "memory" : "sockets",
                               .rank = rank,
                               .size = ranks,
                               .shared_folder = memory ? folder : ""});
        TP_CHECK(made.ok()) << made.status().message();
        group[memory] = *std::move(made);
      }
      std::vector<float> values(static_cast<size_t>(n), 1.0F);
      for (int round = 0; round <= rounds; ++round) {  // the first warms up
        for (size_t k = 0; k < std::size(cases); ++k) {
          for (const bool memory : {false, true}) {
            Collective& c = *group[memory];
            TP_CHECK(c.AllGather(uint64_t{0}, "begin").ok());
            const auto from = std::chrono::steady_clock::now();
            for (int64_t i = 0; i < cases[k].times; ++i) {
              const Status done = cases[k].run(c, values);
              TP_CHECK(done.ok()) << done.message();
            }
            TP_CHECK(c.AllGather(uint64_t{0}, "end").ok());
            const std::chrono::duration<double> took = std::chrono::steady_clock::now() - from;
            if (rank == 0 && round > 0)
              seconds[k][memory].push_back(took.count() / static_cast<double>(cases[k].times));
          }
        }
      }
    });
  }
  for (auto& t : threads) t.join();
  const std::string machine = bench::DescribeDevice(*bench::BenchDevice("cpu"));
  const char* commit = std::getenv("TIDEPOOL_COMMIT");
  for (size_t k = 0; k < std::size(cases); ++k) {
    const double sockets = Median(seconds[k][0]), memory = Median(seconds[k][1]);
    const auto [least, most] = std::ranges::minmax(seconds[k][1]);
    std::printf(
        "{\"bench\":\"group\",\"case\":\"%s\",\"value\":%.6g,\"unit\":\"s\",\"better\":\"lower\","
        "\"baseline\":\"gloo, loopback\",\"baseline_value\":%.6g,\"ratio\":%.4g,\"repeats\":%d,"
        "\"spread\":%.4g,\"machine\":\"%s\",\"commit\":\"%s\",\"config\":\"%d ranks, %lld MB\"}\n",
        cases[k].name, memory, sockets, memory / sockets, rounds, (most - least) / memory, machine.c_str(),
        commit == nullptr ? "" : commit, ranks, static_cast<long long>(mbytes));
    std::fprintf(stderr, "%-20s %10.3f ms   sockets %10.3f ms   ratio %.3f\n", cases[k].name, memory * 1e3,
                 sockets * 1e3, memory / sockets);
  }
  return 0;
}

}  // namespace
}  // namespace tidepool::comm

int main(int argc, char** argv) { return tidepool::comm::Main(argc, argv); }
