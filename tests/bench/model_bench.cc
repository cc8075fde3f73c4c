// Forward of the decoder by number of rows, on random weights of SmolLM2-135M's shape in bfloat16 and of the
// quickstart's in float32: rows of 16 sequences with 48 keys each, head included. The baseline is the same
// matrix products alone by LibTorch in the same run (above 1: our products are faster by more than the rest
// takes). One decoded row against the best loop that reads the weights, in the same run. Also the log-prob
// kernel against at::log_softmax. Prints one JSON object a case on standard output and a table on standard
// error.
//
//   model_bench [--threads 2]

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "core/device/cpu/cpu_device.h"
#include "core/device/cpu/kernels.h"
#include "core/model/decoder.h"
#include "core/model/row_operations.h"
#include "core/model/weights.h"
#include "tests/core/model/on_device.h"

namespace tidepool::model {
namespace {

struct Timing {
  double median = 0, spread = 0;
};
Timing Time(const std::function<void()>& body) {
  body();
  std::vector<double> seconds;
  double total = 0;
  while (seconds.size() < 5 || (total < 0.5 && seconds.size() < 200)) {
    const auto from = std::chrono::steady_clock::now();
    body();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count());
    total += seconds.back();
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  return {median, (seconds[seconds.size() * 3 / 4] - seconds[seconds.size() / 4]) / median};
}

std::string Machine() {
  std::ifstream cpu("/proc/cpuinfo");
  for (std::string line; std::getline(cpu, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

void Print(const std::string& name, const Timing& ours, double baseline, const char* what,
           const std::string& config) {
  const char* commit = std::getenv("TIDEPOOL_COMMIT");
  std::printf(
      "{\"bench\":\"model\",\"case\":\"%s\",\"value\":%.6g,\"unit\":\"s\",\"better\":\"lower\",\"baseline\":"
      "\"%s\",\"baseline_value\":%.6g,"
      "\"ratio\":%.4g,\"repeats\":5,\"spread\":%.3g,\"machine\":\"%s\",\"commit\":\"%s\",\"config\":\"%s\"}"
      "\n",
      name.c_str(), ours.median, what, baseline, baseline / ours.median, ours.spread, Machine().c_str(),
      commit == nullptr ? "" : commit, config.c_str());
  std::fprintf(stderr, "%-28s %9.3f ms   %s %9.3f ms   ratio %.2f\n", name.c_str(), 1e3 * ours.median, what,
               1e3 * baseline, baseline / ours.median);
}

void Forward(const std::string& label, const ModelSpec& spec, DType dtype, int threads) {
  auto weights = std::move(Weights::Create(spec, dtype)).value();
  weights->Initialize(1, 0.04);
  const auto device = std::make_shared<device::CpuDevice>();
  const Decoder decoder(*weights, device);
  const auto type = at::TensorOptions().dtype(dtype == DType::kFloat32 ? at::kFloat : at::kBFloat16);
  const std::string config =
      label + (dtype == DType::kFloat32 ? ", fp32" : ", bf16") + ", threads " + std::to_string(threads);
  constexpr int32_t kKeys = 48;
  for (const int32_t rows : {1, 16, 64, 256, 1024}) {
    std::vector<int32_t> ids, positions, slots, first_run, lengths;
    std::vector<device::KvRun> runs;
    for (int32_t r = 0; r < rows; ++r) {
      ids.push_back(r % static_cast<int32_t>(spec.vocab_size));
      positions.push_back(kKeys - 1);
      slots.push_back(r * kKeys + kKeys - 1);
      first_run.push_back(r);
      lengths.push_back(kKeys);
      runs.push_back({r * kKeys, kKeys});
    }
    const KvOnDevice memory(*device, spec, dtype, int64_t{rows} * kKeys);
    const Timing ours = Time([&] {
      (void)decoder.Logits(
          decoder.Forward({ids, positions, slots, first_run, lengths, runs}, memory.view()).view);
    });
    // The products alone, on the same weights and padded rows.
    const int64_t m = (rows + 15) / 16 * 16, d = spec.hidden_size, q = spec.heads * spec.head_size;
    const at::Tensor x = at::randn({m, d}, type), a = at::randn({m, q}, type),
                     h = at::randn({m, spec.intermediate_size}, type);
    const Timing products = Time([&] {
      for (int64_t l = 0; l < spec.layers; ++l) {
        const std::string at = "layers." + std::to_string(l) + ".";
        (void)at::mm(x, weights->Get(at + "qkv").t());
        (void)at::mm(a, weights->Get(at + "o").t());
        (void)at::mm(x, weights->Get(at + "gate_up").t());
        (void)at::mm(h, weights->Get(at + "down").t());
      }
      (void)at::mm(x, weights->Get("embedding").t());
    });
    Print(label + " forward " + std::to_string(rows), ours, products.median, "products",
          config + ", keys 48");
  }
}

// Reads every byte once, with all threads: what a step of one row cannot be faster than.
uint64_t ReadOnce(std::span<const std::byte> bytes) {
  std::atomic<uint64_t> sum = 0;
  const auto* words = reinterpret_cast<const uint64_t*>(bytes.data());
  at::parallel_for(0, static_cast<int64_t>(bytes.size() / 128), 1024, [&](int64_t begin, int64_t end) {
    uint64_t s[16] = {};
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < 16; ++j) s[j] += words[i * 16 + j];
    }
    for (const uint64_t x : s) sum += x;
  });
  return sum;
}

// One sample with 64 keys, against reading the weights.
void Decode(const ModelSpec& spec) {
  auto weights = std::move(Weights::Create(spec, DType::kBFloat16)).value();
  weights->Initialize(1, 0.04);
  const auto device = std::make_shared<device::CpuDevice>();
  const Decoder decoder(*weights, device);
  const std::vector<int32_t> ids = {7}, positions = {63}, slots = {63}, first_run = {0}, lengths = {64};
  const std::vector<device::KvRun> runs = {{0, 64}};
  const KvOnDevice memory(*device, spec, DType::kBFloat16, 64);
  // By turns, so that what else the machine does meets both.
  std::vector<double> step, read;
  volatile uint64_t keep = 0;
  for (int i = 0; i < 40; ++i) {
    const auto from = std::chrono::steady_clock::now();
    (void)decoder.Logits(
        decoder.Forward({ids, positions, slots, first_run, lengths, runs}, memory.view()).view);
    const auto between = std::chrono::steady_clock::now();
    keep = ReadOnce(weights->bytes());
    const auto to = std::chrono::steady_clock::now();
    step.push_back(std::chrono::duration<double>(between - from).count());
    read.push_back(std::chrono::duration<double>(to - between).count());
  }
  (void)keep;
  std::sort(step.begin(), step.end());
  std::sort(read.begin(), read.end());
  Print("smollm2-135m decode 1", {step[20], (step[30] - step[10]) / step[20]}, read[20],
        "reading the weights", "bf16, threads " + std::to_string(at::get_num_threads()) + ", keys 64");
  std::fprintf(stderr, "%-28s best %.3f ms, of reading %.3f ms\n", "", 1e3 * step[0], 1e3 * read[0]);
}

int Main(int argc, char** argv) {
  int threads = 2;
  if (argc == 3 && std::strcmp(argv[1], "--threads") == 0)
    threads = std::atoi(argv[2]);
  else if (argc != 1)
    return std::fprintf(stderr, "usage: model_bench [--threads N]\n"), 2;
  at::set_num_threads(threads);
  ModelSpec smol;
  smol.vocab_size = 49152;
  smol.hidden_size = 576, smol.intermediate_size = 1536, smol.layers = 30;
  smol.heads = 9, smol.kv_heads = 3, smol.head_size = 64, smol.rope_theta = 100000,
  smol.tie_embeddings = true;
  ModelSpec quick;
  quick.vocab_size = 53;
  quick.hidden_size = 128, quick.intermediate_size = 384, quick.layers = 4;
  quick.heads = 4, quick.kv_heads = 2, quick.head_size = 32, quick.tie_embeddings = true;
  Decode(smol);
  Forward("quickstart", quick, DType::kFloat32, threads);
  Forward("smollm2-135m", smol, DType::kBFloat16, threads);

  const at::Tensor logits = at::randn({64, 49152}, at::TensorOptions().dtype(at::kBFloat16));
  const std::vector<int32_t> ids(64, 7);
  std::vector<float> lp(64), entropy(64);
  const auto device = AnyDevice();
  const device::Array on_device = ToDevice(*device, logits);
  const Timing ours = Time([&] { TokenLogProbs(*device, on_device.view, ids, 1.0F, lp, entropy); });
  const Timing theirs = Time([&] { (void)at::log_softmax(logits, 1, at::kFloat); });
  Print("log-prob and entropy 64x49152", ours, theirs.median, "at::log_softmax",
        "bf16, threads " + std::to_string(threads));
  return 0;
}

}  // namespace
}  // namespace tidepool::model

int main(int argc, char** argv) { return tidepool::model::Main(argc, argv); }
