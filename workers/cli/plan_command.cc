// tidepool plan: which layout a job should have, and a config that has it.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/base/real_file_system.h"
#include "core/config/extending.h"
#include "core/config/load.h"
#include "core/config/resume.h"
#include "core/config/schema.h"
#include "workers/cli/command.h"
#include "workers/cli/layout_search.h"
#include "workers/cli/sim_job.h"
#include "workers/cli/table.h"
#include "workers/device/disk_plan.h"
#include "workers/device/memory_proof.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct PlanOptions {
  std::string file, apply;
  std::vector<std::string> overrides;
  SimJobOptions of_job;
  double memory_gb = 0;
  int64_t top = 5, pick = 1;
  bool json = false;
};

// What slots have, and where that is from.
std::pair<LayoutRoom, std::string> RoomFor(const JobConfig& config, const scheduler::SimJob& job,
                                           const PlanOptions& o) {
  const double of_profile = job.hardware.memory_bytes * static_cast<double>(job.devices_per_slot);
  const auto slot = [](double bytes, const std::string& from) {
    const LayoutRoom room{.slot_bytes = static_cast<int64_t>(bytes)};
    return std::pair(room, BytesText(room.slot_bytes) + " a slot, of " + from);
  };
  if (o.memory_gb > 0) return slot(o.memory_gb * 1e9, "--memory-gb");
  if (config.cluster.device == DeviceKind::kCuda || !o.of_job.hardware.empty())
    return slot(of_profile, "that profile (--memory-gb says otherwise)");
  const LayoutRoom room{.machine_bytes = MachineMemory()};
  return {room, BytesText(room.machine_bytes) +
                    " of this machine for all slots, other processes and /dev/shm "
                    "(--memory-gb says what a slot has)"};
}

std::string NearestText(const TooLarge& t, int64_t slots) {
  return LayoutText(t.layout, slots) + ": " + t.slot + " needs " + BytesText(t.bytes) + ", " +
         BytesText(t.missing) + " more than there are: " + t.parts;
}

std::string TrainText(const Layout& l, int64_t slots) {
  const bool some = l.placement == PlacementKind::kSplit || l.placement == PlacementKind::kMultiplexed;
  if (l.placement == PlacementKind::kElastic) return "up to " + std::to_string(slots);
  return std::to_string(some ? l.actor_slots : slots) + " of " + std::to_string(slots);
}

void PrintTable(const FoundLayouts& found, const std::vector<const PlannedLayout*>& shown, int64_t slots) {
  std::vector<Cells> rows = {{"", "placement", "train", "tp", "zero", "micro-batch", "s a step", "tokens/s",
                              "memory of a training slot", "of another"}};
  for (const PlannedLayout* p : shown) {
    const Layout& l = p->layout;
    const auto place = static_cast<size_t>(p - found.layouts.data()) + 1;
    rows.push_back({std::to_string(place), Name(l.placement), TrainText(l, slots), std::to_string(l.tp),
                    std::to_string(l.zero), std::to_string(l.micro_batch_tokens),
                    Formatted("%.3g", p->report.step_s), Formatted("%.0f", p->tokens_per_s),
                    BytesText(p->train_bytes), p->other_bytes > 0 ? BytesText(p->other_bytes) : "-"});
  }
  std::printf("%s\n", TableText(rows).c_str());
  for (size_t i = 0; i < shown.size(); ++i) {
    std::printf("%s. %sbounded by %s\n", rows[i + 1][0].c_str(), shown[i]->given ? "as given; " : "",
                shown[i]->bound.c_str());
  }
}

