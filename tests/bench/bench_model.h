#pragma once
// What the benchmarks of engine and trainer compute: models of real shapes with weights of noise, and where.

#include <memory>
#include <string>

#include "core/device/device.h"
#include "core/model/weights.h"

namespace tidepool::bench {

// "smollm2" (SmolLM2-135M), "0.5b" (Qwen2.5), "1b" and "8b" (Llama 3), "experts" (64 a layer, 8 a token: of
// no model, small enough for a processor), "tiny" (to try the program); their bfloat16 weights are noise.
// layers: 0 for its own number. Ends the program with the list where there is no such shape.
std::unique_ptr<model::Weights> NoiseModel(const std::string& shape, int64_t layers = 0);

// "cpu", or "cuda": the first GPU that libtidepool_cuda.so beside the program shows. Ends the program with
// code 77 and the reason where there is none.
std::shared_ptr<device::Device> BenchDevice(const std::string& kind);
// The processor with its threads, or the GPU.
std::string DescribeDevice(const device::Device& device);

// Bytes a second that a copy inside the device's memory reads and writes, the best of some.
double CopyBandwidth(device::Device& device);

}  // namespace tidepool::bench
