#pragma once
// Arrays of a device beside tensors of the host, for tests.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <memory>

#include "core/model/decoder.h"
#include "core/model/weights.h"
#include "tests/core/device/test_device.h"

namespace tidepool::model {

inline std::shared_ptr<device::Device> AnyDevice() { return device::TestDevice(); }

inline at::Tensor Tensor(device::Device& device, const device::View& view) {
  at::Tensor t =
      at::empty({view.rows, view.cols}, view.dtype == DType::kFloat32 ? at::kFloat : at::kBFloat16);
  device.Download(t.data_ptr(), view.data, view.bytes());
  return t;
}
inline device::Array ToDevice(device::Device& device, const at::Tensor& t) {
  const at::Tensor dense = t.contiguous();
  device::Array a = device.Take(dense.size(0), dense.size(1),
                                dense.scalar_type() == at::kFloat ? DType::kFloat32 : DType::kBFloat16);
  device.Upload(a.view.data, dense.const_data_ptr(), a.view.bytes());
  return a;
}

inline std::vector<float> ValuesOf(device::Device& device, const Weights& weights, Gradients& gradients) {
  return device.Read(gradients.data(), weights.elements());
}

struct KvOnDevice {
  KvOnDevice(device::Device& device, const ModelSpec& s, DType dtype, int64_t slots)
      : k(device.Take(s.layers * slots, s.kv_heads * s.head_size, dtype)),
        v(device.Take(s.layers * slots, s.kv_heads * s.head_size, dtype)) {}
  [[nodiscard]] KvMemory view() const { return {k.view, v.view}; }
  device::Array k, v;
};

}  // namespace tidepool::model
