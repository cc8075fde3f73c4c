#include "workers/controller/found_gpus.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/host_name.h"
#include "workers/controller/program_output.h"
#include "workers/device/disk_plan.h"

namespace tidepool::workers {
namespace {

constexpr int kPatienceSeconds = 120;  // LibTorch's CUDA libraries are gigabytes, and a disk may be slow

Status Refuse(const config::LoadedConfig& loaded, const char* key, const std::string& what) {
  const Status status = FailedPrecondition(std::string(key) + ": " + what);
  const config::Origin origin = loaded.OriginOf(key);
  return origin.kind == config::Origin::Kind::kDefault ? status : status.At(origin.Where());
}

// key: what asks for so many slots.
Status CheckCount(const config::LoadedConfig& loaded, const FoundGpus& found, const char* key,
                  int64_t slots) {
  if (!found.problem.empty()) return Refuse(loaded, "cluster.device", found.problem);
  if (slots <= std::ssize(found.gpus)) return OkStatus();
  return Refuse(loaded, key,
                "is " + std::to_string(slots) +
                    ", and each slot of cluster.device: cuda is a GPU of its own, but the "
                    "driver shows " +
                    std::to_string(found.gpus.size()) + " on host " + HostName() +
                    "; lower it, or see CUDA_VISIBLE_DEVICES");
}

// requires that so many were found
Status CheckEach(const config::LoadedConfig& loaded, const FoundGpus& found, int64_t first, int64_t slots,
                 SlotUse use) {
  const auto name = [&](int64_t i) {
    return "GPU " + std::to_string(i) + " (" + found.gpus[static_cast<size_t>(i)].name + ")";
  };
  for (int64_t i = 0; i < slots; ++i) {
    const FoundGpu& gpu = found.gpus[static_cast<size_t>(i)];
    if (!gpu.problem.empty()) return Refuse(loaded, "cluster.device", name(i) + ": " + gpu.problem);
  }
  const auto plan = PlanMemory(loaded.config, use);
  if (!plan.ok()) return OkStatus();  // a worker says what is wrong
  for (int64_t i = 0; i < slots; ++i) {
    const FoundGpu& gpu = found.gpus[static_cast<size_t>(i)];
    const ProcessMemory& process = plan->processes[static_cast<size_t>(first + i)];
    if (process.gpu() - process.context <= gpu.free_bytes) continue;  // free beside a context
    return Refuse(loaded, "cluster.device",
                  name(i) + " has " + BytesText(gpu.free_bytes + process.context) + " free for " +
                      process.name + ", which needs about " + BytesText(process.gpu()) +
                      " there: " + process.PartsText());
  }
  return OkStatus();
}

}  // namespace

std::string ToJson(const FoundGpus& found) {
  nlohmann::ordered_json gpus = nlohmann::ordered_json::array();
  for (const FoundGpu& gpu : found.gpus) {
    gpus.push_back({{"name", gpu.name},
                    {"capability", gpu.capability},
                    {"free_bytes", gpu.free_bytes},
                    {"total_bytes", gpu.total_bytes},
                    {"problem", gpu.problem}});
  }
  const nlohmann::ordered_json all = {{"gpus", gpus}, {"problem", found.problem}, {"sums", found.sums}};
  return all.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

FoundGpus FindGpus(const std::string& worker_path) {
  const ProgramOutput said = RunProgram({worker_path, "gpus"}, kPatienceSeconds);
  // Libraries may have said something before it.
  const std::string line = said.text.substr(said.text.rfind('\n') + 1);
  const auto json = nlohmann::json::parse(line, nullptr, false);
  FoundGpus found;
  if (said.status != 0 || !json.is_object()) {
    found.problem = "tidepool-worker does not say which GPUs there are" +
                    (said.text.empty() ? " within " + std::to_string(kPatienceSeconds) + " s"
                                       : ": " + said.text.substr(0, 400)) +
                    "; use cluster.device: cpu";
    return found;
  }
  for (const auto& gpu : json.value("gpus", nlohmann::json::array())) {
    found.gpus.push_back({gpu.value("name", ""), gpu.value("capability", ""),
                          gpu.value("free_bytes", int64_t{0}), gpu.value("total_bytes", int64_t{0}),
                          gpu.value("problem", "")});
  }
  found.problem = json.value("problem", "");
  found.sums = json.value("sums", false);
  return found;
}

Status CheckGpus(const config::LoadedConfig& loaded, const std::string& worker_path, SlotUse use) {
  const ClusterConfig& cluster = loaded.config.cluster;
  // Hosts look for themselves, and so do workers that are started by hand.
  if (cluster.device != DeviceKind::kCuda || !cluster.launch_workers) return OkStatus();
  const bool may_lack = cluster.min_slots > 0;
  const int64_t least = may_lack ? cluster.min_slots : cluster.slots;
  const FoundGpus found = FindGpus(worker_path);
  TP_RETURN_IF_ERROR(CheckCount(loaded, found, may_lack ? "cluster.min_slots" : "cluster.slots", least));
  const int64_t slots = std::min(cluster.slots, std::ssize(found.gpus));
  return CheckEach(loaded, found, 0, slots, use);
}

Status CheckHostGpus(const config::LoadedConfig& loaded, const std::string& worker_path, int64_t first,
                     int64_t slots) {
  if (loaded.config.cluster.device != DeviceKind::kCuda || slots == 0) return OkStatus();
  const FoundGpus found = FindGpus(worker_path);
  const Status count = CheckCount(loaded, found, "--slots", slots);
  if (found.problem.empty() && !found.gpus.empty()) TP_RETURN_IF_ERROR(count);
  const Status passing = count.ok() ? CheckEach(loaded, found, first, slots, SlotUse::kJob) : count;
  return passing.ok() ? passing : Unavailable(passing.message());
}

}  // namespace tidepool::workers