void PrintLeftOut(const FoundLayouts& found, int64_t slots) {
  if (found.given_too_large)
    std::printf("\nThe layout as given does not fit: %s\n",
                NearestText(*found.given_too_large, slots).c_str());
  if (found.given_refused)
    std::printf("\nThe layout as given cannot run: %s\n", found.given_refused->c_str());
  int64_t large = 0, refused = 0;
  for (const TooLarge& t : found.too_large) large += t.count;
  for (const auto& [why, count] : found.refused) refused += count;
  std::printf("\n%ld layouts were tried.\n", static_cast<long>(found.tried));
  if (large > 0) {
    std::printf("%ld do not fit:\n", static_cast<long>(large));
    for (const TooLarge& t : found.too_large) {
      std::printf("  %ld for their %s; the nearest is %s\n", static_cast<long>(t.count), t.part.c_str(),
                  NearestText(t, slots).c_str());
    }
  }
  if (refused > 0) {
    std::printf("%ld are refused by rules of the config:\n", static_cast<long>(refused));
    for (const auto& [why, count] : found.refused)
      std::printf("  %ld: %s\n", static_cast<long>(count), why.c_str());
  }
  if (found.not_rehearsed > 0) {
    std::printf(
        "%ld that fit were not rehearsed: by estimate others of their placement and number of training slots "
        "are faster, or enough had been simulated.\n",
        static_cast<long>(found.not_rehearsed));
  }
}

Json JsonOf(const TooLarge& t, int64_t slots) {
  return {{"count", t.count}, {"part", t.part},   {"nearest", LayoutText(t.layout, slots)},
          {"slot", t.slot},   {"bytes", t.bytes}, {"missing_bytes", t.missing},
          {"parts", t.parts}};
}

