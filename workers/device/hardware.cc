#include "workers/device/hardware.h"

namespace tidepool::workers {

StatusOr<scheduler::HardwareProfile> LoadHardware(const std::string& name, const std::string& from) {
  TP_ASSIGN_OR_RETURN(const config::Profile p, config::LoadProfile(config::HardwarePath(name, from)));
  scheduler::HardwareProfile h;
  h.name = p.name;
  h.source = p.source;
  h.flops = p.tflops * 1e12;
  h.bytes_per_s = p.memory_gb_per_s * 1e9;
  h.memory_bytes = p.memory_gb * 1e9;
  h.link_bytes_per_s = p.link_gb_per_s * 1e9;
  h.net_bytes_per_s = p.net_gb_per_s * 1e9;
  h.host_bytes_per_s = p.host_gb_per_s * 1e9;
  h.step_overhead_s = p.step_overhead_ms / 1e3;
  TP_RETURN_IF_ERROR(scheduler::CheckProfile(h));
  return h;
}

scheduler::ModelShape ToShape(const config::WorkloadModel& m) {
  return {m.name,     m.parameters, m.active_parameters, m.layers,   m.heads,
          m.kv_heads, m.head_size,  m.weight_bytes,      m.kv_bytes, m.kv_bytes_per_token};
}

StatusOr<PaceModel> LoadPaceModel(const std::string& path) {
  TP_ASSIGN_OR_RETURN(const config::Pace p, config::LoadPace(path));
  PaceModel out;
  out.name = p.name;
  TP_ASSIGN_OR_RETURN(out.hardware, LoadHardware(p.hardware, path));
  out.model = ToShape(p.model);
  out.devices_per_slot = p.devices_per_slot;
  out.token_factor = p.token_factor;
  out.engine_efficiency = p.engine_efficiency;
  out.train_efficiency = p.train_efficiency;
  out.measured = p;
  return out;
}

}  // namespace tidepool::workers
