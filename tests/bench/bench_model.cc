#include "tests/bench/bench_model.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <utility>

#include "core/base/check.h"
#include "core/cuda/cuda_module.h"
#include "core/device/cpu/cpu_device.h"

namespace tidepool::bench {
namespace {

constexpr int kSkipped = 77;  // as ctest's SKIP_RETURN_CODE

std::string gpu_name;  // of the device that was made

model::ModelSpec SpecOf(const std::string& shape) {
  model::ModelSpec s;
  const auto sizes = [&](int64_t vocab, int64_t d, int64_t ff, int64_t layers, int64_t heads, int64_t kv,
                         int64_t head_size, bool tied) {
    s.vocab_size = vocab, s.hidden_size = d, s.intermediate_size = ff, s.layers = layers;
    s.heads = heads, s.kv_heads = kv, s.head_size = head_size, s.tie_embeddings = tied;
    s.max_position = 8192;
  };
  if (shape == "smollm2") {
    sizes(49152, 576, 1536, 30, 9, 3, 64, true);
  } else if (shape == "0.5b") {
    sizes(151936, 896, 4864, 24, 14, 2, 64, true);
    s.architecture = "qwen2", s.qkv_bias = true;
  } else if (shape == "1b") {
    sizes(128256, 2048, 8192, 16, 32, 8, 64, true);
  } else if (shape == "8b") {
    sizes(128256, 4096, 14336, 32, 32, 8, 128, false);
  } else if (shape == "experts") {
    sizes(49152, 576, 1536, 8, 9, 3, 64, true);
    s.architecture = "qwen3_moe", s.qk_norm = true;
    s.moe = {.experts = 64, .experts_per_token = 8, .intermediate_size = 192, .renormalize = true};
  } else if (shape == "tiny") {
    sizes(64, 32, 64, 1, 2, 1, 16, true);
  } else {
    std::fprintf(stderr, "--shape %s: expected smollm2, 0.5b, 1b, 8b, experts or tiny\n", shape.c_str());
    std::exit(2);
  }
  return s;
}

}  // namespace

std::unique_ptr<model::Weights> NoiseModel(const std::string& shape, int64_t layers) {
  model::ModelSpec spec = SpecOf(shape);
  if (layers > 0) spec.layers = layers;
  auto weights = model::Weights::Create(spec, model::DType::kBFloat16);
  TP_CHECK(weights.ok()) << weights.status().ToString();
  if (spec.hidden_size < 2048) {
    (*weights)->Initialize(1, 0.04);
    return std::move(*weights);
  }
  // Drawing billions of numbers takes minutes: those of a small model stand behind each other.
  const auto few = NoiseModel("smollm2");
  const std::span<std::byte> all = (*weights)->bytes();
  const std::span<const std::byte> noise = std::as_const(*few).bytes();
  for (size_t at = 0; at < all.size(); at += noise.size())
    std::memcpy(all.data() + at, noise.data(), std::min(noise.size(), all.size() - at));
  return std::move(*weights);
}

std::shared_ptr<device::Device> BenchDevice(const std::string& kind) {
  if (kind == "cpu") return std::make_shared<device::CpuDevice>();
  if (kind != "cuda") {
    std::fprintf(stderr, "--device %s: expected cpu or cuda\n", kind.c_str());
    std::exit(2);
  }
  const auto skipped = [](const Status& why) {
    std::fprintf(stderr, "SKIPPED: %s\n", why.message().c_str());
    std::exit(kSkipped);
  };
  const StatusOr<cuda::CudaModule> module = cuda::CudaModule::LoadBesideProgram();
  if (!module.ok()) skipped(module.status());
  const StatusOr<cuda::Gpu> gpu = module->Describe(0);
  if (!gpu.ok()) skipped(gpu.status());
  if (const Status usable = module->CheckUsable(*gpu); !usable.ok())
    skipped(usable.At("GPU 0 (" + gpu->name + ")"));
  StatusOr<std::unique_ptr<device::Device>> device = module->MakeDevice(0);
  if (!device.ok()) skipped(device.status());
  gpu_name = gpu->name;
  return std::move(*device);
}

std::string DescribeDevice(const device::Device& device) {
  if (!device.host_memory()) return gpu_name;
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name"))
      return line.substr(line.find(':') + 2) + ", " + std::to_string(at::get_num_threads()) + " threads";
  }
  return "unknown";
}

double CopyBandwidth(device::Device& device) {
  const int64_t free = device.free_bytes().value_or(int64_t{1} << 30);
  const int64_t bytes = std::min(int64_t{2} << 30, free / 4);
  const std::shared_ptr<device::Buffer> from = device.Need(bytes), to = device.Need(bytes);
  double best = 1e9;
  for (int i = 0; i < 9; ++i) {
    device.Synchronize();
    const auto start = std::chrono::steady_clock::now();
    device.Copy(to->data(), from->data(), bytes);
    device.Synchronize();
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return 2.0 * static_cast<double>(bytes) / best;
}

}  // namespace tidepool::bench
