// A training step on several slots against one slot with the same cores, by turns: ranks that have other rows
// (dp) or other parts of the model (tp), by shared memory and by Gloo's sockets. Ranks are threads. Prints
// one JSON object a case on standard output and a table on standard error.
//
//   mesh_bench [--ranks 2] [--steps 5] [--shape smollm2] [--layers 0] [--rows 4] [--length 1000]
//
// The goal is for dp by memory: at most 1.1 times the step of one slot. tp where the model can be cut.

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/check.h"
#include "core/comm/rendezvous_table.h"
#include "core/train/trainer.h"
#include "tests/bench/bench_batch.h"
#include "tests/bench/bench_model.h"

namespace tidepool::train {
namespace {

struct Options {
  int ranks = 2, steps = 5;
  std::string shape = "smollm2";
  int64_t layers = 0, rows = 4, length = 1000;
};

// Trainers of one way to divide a step; made and used by the threads of their ranks.
struct Way {
  std::string name;
  int data = 1, tensor = 1;
  bool memory = true, zero = false;  // zero: train.zero: 1
  std::vector<double> seconds = {};
  [[nodiscard]] int ranks() const { return data * tensor; }
};

double Median(std::vector<double> v) {
  std::ranges::sort(v);
  return v[v.size() / 2];
}

// Steps of one way, each begun when all ranks are there; `threads` of each rank.
void Run(Way& way, const Options& o, int threads, std::string& machine) {
  const auto rendezvous = std::make_shared<comm::RendezvousTable>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < way.ranks(); ++rank) {
    ranks.emplace_back([&, rank] {
      at::set_num_threads(threads);
      const int d = rank / way.tensor, t = rank % way.tensor;
      const auto group = [&](const std::string& name, int place, int size) {
        if (size == 1) return std::unique_ptr<comm::Collective>();
        auto made = comm::MakeGroup({.rendezvous = rendezvous,
                                     .name = name,
                                     .rank = place,
                                     .size = size,
                                     .shared_folder = way.memory ? "/dev/shm" : "",
                                     .timeout_s = 600});
        TP_CHECK(made.ok()) << made.status().message();
        return *std::move(made);
      };
      const auto tensor = group("tensor " + std::to_string(d), t, way.tensor),
                 data = group("data " + std::to_string(t), d, way.data),
                 all = group("all", rank, way.ranks());
      const auto weights = bench::NoiseModel(o.shape, o.layers);
      TrainerOptions options;
      options.schedule.peak = 2e-5;
      options.micro_batch_tokens = 4096;
      options.device = bench::BenchDevice("cpu");
      options.part = {t, way.tensor};
      if (way.zero) options.shard = {d, way.data};
      if (rank == 0) machine = bench::DescribeDevice(*options.device);
      auto created = Trainer::Create(*weights, options);
      TP_CHECK(created.ok()) << created.status().message();
      (*created)->Join(tensor.get());
      for (int step = 0; step <= o.steps; ++step) {  // the first warms up
        const Batch batch =
            bench::ShareOfNoise(weights->spec().vocab_size, o.rows, o.length, step + 1, way.data, d);
        if (all != nullptr) TP_CHECK(all->AllGather(uint64_t{0}, "begin").ok());
        const auto from = std::chrono::steady_clock::now();
        const auto result = (*created)->Step(batch, nullptr, data.get());
        TP_CHECK(result.ok()) << result.status().message();
        if (all != nullptr) TP_CHECK(all->AllGather(uint64_t{0}, "end").ok());
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - from;
        if (rank == 0 && step > 0) way.seconds.push_back(took.count());
      }
    });
  }
  for (std::thread& t : ranks) t.join();
}

int Main(int argc, char** argv) {
  Options o;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i];
    if (key == "--ranks")
      o.ranks = std::atoi(argv[i + 1]);
    else if (key == "--steps")
      o.steps = std::atoi(argv[i + 1]);
    else if (key == "--shape")
      o.shape = argv[i + 1];
    else if (key == "--layers")
      o.layers = std::atol(argv[i + 1]);
    else if (key == "--rows")
      o.rows = std::atol(argv[i + 1]);
    else if (key == "--length")
      o.length = std::atol(argv[i + 1]);
    else
      return std::fprintf(stderr, "%s: not an option\n", argv[i]), 2;
  }
  const std::string n = std::to_string(o.ranks);
  std::vector<Way> ways = {{.name = "one_slot"},
                           {.name = "dp_" + n, .data = o.ranks},
                           {.name = "dp_" + n + "_zero_1", .data = o.ranks, .zero = true},
                           {.name = "dp_" + n + "_sockets", .data = o.ranks, .memory = false}};
  if (model::CheckCut(bench::NoiseModel(o.shape, 1)->spec(), o.ranks).ok()) {
    ways.push_back({.name = "tp_" + n, .tensor = o.ranks});
    ways.push_back({.name = "tp_" + n + "_sockets", .tensor = o.ranks, .memory = false});
  }
  std::string machine;
  // The first and the last half of the steps, so that none has all of a quiet moment.
  Options half = o;
  half.steps = (o.steps + 1) / 2;
  for (int round = 0; round < 2; ++round)
    for (Way& way : ways) Run(way, half, o.ranks / way.ranks(), machine);
  const double one = Median(ways[0].seconds);
  const char* commit = std::getenv("TIDEPOOL_COMMIT");
  for (const Way& way : ways) {
    const double s = Median(way.seconds);
    const auto [least, most] = std::ranges::minmax(way.seconds);
    std::printf(
        "{\"bench\":\"mesh\",\"case\":\"%s\",\"value\":%.6g,\"unit\":\"s\",\"better\":\"lower\",\"baseline\":"
        "\"one "
        "slot, the same "
        "cores\",\"baseline_value\":%.6g,\"ratio\":%.4g,\"repeats\":%zu,\"spread\":%.4g,\"machine\":"
        "\"%s\",\"commit\":\"%s\",\"config\":\"%s, bf16, %d cores, %lld rows of %lld tokens\"}\n",
        way.name.c_str(), s, one, s / one, way.seconds.size(), (most - least) / s, machine.c_str(),
        commit == nullptr ? "" : commit, o.shape.c_str(), o.ranks, static_cast<long long>(o.rows),
        static_cast<long long>(o.length));
    std::fprintf(stderr, "%-18s %8.3f s (%.3f to %.3f)   ratio %.3f\n", way.name.c_str(), s, least, most,
                 s / one);
  }
  return 0;
}

}  // namespace
}  // namespace tidepool::train

int main(int argc, char** argv) { return tidepool::train::Main(argc, argv); }
