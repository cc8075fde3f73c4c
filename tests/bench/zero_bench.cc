// A training step on several ranks that share the optimizer's state (train.zero: 1), gradients, too (2), and
// weights (3), against the same ranks that share nothing (0), step by step in turns: ranks are threads of one
// core each that exchange by shared memory. Where a rank has one micro-batch every step compares the digests
// of all. Prints one JSON object a case on standard output and a table on standard error.
//
//   zero_bench [--ranks 2] [--steps 5] [--shape smollm2] [--layers 8] [--rows 8] [--length 256]
//              [--micro_batch_tokens 1024]
//
// --rows, --length: of the batch, of tokens; a rank has its share of the rows.

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/check.h"
#include "core/comm/rendezvous_table.h"
#include "core/model/memory_use.h"
#include "core/sharding/intervals.h"
#include "core/train/shared_weights.h"
#include "core/train/trainer.h"
#include "tests/bench/bench_batch.h"
#include "tests/bench/bench_model.h"

namespace tidepool::train {
namespace {

struct Options {
  int ranks = 2, steps = 5;
  std::string shape = "smollm2";
  int64_t layers = 8, rows = 8, length = 256, micro_batch_tokens = 1024;
  [[nodiscard]] bool one_micro_batch() const {
    return (rows + ranks - 1) / ranks * length <= micro_batch_tokens;
  }
};

struct Run {
  std::vector<double> seconds, reduce, optimizer;
  int64_t optimizer_bytes = 0, gradient_bytes = 0, planned_bytes = 0;  // planned: of gradients
  int64_t weight_bytes = 0;                                            // with what is laid out for products
};

double Median(std::vector<double> v) {
  std::ranges::sort(v);
  return v[v.size() / 2];
}

// against: of the baseline.
void Print(const Options& o, const std::string& name, double value, const char* unit, double baseline,
           double spread, const std::string& machine, const char* against = "train.zero: 0") {
  const char* commit = std::getenv("TIDEPOOL_COMMIT");
  std::printf(
      "{\"bench\":\"zero\",\"case\":\"%s\",\"value\":%.6g,\"unit\":\"%s\",\"better\":\"lower\","
      "\"baseline\":\"%s\",\"baseline_value\":%.6g,\"ratio\":%.4g,\"repeats\":%d,"
      "\"spread\":%.4g,\"machine\":\"%s\",\"commit\":\"%s\",\"config\":\"%s, %lld layers, bf16, %d "
      "ranks of one thread, %lld rows of %lld tokens, micro-batches of %lld\"}\n",
      name.c_str(), value, unit, against, baseline, value / baseline, o.steps, spread, machine.c_str(),
      commit == nullptr ? "" : commit, o.shape.c_str(), static_cast<long long>(o.layers), o.ranks,
      static_cast<long long>(o.rows), static_cast<long long>(o.length),
      static_cast<long long>(o.micro_batch_tokens));
  std::fprintf(stderr, "%-36s %10.4g %-5s  %s: %10.4g  ratio %.3f\n", name.c_str(), value, unit, against,
               baseline, value / baseline);
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
    else if (key == "--micro_batch_tokens")
      o.micro_batch_tokens = std::atol(argv[i + 1]);
    else
      return std::fprintf(stderr, "%s: not an option\n", argv[i]), 2;
  }
  std::string machine;
  std::vector<std::map<int, Run>> of_rank(static_cast<size_t>(o.ranks));  // by train.zero
  std::vector<std::thread> threads;
  const auto rendezvous = std::make_shared<comm::RendezvousTable>();
  for (int rank = 0; rank < o.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      auto group = comm::MakeGroup({.rendezvous = rendezvous,
                                    .rank = rank,
                                    .size = o.ranks,
                                    .shared_folder = "/dev/shm",
                                    .timeout_s = 600});
      TP_CHECK(group.ok()) << group.status().message();
      std::unique_ptr<SharedWeights> shared;
      std::unique_ptr<model::Weights> weights[4];
      std::unique_ptr<Trainer> trainer[4];
      for (const int zero : {0, 1, 2, 3}) {
        weights[zero] = bench::NoiseModel(o.shape, o.layers);
        if (zero == 3) {
          const model::Weights& noise = *weights[0];
          shared = std::move(SharedWeights::Create(noise.elements(), model::Bytes(noise.dtype()))).value();
          weights[3] =
              std::move(model::Weights::Create(noise.spec(), noise.dtype(), shared->arena())).value();
          std::ranges::copy(noise.bytes(), shared->arena().begin());
          TP_CHECK(shared->Share(**group, "/dev/shm").ok());
        }
        TrainerOptions options;
        options.schedule.peak = 2e-5;
        options.micro_batch_tokens = o.micro_batch_tokens;
        options.device = bench::BenchDevice("cpu");
        if (rank == 0 && zero == 0) machine = bench::DescribeDevice(*options.device);
        if (zero > 0) options.shard = {rank, o.ranks};
        options.share_gradients = zero >= 2;
        options.share_weights = zero == 3;
        trainer[zero] = std::move(Trainer::Create(*weights[zero], options)).value();
      }
      auto& runs = of_rank[static_cast<size_t>(rank)];
      for (int step = 0; step <= o.steps; ++step) {  // the first warms up
        const Batch batch =
            bench::ShareOfNoise(weights[0]->spec().vocab_size, o.rows, o.length, step + 1, o.ranks, rank);
        uint64_t digest[4];
        for (const int zero : {0, 1, 2, 3}) {
          TP_CHECK((*group)->AllGather(uint64_t{0}, "begin").ok());
          const auto from = std::chrono::steady_clock::now();
          auto result = trainer[zero]->Step(batch, nullptr, group->get());
          TP_CHECK(result.ok()) << result.status().message();
          TP_CHECK((*group)->AllGather(uint64_t{0}, "end").ok());
          const std::chrono::duration<double> took = std::chrono::steady_clock::now() - from;
          digest[zero] = result->digest;
          if (step == 0) continue;
          Run& run = runs[zero];
          run.seconds.push_back(took.count());
          run.reduce.push_back(result->metrics.at("timing_s/actor_reduce"));
          run.optimizer.push_back(result->metrics.at("timing_s/actor_optimizer"));
          run.optimizer_bytes = trainer[zero]->held().optimizer;
          if (zero == 0) run.weight_bytes = weights[0]->size() + weights[0]->strips_bytes();
          if (zero == 3) run.weight_bytes = static_cast<int64_t>(result->metrics.at("memory/weights_bytes"));
          const bool of_all = zero >= 2;
          run.gradient_bytes = of_all ? static_cast<int64_t>(result->metrics.at("memory/gradients_bytes"))
                                      : trainer[zero]->held().gradients;
          run.planned_bytes = of_all ? model::SharedGradientBytes(
                                           weights[zero]->spec(),
                                           sharding::Owned(weights[zero]->elements(), {rank, o.ranks}).size())
                                     : 4 * weights[zero]->elements();
        }
        for (const int zero : {1, 2, 3})
          TP_CHECK(digest[0] == digest[zero] || !o.one_micro_batch())
              << "step " << step << ": other weights with train.zero: " << zero;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  const Run& whole = of_rank[0][0];
  const auto spread = [](const Run& run) {
    const auto [least, most] = std::ranges::minmax(run.seconds);
    return (most - least) / Median(run.seconds);
  };
  for (const int zero : {1, 2, 3}) {
    const std::string with = "zero_" + std::to_string(zero) + "_";
    const Run& parts = of_rank[0][zero];
    Print(o, with + "step", Median(parts.seconds), "s", Median(whole.seconds), spread(parts), machine);
    Print(o, with + "sum_of_gradients", Median(parts.reduce), "s", Median(whole.reduce), 0, machine);
    Print(o, with + "update_and_new_weights", Median(parts.optimizer), "s", Median(whole.optimizer), 0,
          machine);
    for (size_t rank = 0; rank < of_rank.size(); ++rank) {
      const Run& run = of_rank[rank][zero];
      const std::string of = "_of_rank_" + std::to_string(rank);
      Print(o, with + "optimizer" + of, static_cast<double>(run.optimizer_bytes), "bytes",
            static_cast<double>(of_rank[rank][0].optimizer_bytes), 0, machine);
      Print(o, with + "gradients" + of, static_cast<double>(run.gradient_bytes), "bytes",
            static_cast<double>(of_rank[rank][0].gradient_bytes), 0, machine);
      if (run.weight_bytes > 0)
        Print(o, with + "weights" + of, static_cast<double>(run.weight_bytes), "bytes",
              static_cast<double>(of_rank[rank][0].weight_bytes), 0, machine);
      if (zero >= 2)
        Print(o, with + "gradients" + of + "_to_plan", static_cast<double>(run.gradient_bytes), "bytes",
              static_cast<double>(run.planned_bytes), 0, machine, "plan");
    }
  }
  return 0;
}

}  // namespace
}  // namespace tidepool::train

int main(int argc, char** argv) { return tidepool::train::Main(argc, argv); }
