// Requests of several adapters in one batch against the same requests of one adapter: an engine of each in
// turn, on random weights of SmolLM2-135M's shape in bfloat16, all of them decoding at once (answers of
// --tokens behind prompts of --prompt). Prints one JSON object on standard output: ratio = tokens/s of
// several over that of one.
//
//   adapters_bench [--adapters 4] [--rank 16] [--rows 64] [--prompt 32] [--tokens 32] [--rounds 5]
//     [--threads 2] [--layers 30] [--shape smollm2]
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/rng.h"
#include "core/device/cpu/cpu_device.h"
#include "core/engine/engine.h"
#include "core/model/adapter.h"
#include "tests/bench/bench_model.h"

namespace tidepool::engine {
namespace {

struct Options {
  int64_t adapters = 4, rank = 16, rows = 64, prompt = 32, tokens = 32, rounds = 5, threads = 2, layers = 0;
  std::string shape = "smollm2";
};

// Tokens a second of steps that only decode: all requests together, `adapters` of them in turn.
double Run(const Options& o, Engine& engine, int64_t vocabulary, int64_t adapters, int64_t round) {
  Rng rng(static_cast<uint64_t>(round));
  for (int64_t i = 0; i < o.rows; ++i) {
    ChunkRequest request{.tid = {round * o.rows + i, 0, 0}, .gid = {round * o.rows + i}};
    for (int64_t t = 0; t < o.prompt; ++t)
      request.prompt.push_back(static_cast<int32_t>(rng.Below(vocabulary)));
    request.max_new_tokens = request.max_total_new = o.tokens;
    request.adapter = static_cast<int32_t>(i % adapters);
    const Status added = engine.Add(std::move(request));
    TP_CHECK(added.ok()) << added.ToString();
  }
  double seconds = 0;
  int64_t tokens = 0;
  while (engine.HasWork()) {
    const EngineStats stats = engine.Step().stats;
    if (stats.prefill_tokens > 0 || stats.sampled_tokens < o.rows) continue;
    seconds += stats.step_s;
    tokens += stats.sampled_tokens;
  }
  TP_CHECK(tokens > 0) << "no step decoded all requests";
  return static_cast<double>(tokens) / seconds;
}

int Main(int argc, char** argv) {
  Options o;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    bool known = name == "--shape";
    if (known) o.shape = argv[i + 1];
    for (const auto& [key, to] : {std::pair("--adapters", &o.adapters),
                                  {"--rank", &o.rank},
                                  {"--rows", &o.rows},
                                  {"--prompt", &o.prompt},
                                  {"--tokens", &o.tokens},
                                  {"--rounds", &o.rounds},
                                  {"--threads", &o.threads},
                                  {"--layers", &o.layers}}) {
      if (name != key) continue;
      *to = std::atol(argv[i + 1]);
      known = true;
    }
    if (!known)
      return std::fprintf(stderr, "%s is no option; see the head of adapters_bench.cc\n", name.c_str()), 2;
  }
  at::set_num_threads(static_cast<int>(o.threads));
  std::shared_ptr<model::Weights> base = bench::NoiseModel(o.shape, o.layers);
  const auto device = std::make_shared<device::CpuDevice>();
  base->LayOutFor(*device);  // as who only generates has it
  std::vector<std::unique_ptr<model::Weights>> adapters;
  auto engine = Engine::Create(
      *base,
      {.device = device, .kv_cache_tokens = o.rows * (o.prompt + o.tokens + 32), .max_running = o.rows});
  TP_CHECK(engine.ok()) << engine.status().ToString();
  for (int64_t a = 0; a < o.adapters; ++a) {
    auto made = model::Weights::Adapt(base, *model::AdapterOf({.rank = o.rank}));
    TP_CHECK(made.ok()) << made.status().ToString();
    adapters.push_back(std::move(*made));
    adapters.back()->Initialize(static_cast<uint64_t>(a), 0);
    (void)(*engine)->AddAdapter(*adapters.back(), {0, 1}, static_cast<uint64_t>(a));
  }
  std::vector<double> several, one, ratios;
  for (int64_t round = 0; round <= o.rounds; ++round) {  // the first warms up
    const double many = Run(o, **engine, base->spec().vocab_size, o.adapters, 2 * round),
                 single = Run(o, **engine, base->spec().vocab_size, 1, 2 * round + 1);
    if (round == 0) continue;
    several.push_back(many), one.push_back(single), ratios.push_back(many / single);
  }
  for (auto* values : {&several, &one, &ratios}) std::ranges::sort(*values);
  const auto median = [](const std::vector<double>& sorted) { return sorted[sorted.size() / 2]; };
  const char* commit = std::getenv("TIDEPOOL_COMMIT");
  const std::string config = o.shape + ", bf16, rank " + std::to_string(o.rank) + " of all targets, " +
                             std::to_string(o.adapters) + " adapters, " + std::to_string(o.rows) +
                             " rows a step, prompts of " + std::to_string(o.prompt) + ", threads " +
                             std::to_string(o.threads) + ", layers " + std::to_string(base->spec().layers);
  std::printf(
      "{\"bench\":\"adapters\",\"case\":\"decode\",\"value\":%.6g,\"unit\":\"tokens/"
      "s\",\"better\":\"higher\","
      "\"baseline\":\"one adapter\",\"baseline_value\":%.6g,\"ratio\":%.4g,\"ratio_min\":%.4g,"
      "\"ratio_max\":%.4g,\"machine\":\"%s\",\"commit\":\"%s\",\"config\":\"%s\"}\n",
      median(several), median(one), median(ratios), ratios.front(), ratios.back(),
      bench::DescribeDevice(*device).c_str(), commit == nullptr ? "" : commit, config.c_str());
  std::fprintf(stderr,
               "%lld adapters in one batch: %.4g of %.4g tokens/s: %.3f x (%.3f to %.3f; goal 0.85)\n",
               static_cast<long long>(o.adapters), median(several), median(one), median(ratios),
               ratios.front(), ratios.back());
  return 0;
}

}  // namespace
}  // namespace tidepool::engine

int main(int argc, char** argv) { return tidepool::engine::Main(argc, argv); }
