#pragma once
// Hardware and models as the cost model (scheduler/cost_model.h) takes them. Read from configs/hardware,
// configs/pace and configs/simulate by core/config/workload.h.

#include <cstdint>
#include <string>

namespace tidepool {

struct HardwareProfile {
  std::string name, source;  // source: where the numbers are from
  double flops = 0;          // sustained, of one device, FLOP/s
  double bytes_per_s = 0;    // its memory
  double memory_bytes = 0;
  double link_bytes_per_s = 0;  // to another device of the host
  double net_bytes_per_s = 0;   // to another host
  double host_bytes_per_s = 0;  // to host memory
  double step_overhead_s = 0;   // t0: launches, scheduling, sampling
  double collective_s = 0;      // of a collective among slots, beside its bytes
  double train_efficiency = 0;  // of the rate of generation, in training; 0: not known
  double part_efficiency =
      1;  // of the rate of training with a whole model, with a part of one (train.mesh.tp)
};

struct ModelShape {
  std::string name;
  double parameters = 0, active_parameters = 0;  // active: of one token (mixture of experts)
  int64_t layers = 0, heads = 0, kv_heads = 0, head_size = 0;
  double weight_bytes = 2, kv_bytes = 2;  // of a parameter, of a KV element
  double kv_bytes_per_token = 0;          // > 0: instead of 2 L Hkv D (compressed KV)
  int64_t hidden_size = 0;                // of the residual stream; 0: that of all heads
  [[nodiscard]] double KvBytes() const {
    return kv_bytes_per_token > 0 ? kv_bytes_per_token
                                  : 2.0 * static_cast<double>(layers * kv_heads * head_size) * kv_bytes;
  }
};

}  // namespace tidepool