void PrintJson(const FoundLayouts& found, const std::vector<const PlannedLayout*>& shown,
               const config::LoadedConfig& loaded, const scheduler::SimJob& job, const LayoutRoom& room) {
  const int64_t slots = loaded.config.cluster.slots;
  Json layouts = Json::array(), refused = Json::array(), large = Json::array();
  for (const PlannedLayout* p : shown) {
    const Layout& l = p->layout;
    Json keys = Json::object();
    for (const auto& [key, value] : LayoutKeys(loaded.config, l)) keys[key] = value;
    layouts.push_back({{"placement", Name(l.placement)},
                       {"actor_slots", l.actor_slots},
                       {"tp", l.tp},
                       {"zero", l.zero},
                       {"micro_batch_tokens", l.micro_batch_tokens},
                       {"given", p->given},
                       {"step_s", p->report.step_s},
                       {"tokens_per_s", p->tokens_per_s},
                       {"train_s", p->train_s},
                       {"exchange_s", p->exchange_s},
                       {"train_slot_bytes", p->train_bytes},
                       {"other_slot_bytes", p->other_bytes},
                       {"bound", p->bound},
                       {"changes", keys}});
  }
  for (const auto& [why, count] : found.refused) refused.push_back({{"count", count}, {"why", why}});
  for (const TooLarge& t : found.too_large) large.push_back(JsonOf(t, slots));
  const Json out = {
      {"name", job.name},
      {"slots", slots},
      {"hardware", job.hardware.name},
      {room.slot_bytes > 0 ? "slot_bytes" : "machine_bytes",
       room.slot_bytes > 0 ? room.slot_bytes : room.machine_bytes},
      {"tried", found.tried},
      {"layouts", std::move(layouts)},
      {"too_large", std::move(large)},
      {"given_too_large", found.given_too_large ? JsonOf(*found.given_too_large, slots) : Json(nullptr)},
      {"given_refused", found.given_refused ? Json(*found.given_refused) : Json(nullptr)},
      {"refused", std::move(refused)},
      {"not_rehearsed", found.not_rehearsed}};
  std::printf("%s\n", out.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
}

// The value of an override as the new file has to say it: a path is what it was found to be, whatever the
// folder from which the file is read.
std::string ValueFor(const config::LoadedConfig& loaded, const std::string& key, const std::string& typed) {
  const config::Key* known = config::FindKey(key);
  if (known == nullptr || !known->is_path || key.find('[') != std::string::npos) return typed;
  JobConfig config = loaded.config;
  return config::ValueText(known->field(config, 0));
}

// How a file in the folder of `from` names `to`. Where they have only the root in common, by its whole path.
std::string NameFrom(const std::string& from, const std::string& to) {
  std::error_code error;
  const fs::path folder = fs::weakly_canonical(fs::absolute(from).parent_path(), error),
                 target = fs::weakly_canonical(fs::absolute(to), error);
  auto a = folder.begin(), b = target.begin();
  for (; a != folder.end() && b != target.end() && *a == *b; ++a) ++b;
  const bool apart = std::distance(folder.begin(), a) <= 1;
  return (apart ? target : target.lexically_relative(folder)).string();
}

// Writes the config of `chosen` on top of the one that was given. Nothing is written that would be read as
// another job than the one that was planned.
Status Apply(const PlanOptions& o, const config::LoadedConfig& loaded, const PlannedLayout& chosen,
             const std::string& times) {
  const int64_t slots = loaded.config.cluster.slots;
  std::string typed;
  for (const std::string& override : loaded.overrides) typed += " " + override;
  config::Extension file{
      .extends = NameFrom(o.apply, o.file),
      .head = {"Written by `tidepool plan " + o.file + typed + "`: " + LayoutText(chosen.layout, slots) + ".",
               "Predicted: " + Formatted("%.3g", chosen.report.step_s) + " s a step, " +
                   BytesText(chosen.train_bytes) + " on a slot that trains, by times of " + times +
                   ". Bounded by " + chosen.bound + "."},
      .values = {}};
  for (const std::string& override : loaded.overrides) {
    const size_t equals = override.find('=');
    const std::string key = override.substr(0, equals);
    file.values.push_back({key, ValueFor(loaded, key, override.substr(equals + 1)), "given to plan"});
  }
  const auto keys = LayoutKeys(loaded.config, chosen.layout);
  JobConfig was = loaded.config;
  std::vector<std::string> overrides = loaded.overrides;
  for (const auto& [key, value] : keys) {
    overrides.push_back(key + "=" + value);
    file.values.push_back(
        {key, value, "chosen by plan; was " + config::ValueText(config::FindKey(key)->field(was, 0))});
  }
  TP_ASSIGN_OR_RETURN(const config::LoadedConfig planned, config::LoadConfig(o.file, overrides));
  const auto text = config::ExtendingYaml(file);
  const auto read = text.ok() ? config::LoadConfigText(*text, o.apply) : text.status();
  if (!read.ok())
    return Status(read.status().code(),
                  "--apply: " + o.apply +
                      " could not say what was given to plan; write it into a config first: " +
                      read.status().message());
  for (const config::Difference& d : config::Differences(planned.config, read->config)) {
    return InvalidArgument("--apply: " + o.apply +
                           " could not say what was given to plan; write it into a config "
                           "first: " +
                           d.ToString());
  }
  RealFileSystem real;
  TP_ASSIGN_OR_RETURN(const auto out, real.CreateNew(o.apply, FileAccess::kShared));
  TP_RETURN_IF_ERROR(out->Append(*text));
  std::fprintf(o.json ? stderr : stdout, "\nwrote  %s: %s\ntry    %s\n", o.apply.c_str(),
               LayoutText(chosen.layout, slots).c_str(),
               ("tidepool train " + o.apply + " --dry-run").c_str());
  return OkStatus();
}

Status CheckTarget(const PlanOptions& o) {
  if (o.apply.empty())
    return o.pick == 1 ? OkStatus() : InvalidArgument("--pick: says what --apply writes; give --apply too");
  std::error_code error;
  if (fs::exists(fs::symlink_status(o.apply, error)))
    return AlreadyExists("--apply: " + o.apply + " is there already; name a new file");
  const fs::path folder = fs::path(o.apply).parent_path();
  if (!folder.empty() && !fs::is_directory(folder, error))
    return NotFound("--apply: " + folder.string() + " is no folder; make it, or name a file elsewhere");
  return OkStatus();
}

Status PlanJob(const PlanOptions& o) {
  TP_RETURN_IF_ERROR(CheckTarget(o));
  TP_ASSIGN_OR_RETURN(config::LoadedConfig loaded, config::LoadConfig(o.file, o.overrides));
  const JobConfig& config = loaded.config;
  if (config.model.is_policy())
    return InvalidArgument(loaded.OriginOf("model.policy").Where() +
                           ": model.policy: a policy of control tasks has no layout to search; its slots are "
                           "cores for its environments");
  TP_RETURN_IF_ERROR(CheckGames(loaded));
  TP_ASSIGN_OR_RETURN(const scheduler::SimJob job, SimJobOf(config, o.of_job));
  const auto [room, room_text] = RoomFor(config, job, o);
  TP_ASSIGN_OR_RETURN(const FoundLayouts found, SearchLayouts(loaded, job, room));
  const int64_t slots = config.cluster.slots;
  if (found.layouts.empty()) {
    std::string why;
    for (const TooLarge& t : found.too_large) why += "\n  for their " + t.part + ", " + NearestText(t, slots);
    for (const auto& [reason, count] : found.refused) why += "\n  refused: " + reason;
    return InvalidArgument(o.file + ": no layout of " + std::to_string(slots) +
                           " slots fits (memory: " + room_text + ")" + why);
  }
  const auto pick = static_cast<size_t>(o.pick);
  if (pick > found.layouts.size())
    return InvalidArgument("--pick: is " + std::to_string(o.pick) + ", and " +
                           std::to_string(found.layouts.size()) + " layouts were rehearsed");
  std::vector<const PlannedLayout*> shown;
  for (size_t i = 0; i < found.layouts.size(); ++i) {
    const PlannedLayout& p = found.layouts[i];
    if (i < static_cast<size_t>(o.top) || p.given || i + 1 == pick) shown.push_back(&p);
  }
  if (o.json) {
    PrintJson(found, shown, loaded, job, room);
  } else {
    std::printf(
        "# %s: layouts of %ld slots\n\nTimes: %s; mean answer %.0f tokens. A rehearsal, not this machine: "
        "--hardware, --pace, --like name others.\nMemory: %s.\n\n",
        job.name.c_str(), static_cast<long>(slots), job.hardware.name.c_str(), job.lengths.mean_tokens,
        room_text.c_str());
    PrintTable(found, shown, slots);
    PrintLeftOut(found, slots);
  }
  return o.apply.empty() ? OkStatus() : Apply(o, loaded, found.layouts[pick - 1], job.hardware.name);
}

}  // namespace

void AddPlanCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<PlanOptions>();
  options->of_job.self_path = context.self_path;
  CLI::App* plan = app.add_subcommand(
      "plan", "Search the layouts that a job could have on its slots; print the best few, and why");
  plan->add_option("config", options->file, "job config")->required();
  plan->add_option("overrides", options->overrides, "a.b=c");
  plan->add_option("--hardware", options->of_job.hardware,
                   "profile of a slot (default: cpu_slot, with cluster.device: cuda h100): a name in "
                   "configs/hardware, or a file");
  plan->add_option("--pace", options->of_job.pace,
                   "file of configs/pace: its model and hardware instead (default: cluster.pace)");
  plan->add_option("--like", options->of_job.like,
                   "a finished run: its answer lengths and the times of its rewards and slot changes");
  plan->add_option("--mean-tokens", options->of_job.mean_tokens,
                   "mean answer length (default: half of the limit)");
  plan->add_option("--memory-gb", options->memory_gb,
                   "memory of a slot, in GB (default: of the profile that was named; else of this machine)")
      ->check(CLI::PositiveNumber);
  plan->add_option("--top", options->top, "how many are shown (default: 5)")->check(CLI::PositiveNumber);
  plan->add_option("--apply", options->apply,
                   "new file: a config that extends this one and has the best layout");
  plan->add_option("--pick", options->pick, "with --apply: the layout of this number instead (default: 1)")
      ->check(CLI::PositiveNumber);
  plan->add_flag("--json", options->json, "one JSON object");
  plan->footer("Example: tidepool plan configs/quickstart.yaml cluster.slots=8 --apply mine.yaml");
  plan->callback([options, &context] {
    if (const Status s = PlanJob(*options); !s.ok())
      Fail(context, s, s.code() == StatusCode::kInternal ? 4 : 2);
  });
}

}  // namespace tidepool::workers
