// One optimizer step on random weights of SmolLM2-135M's shape: 8 groups x 8 samples, prompt 40, responses
// 16, bfloat16, all responses different. Prints one JSON object a case on standard output and a table on
// standard error. The baseline is the step's matrix products alone, by LibTorch, in the same run: ratio =
// their time over ours (1 would mean that everything else is free).
//
//   train_bench [--threads 2] [--steps 3] [--micro 1024] [--recompute] [--layers 30] [--quickstart]
//     [--groups 8] [--samples 8] [--prompt 40] [--response 16] [--lengths 16,300,...] [--shape smollm2]
//     [--device cpu] [--parts 0]
//
// --parts N: in place of all that, what each kernel of one step takes, run N times in a row.
// --shape, --device: of bench_model.h. On a GPU there is no baseline, and what is computed a second stands
// beside what one large product reaches. Without a GPU: exit code 77, with the reason.
// --lengths: responses of these lengths, one to a group, in place of groups, samples and response.
// --quickstart: the shape of configs/quickstart.yaml instead (about 1M parameters, float32, 16 groups x 8
// samples, prompt 12, responses 8).

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "core/base/rng.h"
#include "core/device/cpu/kernels.h"
#include "core/model/memory_use.h"
#include "core/train/trainer.h"
#include "tests/bench/bench_model.h"
#include "tests/bench/timed_device.h"

