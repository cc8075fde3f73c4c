// Forward of the decoder by number of rows, on random weights of SmolLM2-135M's shape in bfloat16 and of the
// quickstart's in float32: rows of 16 sequences with 48 keys each, head included. The baseline is the same
// matrix products alone by LibTorch in the same run, so ratio = share of the time that is products (1: the
// rest is free). Also the log-prob kernel against at::log_softmax. Deterministic mode, as in training runs.
// Prints one JSON object a case on standard output and a table on standard error.
//
//   model_bench [--threads 2]

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "core/model/decoder.h"
#include "core/model/weights.h"

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
  const auto from = std::chrono::steady_clock::now();
  const auto blocks = RowBlocks::For(spec, dtype);
  TP_CHECK(blocks.ok()) << blocks.status().ToString();
  std::fprintf(
      stderr, "%s: row blocks found in %.2f s%s%s\n", label.c_str(),
      std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count(),
      (*blocks)->limited().empty() ? "" : "; smaller than the largest: ", (*blocks)->limited().c_str());
  const Decoder decoder(*weights, {.row_blocks = *blocks});
  const auto type = at::TensorOptions().dtype(dtype == DType::kFloat32 ? at::kFloat : at::kBFloat16);
  const std::string config =
      label + (dtype == DType::kFloat32 ? ", fp32" : ", bf16") + ", threads " + std::to_string(threads);
  constexpr int32_t kKeys = 48;
  for (const int32_t rows : {1, 16, 64, 256, 1024}) {
    std::vector<int32_t> ids, positions, slots, first_run, lengths;
    std::vector<KvRun> runs;
    for (int32_t r = 0; r < rows; ++r) {
      ids.push_back(r % static_cast<int32_t>(spec.vocab_size));
      positions.push_back(kKeys - 1);
      slots.push_back(r * kKeys + kKeys - 1);
      first_run.push_back(r);
      lengths.push_back(kKeys);
      runs.push_back({r * kKeys, kKeys});
    }
    at::Tensor k = at::zeros({spec.layers, int64_t{rows} * kKeys, spec.kv_heads, spec.head_size}, type),
               v = at::zeros(k.sizes(), type);
    const Timing ours = Time([&] {
      (void)decoder.Logits(decoder.Forward({ids, positions, slots, first_run, lengths, runs}, {&k, &v}));
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
  Forward("quickstart", quick, DType::kFloat32, threads);
  Forward("smollm2-135m", smol, DType::kBFloat16, threads);

  const at::Tensor logits = at::randn({64, 49152}, at::TensorOptions().dtype(at::kBFloat16));
  const std::vector<int32_t> ids(64, 7);
  std::vector<float> lp(64), entropy(64);
  const Timing ours = Time([&] { TokenLogProbs(logits, ids, 1.0F, lp, entropy); });
  const Timing theirs = Time([&] { (void)at::log_softmax(logits, 1, at::kFloat); });
  Print("log-prob and entropy 64x49152", ours, theirs.median, "at::log_softmax",
        "bf16, threads " + std::to_string(threads));
  return 0;
}

}  // namespace
}  // namespace tidepool::model

int main(int argc, char** argv) { return tidepool::model::Main(argc, argv); }
