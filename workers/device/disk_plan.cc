#include "workers/device/disk_plan.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <utility>

#include "core/config/load.h"
#include "core/model/memory_use.h"
#include "core/model/routing.h"
#include "core/observe/samples_writer.h"
#include "core/policy/spec.h"
#include "core/storage/disk_use.h"

namespace tidepool::workers {
namespace {

constexpr int64_t kDiskMiB = int64_t{1} << 20;
constexpr int64_t kPayloadFile = 64 * kDiskMiB;  // the unit in which trajectories are deleted
// Of a response's token: id, log-probability, kept mass (core/sample/codec.h). Of a prompt's: id.
constexpr int64_t kResponseTokenBytes = 12, kPromptTokenBytes = 4;
// Measured with configs/test/rl_colocated.yaml, 40 steps: the journal has 765 bytes a sample of three chunks,
// and metrics, tb/, trace/ and logs/ have 5.5 KB a step.
constexpr int64_t kJournalSampleBytes = 800, kStepBytes = 6 << 10;
constexpr int64_t kSampleTokenBytes = 40;  // of samples/step_N.jsonl, in decimal digits

std::string Counted(int64_t n, const std::string& what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

struct RowSize {
  int64_t payload = 0, text = 0;  // bytes of a sample in payload/ and samples/
};
StatusOr<RowSize> SizeOfRow(const JobConfig& c, const model::ModelSpec& m) {
  if (c.rl() == nullptr) return RowSize{};  // rows of data are not stored again
  if (c.model.is_policy()) {
    TP_ASSIGN_OR_RETURN(const policy::PolicySpec spec, policy::SpecOfJob(c));
    // Observation, action, log-probability, reward, value and flags of each step.
    const int64_t cell = 4 * (spec.observation_size + spec.action_size() + 5);
    return RowSize{c.rollout.max_new_tokens * cell, 0};
  }
  const int64_t response = std::min(c.rollout.max_new_tokens, m.max_position);
  const int64_t prompt = std::min(c.data.max_prompt_tokens, m.max_position);
  const int64_t routing = c.rollout.record_routing ? model::RoutingBytes(m) : 0;
  return RowSize{prompt * kPromptTokenBytes + response * (kResponseTokenBytes + routing),
                 (prompt + response) * kSampleTokenBytes + observe::kSampleFieldBytes};
}

}  // namespace

std::string BytesText(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) value /= 1024, ++unit;
  char text[48];
  std::snprintf(text, sizeof(text), unit == 0 || value >= 100 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

int64_t DiskPlan::total() const {
  int64_t sum = 0;
  for (const Part& part : parts) sum += part.bytes;
  return sum;
}

int64_t DiskPlan::certain() const {
  int64_t sum = 0;
  for (const Part& part : parts) sum += part.estimated ? 0 : part.bytes;
  return sum;
}

std::string DiskPlan::Text(bool with_estimates) const {
  std::string text;
  for (const Part& part : parts) {
    if (with_estimates || !part.estimated)
      text += (text.empty() ? "" : ", ") + std::string(part.estimated ? "at most " : "") +
              BytesText(part.bytes) + " for " + part.name;
  }
  return text;
}

storage::SpaceNeed RoomFor(const DiskPlan& plan, const JobConfig& config, const std::string& goes_on) {
  storage::SpaceNeed need{plan.certain(), plan.Text(false), config.checkpoint.keep > 2};
  if (goes_on.empty()) return need;
  const storage::RunPaths has(goes_on);
  for (const int64_t bytes : storage::FreedBytes({has.checkpoints(), has.warm_start()})) need.bytes -= bytes;
  return need;
}

std::string SpaceWarning(const DiskPlan& plan, const std::string& dir, int64_t free_bytes) {
  if (free_bytes >= plan.total()) return "";
  return dir + ": the disk has " + BytesText(free_bytes) + " free, the run may take up to " +
         BytesText(plan.total()) + " (" + plan.Text(true) + ")";
}

StatusOr<DiskPlan> PlanDisk(const JobConfig& c) {
  TP_ASSIGN_OR_RETURN(const MemoryPlan memory, PlanMemory(c));
  DiskPlan plan;
  const auto add = [&](std::string name, int64_t bytes, bool estimated = false) {
    if (bytes > 0) plan.parts.push_back({std::move(name), bytes, estimated});
  };
  const int64_t steps = c.train.steps, every = c.checkpoint.every_steps;
  // That of step 0 holds moments that are zero, which take no room, and the base model by another name.
  const int64_t written = every > 0 ? (steps + every - 1) / every : 1;
  const int64_t at_a_time = std::min(written, c.checkpoint.keep + 1);
  if (!c.checkpoint.store.empty()) {
    // The files are in the store; one checkpoint at a time is on its way there.
    add("a checkpoint on its way to checkpoint.store",
        c.checkpoint.staging_dir.empty() ? memory.checkpoint_bytes : 0);
  } else {
    add(Counted(at_a_time, "checkpoint") + " of " + BytesText(memory.checkpoint_bytes) +
            " (checkpoint.keep " + std::to_string(c.checkpoint.keep) +
            (at_a_time > c.checkpoint.keep ? ", and the one being written)" : ")"),
        at_a_time * memory.checkpoint_bytes);
  }
  const bool adapter = c.model.trains_adapter();
  add("the first weights", !c.model.init ? 0
                           : adapter     ? model::WeightBytes(memory.model, c.model.dtype)
                                         : memory.weights_bytes);
  add("final/", c.checkpoint.save_final ? memory.weights_bytes : 0);
  // The one that is replaced stays until the new one is whole.
  add(written > 1 ? "best/ (checkpoint.keep_best) and the one that it replaces"
                  : "best/ (checkpoint.keep_best)",
      c.checkpoint.keep_best.empty() ? 0 : memory.weights_bytes * (written > 1 ? 2 : 1));
  int64_t offload = 0;
  for (const ProcessMemory& p : memory.processes) offload += p.offloads ? p.kept() : 0;
  add("parked optimizer state (train.offload_optimizer)", offload);

  TP_ASSIGN_OR_RETURN(const RowSize row, SizeOfRow(c, memory.model));
  const int64_t rows = c.train.groups_per_step * SamplesPerRow(c);
  // Samples since the oldest checkpoint, and those under way.
  const int64_t kept_steps =
      std::min(steps, (every > 0 ? c.checkpoint.keep * every : steps) + c.scheduler.max_lag_versions + 1);
  add("payload/", std::min(kept_steps * rows * row.payload + kPayloadFile, steps * rows * row.payload),
      /*estimated=*/true);
  const int64_t shown = c.observe.samples_per_step < 0 ? rows : std::min(rows, c.observe.samples_per_step);
  add("samples/", steps * shown * row.text, /*estimated=*/true);
  add("journal, metrics and logs", steps * (rows * kJournalSampleBytes + kStepBytes) + kDiskMiB,
      /*estimated=*/true);

  if (c.model.init && !c.model.init->warm_start.empty()) {
    TP_ASSIGN_OR_RETURN(config::LoadedConfig warm, config::LoadWarmStart(c));
    const UsualLimitFor limit(config::UsualLimitOf(warm));
    warm.config.model = c.model;
    warm.config.model.init->warm_start.clear();
    TP_ASSIGN_OR_RETURN(const DiskPlan first, PlanDisk(warm.config));
    add("warm_start/", first.certain());
    add("records and samples of warm_start/", first.total() - first.certain(), /*estimated=*/true);
  }
  std::ranges::stable_sort(plan.parts, std::ranges::greater{}, &DiskPlan::Part::bytes);
  return plan;
}

}  // namespace tidepool::workers
