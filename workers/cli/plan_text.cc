#include "workers/cli/plan_text.h"

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <utility>
#include <vector>

#include "core/model/memory_use.h"
#include "core/policy/memory_use.h"
#include "workers/controller/found_gpus.h"
#include "workers/controller/host_memory.h"
#include "workers/controller/job.h"
#include "workers/device/disk_plan.h"
#include "workers/device/memory_plan.h"

namespace tidepool::workers {
namespace {

std::string Millions(int64_t value) {
  char text[32];
  std::snprintf(text, sizeof(text), value < 10'000'000 ? "%.2f M" : "%.0f M",
                static_cast<double>(value) * 1e-6);
  return text;
}

int64_t RowsPerStep(const JobConfig& c) { return c.train.groups_per_step * TrainedPerRow(c); }

}  // namespace

std::string DescribePlan(const JobConfig& c) {
  std::ostringstream out;
  out << "# plan\n";
  const int64_t devices = c.cluster.slots;
  out << "placement    " << Name(c.scheduler.placement)
      << (c.scheduler.policy.empty() ? "" : ", policy " + c.scheduler.policy) << ", " << devices
      << (devices == 1 ? " slot" : " slots") << " of " << c.cluster.threads_per_slot
      << (c.cluster.threads_per_slot == 1 ? " thread" : " threads") << " (" << Name(c.cluster.device)
      << ")\n";
  if (c.model.is_policy()) {
    out << "step         " << c.train.groups_per_step << " fragments of " << c.environment()->instances
        << " instances x " << c.rollout.steps_per_fragment
        << " steps = " << c.train.groups_per_step * c.rollout.max_new_tokens << " environment steps; "
        << c.train.steps << " steps\n"
        << "updates      " << c.train.epochs << " epochs of " << c.train.minibatches << " minibatches\n";
  } else if (c.rl() != nullptr) {
    const int64_t rows = RowsPerStep(c), ahead = c.scheduler.max_lag_versions + 1;
    const int64_t begun = c.train.groups_per_step * SamplesPerRow(c);
    out << "step         " << c.train.groups_per_step << " groups x " << c.rollout.group_size
        << " samples = " << rows << " sequences, at most " << rows * c.rollout.max_new_tokens
        << " new tokens; " << c.train.steps << " steps\n";
    out << "in flight    at most " << ahead * c.train.groups_per_step << " groups open (lag at most "
        << c.scheduler.max_lag_versions << " versions), " << std::min(c.rollout.max_concurrent, ahead * begun)
        << " samples at a time\n";
  } else {
    out << "step         " << c.train.groups_per_step << " rows; " << c.train.steps << " steps\n";
  }
  if (!c.model.is_policy())
    out << "micro-batch  at most " << c.train.micro_batch_tokens << " computed tokens"
        << (c.train.recompute ? ", activations recomputed" : "") << "\n";
  const auto plan = PlanMemory(c);
  if (!plan.ok()) {
    out << "memory       not predicted: " << plan.status().message() << "\n";
    return out.str();
  }
  const model::ModelSpec& m = plan->model;
  if (c.model.is_policy()) {
    const auto spec = policy::SpecOfJob(c);
    out << "model        mlp policy, " << (spec.ok() ? policy::ParameterCount(*spec) : 0) << " parameters\n";
  } else {
    out << "model        " << m.architecture << ", " << Millions(model::ParameterCount(m))
        << " parameters in " << Name(c.model.dtype) << ", " << m.layers << " layers, width " << m.hidden_size
        << ", vocabulary " << m.vocab_size << "\n";
  }
  if (plan->kv_cache_tokens > 0)
    out << "kv cache     " << plan->kv_cache_tokens << " tokens a rollout worker\n";
  out << "memory       predicted about " << BytesText(plan->total()) << " in all processes and /dev/shm\n";
  const auto line = [&](const std::string& name, int64_t bytes, const std::string& roles,
                        const std::vector<ProcessMemory::Part>& list) {
    std::string parts;
    for (const ProcessMemory::Part& part : list)
      parts += (parts.empty() ? ": " : ", ") + part.name + " " + BytesText(part.bytes);
    char head[64];
    std::snprintf(head, sizeof(head), "  %-14s %-10s", name.c_str(), BytesText(bytes).c_str());
    out << head << " " << roles << parts << "\n";
  };
  for (const ProcessMemory& p : plan->processes) {
    std::vector<ProcessMemory::Part> list;
    if (p.total() > p.process) list = {{"process", p.process}};
    if (p.on_gpu) {
      list.push_back({"weights", p.host_weights});
    } else {
      const auto parts = p.parts();
      list.insert(list.end(), parts.begin(), parts.end());
    }
    line(p.name, p.total(), p.roles + (p.offloads ? ", one at a time" : ""), list);
    if (p.on_gpu) line("  its GPU", p.gpu(), "memory of the GPU", p.parts());
  }
  if (!plan->shared_memory.empty()) {
    std::vector<ProcessMemory::Part> list;
    int64_t sum = 0;
    for (const MemoryPlan::SharedPart& part : plan->shared_memory) {
      list.push_back({part.name + " (" + part.key + (part.of_slots ? ", counted above)" : ")"), part.bytes});
      sum += part.bytes;
    }
    line("/dev/shm", sum, "of each host", list);
  }
  if (const auto disk = PlanDisk(c); disk.ok()) {
    out << "disk         predicted about " << BytesText(disk->total()) << " at the fullest\n";
    for (const DiskPlan::Part& part : disk->parts) {
      char head[32];
      std::snprintf(head, sizeof(head), "  %-10s ", BytesText(part.bytes).c_str());
      out << head << part.name << (part.estimated ? ", at most" : "") << "\n";
    }
  } else {
    out << "disk         not predicted: " << disk.status().message() << "\n";
  }
  return out.str();
}

void WarnOfMemory(const config::LoadedConfig& loaded) {
  if (const Status fits = CheckMemory(loaded); !fits.ok())
    std::fprintf(stderr, "warning: this run would be refused: %s\n", fits.message().c_str());
}

void WarnOfGpus(const config::LoadedConfig& loaded, const std::string& self_path) {
  if (loaded.config.cluster.device != DeviceKind::kCuda) return;
  const auto worker = FindWorker(loaded.config.cluster, self_path);
  const Status status = worker.ok() ? CheckGpus(loaded, *worker) : worker.status();
  if (!status.ok())
    std::fprintf(stderr, "warning: this run would be refused: %s\n", status.message().c_str());
}

}  // namespace tidepool::workers
