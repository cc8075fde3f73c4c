#include "workers/device/gpus.h"

#include <utility>

#include "core/base/host_name.h"
#include "workers/controller/found_gpus.h"

namespace tidepool::workers {

std::string DescribeGpus() {
  FoundGpus found;
  const StatusOr<cuda::CudaModule> module = cuda::CudaModule::LoadBesideProgram();
  if (!module.ok()) {
    found.problem = module.status().message();
    return ToJson(found);
  }
  for (int i = 0; i < module->device_count(); ++i) {
    FoundGpu gpu;
    if (const StatusOr<cuda::Gpu> facts = module->Describe(i); facts.ok()) {
      gpu = {facts->name, cuda::CapabilityText(facts->capability), facts->free_bytes, facts->total_bytes,
             module->CheckUsable(*facts).message()};
    } else {
      gpu.problem = facts.status().message();
    }
    found.gpus.push_back(std::move(gpu));
  }
  found.sums = module->has_nccl();
  return ToJson(found);
}

StatusOr<SlotDevice> DeviceOfSlot(DeviceKind kind, int64_t gpu, bool batch_invariant) {
  SlotDevice slot;
  if (kind == DeviceKind::kCpu) return slot;
  TP_ASSIGN_OR_RETURN(const cuda::CudaModule module, cuda::CudaModule::LoadBesideProgram());
  if (gpu < 0 || gpu >= module.device_count()) {
    return FailedPrecondition("this worker is for GPU " + std::to_string(gpu) + ", and the driver shows " +
                              std::to_string(module.device_count()) + " on host " + HostName() +
                              "; start it with --gpu, lower cluster.slots or the --slots of `tidepool host`, "
                              "or see CUDA_VISIBLE_DEVICES");
  }
  const int index = static_cast<int>(gpu);
  TP_ASSIGN_OR_RETURN(const cuda::Gpu facts, module.Describe(index));
  TP_RETURN_IF_ERROR(module.CheckUsable(facts).At("GPU " + std::to_string(index) + " (" + facts.name + ")"));
  TP_ASSIGN_OR_RETURN(std::unique_ptr<device::Device> made, module.MakeDevice(index, batch_invariant));
  slot.gpu = std::move(made);
  slot.make = [gpu = slot.gpu] { return gpu; };
  if (module.has_nccl() && !batch_invariant) {
    slot.make_sum = [module, index](const std::shared_ptr<comm::Rendezvous>& rendezvous, int rank, int size,
                                    std::chrono::milliseconds timeout) {
      return module.MakeNcclSum(index, rendezvous, rank, size, timeout);
    };
  }
  return slot;
}

}  // namespace tidepool::workers