namespace tidepool::train {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string machine;  // what it runs on

double PeakBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

struct Sizes {
  int64_t groups = 8;
  int32_t samples = 8;
  int64_t prompt = 40, response = 16;
  std::vector<int64_t> lengths;  // of the groups' responses; empty: response
};

Batch RandomBatch(const model::ModelSpec& spec, const Sizes& sizes, int64_t step) {
  Rng rng(static_cast<uint64_t>(step));
  Batch b;
  b.step = StepNumber{step};
  b.version = Version{0, step - 1};
  for (int64_t g = 0; g < sizes.groups; ++g) {
    std::vector<int32_t> prompt;
    for (int64_t i = 0; i < sizes.prompt; ++i)
      prompt.push_back(static_cast<int32_t>(rng.Below(spec.vocab_size)));
    for (int32_t s = 0; s < sizes.samples; ++s) {
      Row r;
      r.tid = {g, 0, s};
      r.gid = GroupId{g};
      r.prompt = prompt;
      const int64_t length = sizes.lengths.empty() ? sizes.response : sizes.lengths[static_cast<size_t>(g)];
      for (int64_t i = 0; i < length; ++i)
        r.response.push_back(static_cast<int32_t>(rng.Below(spec.vocab_size)));
      r.logprobs.assign(r.response.size(), -10.8F);
      r.versions.assign(r.response.size(), b.version);
      r.reward = static_cast<double>(rng.Below(2));
      b.rows.push_back(std::move(r));
    }
  }
  return b;
}

// Seconds of forward and both backward products of every matrix for `tokens` rows (head: `pairs`).
double ProductSeconds(const model::ModelSpec& s, at::ScalarType dtype, int64_t tokens, int64_t pairs) {
  const auto time = [&](int64_t m, int64_t n, int64_t k) {
    const auto type = at::TensorOptions().dtype(dtype);
    const at::Tensor x = at::randn({m, k}, type), w = at::randn({n, k}, type), dy = at::randn({m, n}, type);
    double best = 1e9;
    for (int i = 0; i < 5; ++i) {
      const double from = Now();
      (void)at::mm(x, w.t());
      (void)at::mm(dy, w);
      (void)at::mm(dy.t(), x);
      best = std::min(best, Now() - from);
    }
    return best;
  };
  const int64_t d = s.hidden_size, q = s.heads * s.head_size;
  const double layer = time(tokens, (s.heads + 2 * s.kv_heads) * s.head_size, d) + time(tokens, d, q) +
                       time(tokens, 2 * s.intermediate_size, d) + time(tokens, d, s.intermediate_size);
  const int64_t chunk = 256;
  return static_cast<double>(s.layers) * layer +
         static_cast<double>(pairs) / chunk * time(chunk, s.vocab_size, d);
}

// Floating-point operations of a step on `tokens` rows in rows of `length`: forward and twice that backward
// (arXiv:2001.08361, with causal attention; the head on every row, as papers count it).
double StepFlops(const model::Weights& weights, double tokens, double length) {
  const model::ModelSpec& s = weights.spec();
  const int64_t embedding = s.tie_embeddings ? 0 : s.vocab_size * s.hidden_size;
  const auto matrices = static_cast<double>(weights.elements() - embedding);
  const auto attention = static_cast<double>(2 * s.layers * s.heads * s.head_size);
  return 3 * tokens * (2 * matrices + attention * length);
}

// Floating-point operations a second of one product in bfloat16, 4 096 (the tiny shape: 64) each way.
double ProductFlops(device::Device& device, int64_t side) {
  const device::Array x = device.Take(side, side, DType::kBFloat16),
                      w = device.Take(side, side, DType::kBFloat16),
                      y = device.Take(side, side, DType::kBFloat16);
  std::vector<uint16_t> noise(static_cast<size_t>(side * side));
  Rng rng(1);
  for (uint16_t& bits : noise) bits = static_cast<uint16_t>(0x3F00 | (rng.Next() & 0x80FF));  // 0.5 to 2
  for (const device::Array* a : {&x, &w}) device.Upload(a->view.data, noise.data(), a->view.bytes());
  double best = 1e9;
  for (int i = 0; i < 9; ++i) {
    device.Synchronize();
    const double from = Now();
    device.Multiply(device::MultiplyArgs<device::BF16>{.rows = side,
                                                       .n = side,
                                                       .k = side,
                                                       .x = x.view.As<device::BF16>(),
                                                       .w = w.view.As<device::BF16>(),
                                                       .y = y.view.As<device::BF16>()});
    device.Synchronize();
    best = std::min(best, Now() - from);
  }
  return 2 * static_cast<double>(side) * static_cast<double>(side) * static_cast<double>(side) / best;
}

void Print(const char* name, double value, const char* unit, const char* better, const char* against,
           double baseline, double ratio, int repeats, double spread, const std::string& config) {
  const char* commit = std::getenv("TIDEPOOL_COMMIT");
  std::printf(
      "{\"bench\":\"train\",\"case\":\"%s\",\"value\":%.6g,\"unit\":\"%s\",\"better\":\"%s\",\"baseline\":\"%"
      "s\","
      "\"baseline_value\":%.6g,\"ratio\":%.4g,\"repeats\":%d,\"spread\":%.4g,\"machine\":\"%s\",\"commit\":"
      "\"%s\",\"config\":\"%s\"}\n",
      name, value, unit, better, against, baseline, ratio, repeats, spread, machine.c_str(),
      commit == nullptr ? "" : commit, config.c_str());
  std::fprintf(stderr, "%-24s %10.4g %s\n", name, value, unit);
}

int Main(int argc, char** argv) {
  int threads = 2, steps = 3, parts = 0;
  int64_t micro = 1024, layers = 0;  // 0: of the shape
  bool recompute = false, quickstart = false;
  std::string shape = "smollm2", device_kind = "cpu";
  Sizes sizes;
  for (int i = 1; i < argc; ++i) {
    const auto value = [&] { return i + 1 < argc ? std::atol(argv[++i]) : 0L; };
    if (std::strcmp(argv[i], "--threads") == 0)
      threads = static_cast<int>(value());
    else if (std::strcmp(argv[i], "--steps") == 0)
      steps = static_cast<int>(value());
    else if (std::strcmp(argv[i], "--parts") == 0)
      parts = static_cast<int>(value());
    else if (std::strcmp(argv[i], "--micro") == 0)
      micro = value();
    else if (std::strcmp(argv[i], "--layers") == 0)
      layers = value();
    else if (std::strcmp(argv[i], "--groups") == 0)
      sizes.groups = value();
    else if (std::strcmp(argv[i], "--samples") == 0)
      sizes.samples = static_cast<int32_t>(value());
    else if (std::strcmp(argv[i], "--prompt") == 0)
      sizes.prompt = value();
    else if (std::strcmp(argv[i], "--response") == 0)
      sizes.response = value();
    else if (std::strcmp(argv[i], "--shape") == 0 && i + 1 < argc)
      shape = argv[++i];
    else if (std::strcmp(argv[i], "--device") == 0 && i + 1 < argc)
      device_kind = argv[++i];
    else if (std::strcmp(argv[i], "--lengths") == 0 && i + 1 < argc) {
      std::istringstream list(argv[++i]);
      for (std::string length; std::getline(list, length, ',');)
        sizes.lengths.push_back(std::max(1L, std::atol(length.c_str())));
      sizes.groups = static_cast<int64_t>(sizes.lengths.size());
      sizes.samples = 1;
    } else if (std::strcmp(argv[i], "--recompute") == 0)
      recompute = true;
    else if (std::strcmp(argv[i], "--quickstart") == 0)
      quickstart = true;
    else
      return std::fprintf(
                 stderr,
                 "usage: train_bench [--threads N] [--steps N] [--micro TOKENS] [--layers N] "
                 "[--recompute] [--quickstart] [--groups N] [--samples N] [--prompt N] [--response N] "
                 "[--lengths N,N,...] [--shape NAME] [--device cpu|cuda] [--parts N]\n"),
             2;
  }
  at::set_num_threads(threads);
  std::unique_ptr<model::Weights> weights;
  if (quickstart) {
    model::ModelSpec spec;
    spec.tie_embeddings = true;
    spec.vocab_size = 53;
    spec.hidden_size = 128, spec.intermediate_size = 384, spec.layers = 4;
    spec.heads = 4, spec.kv_heads = 2, spec.head_size = 32, spec.max_position = 256, spec.rope_theta = 10000;
    sizes = {.groups = 16, .samples = 8, .prompt = 12, .response = 8};
    auto made = model::Weights::Create(spec, model::DType::kFloat32);
    if (!made.ok()) return std::fprintf(stderr, "%s\n", made.status().ToString().c_str()), 1;
    weights = std::move(*made);
    weights->Initialize(1, 0.04);
  } else {
    weights = bench::NoiseModel(shape, layers);
  }
  const model::ModelSpec& spec = weights->spec();
  const model::DType dtype = weights->dtype();
  TrainerOptions o;
  o.loss.aggregation = {
      .mode = algorithms::AggregationMode::kSeqMeanTokenSumNorm, .scale = 16, .divide_by_seqs = true};
  o.schedule.peak = 2e-5;
  o.micro_batch_tokens = micro;
  o.recompute = recompute;
  o.device = bench::BenchDevice(device_kind);
  const bool on_cpu = o.device->host_memory();
  machine = bench::DescribeDevice(*o.device);
  const auto timed = parts > 0 ? std::make_shared<bench::TimedDevice>(o.device, parts) : nullptr;
  if (timed != nullptr) o.device = timed;
  auto trainer = Trainer::Create(*weights, o);
  if (!trainer.ok()) return std::fprintf(stderr, "%s\n", trainer.status().ToString().c_str()), 1;
  if (timed != nullptr) {
    for (int64_t step = 1; step <= 2; ++step) {  // the first warms up
      if (step == 2) timed->Start();
      const auto result = (*trainer)->Step(RandomBatch(spec, sizes, step));
      if (!result.ok())
        return std::fprintf(stderr, "step failed: %s\n", result.status().ToString().c_str()), 1;
    }
    timed->Print("a training step");
    return 0;
  }
  std::vector<double> seconds;
  std::map<std::string, double> metrics;
  for (int s = 0; s <= steps; ++s) {  // the first warms up
    const Batch b = RandomBatch(spec, sizes, s + 1);
    const double from = Now();
    const auto result = (*trainer)->Step(b);
    if (!result.ok() || !result->finite)
      return std::fprintf(stderr, "step failed: %s\n", result.status().ToString().c_str()), 1;
    if (s > 0) seconds.push_back(Now() - from);
    metrics = result->metrics;
  }
  const double peak = PeakBytes();
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2], spread = (seconds.back() - seconds.front()) / median;
  const int64_t responses = sizes.lengths.empty()
                                ? sizes.groups * sizes.samples * sizes.response
                                : std::accumulate(sizes.lengths.begin(), sizes.lengths.end(), int64_t{0});
  const auto tokens = metrics["perf/computed_tokens"];
  const double products = on_cpu ? ProductSeconds(spec, quickstart ? at::kFloat : at::kBFloat16,
                                                  static_cast<int64_t>(tokens), responses)
                                 : 0;
  const std::string name = shape == "smollm2" ? "smollm2-135m" : shape;
  const std::string config =
      (quickstart ? std::string("quickstart shape, fp32, ") : name + " shape, bf16, ") +
      std::to_string(sizes.groups) + "x" + std::to_string(sizes.samples) + ", prompt " +
      std::to_string(sizes.prompt) + ", " + std::to_string(responses) + " tokens of responses" +
      ", threads " + std::to_string(threads) + ", micro " + std::to_string(micro) +
      (recompute ? ", recompute" : "") + ", layers " + std::to_string(spec.layers);
  Print("step", median, "s", "lower", on_cpu ? "matrix products alone" : "", products, products / median,
        steps, spread, config);
  if (!on_cpu) {
    const double rows = static_cast<double>(sizes.groups * sizes.samples);
    const double flops = StepFlops(*weights, tokens, metrics["perf/total_num_tokens"] / rows) / median;
    const double product = ProductFlops(*o.device, shape == "tiny" ? 64 : 4096);
    Print("step_tflops", flops / 1e12, "TFLOP/s", "higher", "one large product", product / 1e12,
          flops / product, steps, spread, config);
  }
  for (const char* part :
       {"actor_forward", "actor_head", "actor_backward", "actor_optimizer", "actor_digest"}) {
    Print(part, metrics[std::string("timing_s/") + part], "s", "lower", "", 0, 0, 1, 0, config);
  }
  const double of_step = metrics["timing_s/actor_loss"] / metrics["timing_s/update_actor"];
  Print("advantages_and_loss", of_step, "share of the step", "lower", "goal", 0.01, 0.01 / of_step, 1, 0,
        config);
  Print("computed_tokens", metrics["perf/computed_tokens"], "tokens", "lower", "tokens of the rows",
        metrics["perf/total_num_tokens"], metrics["perf/total_num_tokens"] / metrics["perf/computed_tokens"],
        1, 0, config);
  if (!on_cpu) return 0;  // its memory is not this process's
  const double predicted = static_cast<double>(
      model::TrainingMemory(spec, dtype,
                            {.tokens = std::min<int64_t>(micro, metrics["perf/computed_tokens"]),
                             .recompute = recompute,
                             .threads = threads})
          .total());
  Print("peak_resident", peak / 1e9, "GB", "lower", "TrainingMemory", predicted / 1e9, predicted / peak, 1, 0,
        config);
  return 0;
}

}  // namespace
}  // namespace tidepool::train

int main(int argc, char** argv) { return tidepool::train::Main(argc, argv); }
