// tidepool simulate: jobs rehearsed by the controller that would run them.

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/base/config.h"
#include "core/config/load.h"
#include "core/config/workload.h"
#include "scheduler/simulator/simulator.h"
#include "workers/cli/command.h"
#include "workers/cli/sim_job.h"

namespace tidepool::workers {
namespace {

using scheduler::SimJob;
using scheduler::SimReport;

SimJob FromWorkload(const config::Workload& w, const config::WorkloadJob& j,
                    const HardwareProfile& hardware) {
  SimJob s;
  static_cast<JobShape&>(s) = j;
  s.name = w.name;
  s.hardware = hardware;
  s.model = w.model;
  s.seed = static_cast<uint64_t>(j.seed);
  s.true_lengths = j.order == "oracle";
  s.controller.run_id = "sim";
  s.controller.data_rows = int64_t{1} << 40;
  s.controller.dispatch.order = j.order == "arrival" ? scheduler::DispatchOptions::Order::kArrival
                                                     : scheduler::DispatchOptions::Order::kContext;
  scheduler::ControllerOptions& c = s.controller;
  c.fleet.placement = j.placement;
  c.fleet.policy = j.policy;
  c.fleet.actor_slots = j.actor_slots;
  c.fleet.rollout_floor = j.rollout_floor;
  c.batch.max_lag_versions = j.max_lag_versions;
  c.batch.on_stale = j.on_stale;
  c.batch.oversample = j.oversample;
  c.fleet.slots = j.slots;
  c.batch.groups_per_step = j.groups_per_step;
  c.steps = j.steps;
  c.batch.group_size = j.group_size;
  c.batch.early_columns = j.early_columns && j.further_models > 0;
  c.rollout.max_new_tokens = j.max_new_tokens;
  c.rollout.chunk_tokens = j.chunk_tokens;
  c.rollout.max_concurrent = j.max_concurrent;
  c.rollout.kv_cache_tokens = j.kv_cache_tokens;
  c.rollout.kv_on_update = j.kv_on_update;
  c.reward.workers = j.reward_workers;
  c.checkpoint.every_steps = j.checkpoint_every;
  s.faults = w.faults;
  return s;
}

struct Options {
  std::string file, journal;
  std::vector<std::string> overrides;
  SimJobOptions of_job;
  bool sweep = false, per_step = false, json = false;
};

constexpr const char* kHardwareNote =
    "Times follow this profile of the hardware, not the machine in front of you; --hardware and --pace name "
    "others.\n\n";

std::string Seconds(double s) {
  char text[32];
  if (s >= 100 || s == 0)
    std::snprintf(text, sizeof(text), "%.0f", s);
  else if (s >= 1)
    std::snprintf(text, sizeof(text), "%.1f", s);
  else
    std::snprintf(text, sizeof(text), "%.3f", s);
  return text;
}

void PrintHead() {
  std::printf("| %-22s | %9s | %9s | %9s | %8s | %6s | %6s | %8s | %8s |\n", "simulated", "tok/s",
              "samples/s", "step s", "tail s", "idle r", "idle a", "moves", "again");
  std::printf("|---|---|---|---|---|---|---|---|---|\n");
}
void PrintRow(const std::string& name, const SimReport& r) {
  std::printf("| %-22s | %9.0f | %9.2f | %9s | %8s | %6.2f | %6.2f | %8ld | %7.1f%% |\n", name.c_str(),
              r.tokens_per_s, r.samples_per_s, Seconds(r.step_s).c_str(), Seconds(r.tail_s).c_str(),
              r.idle_rollout, r.idle_actor, static_cast<long>(r.switches),
              r.tokens > 0 ? 100 * r.prefilled_again / r.tokens : 0.0);
}
void PrintFaults(const std::vector<std::pair<std::string, SimReport>>& rows) {
  std::printf("\n| %-22s | %9s | %7s | %10s | %9s | %12s | %14s | %7s |\n", "with faults", "faults", "deaths",
              "ctl. lives", "rollbacks", "lost tokens", "re-prefilled", "dropped");
  std::printf("|---|---|---|---|---|---|---|---|\n");
  for (const auto& [name, r] : rows) {
    std::printf("| %-22s | %9ld | %7ld | %10ld | %9ld | %12ld | %14.0f | %7ld |\n", name.c_str(),
                static_cast<long>(r.faults), static_cast<long>(r.deaths), static_cast<long>(r.lives),
                static_cast<long>(r.rollbacks), static_cast<long>(r.lost_tokens), r.prefilled_again,
                static_cast<long>(r.dropped));
  }
}
void PrintCost(const std::vector<SimReport>& reports) {
  int64_t events = 0;
  double cpu = 0;
  for (const SimReport& r : reports) events += r.events, cpu += r.cpu_s;
  std::printf("\n%ld events in %.2f core-seconds: %.0f a core-second, every journal checked, no violation\n",
              static_cast<long>(events), cpu, static_cast<double>(events) / std::max(cpu, 1e-9));
}

Status SimulateWorkload(const Options& o) {
  TP_ASSIGN_OR_RETURN(const config::Workload w, config::LoadWorkload(o.file));
  TP_ASSIGN_OR_RETURN(const HardwareProfile hardware, config::LoadHardware(w.hardware, o.file));
  std::printf("# %s\n\n%s. Hardware: %s (%s). Model: %s.\n\n", w.name.c_str(), w.what.c_str(),
              hardware.name.c_str(), hardware.source.c_str(), w.model.name.c_str());
  std::vector<SimReport> all;
  const auto table = [&](const std::vector<std::pair<std::string, config::WorkloadJob>>& variants) -> Status {
    PrintHead();
    std::vector<std::pair<std::string, SimReport>> faulty;
    for (const auto& [name, job] : variants) {
      SimJob s = FromWorkload(w, job, hardware);
      s.per_step = o.per_step;
      TP_ASSIGN_OR_RETURN(SimReport r, Rehearse(s, o.journal.empty() ? "" : o.journal + "/" + name));
      PrintRow(name, r);
      std::fflush(stdout);
      if (s.faults.any()) faulty.emplace_back(name, r);
      all.push_back(std::move(r));
    }
    if (!faulty.empty()) PrintFaults(faulty);
    return OkStatus();
  };
  TP_RETURN_IF_ERROR(table(w.variants));
  if (o.sweep) {
    for (const auto& sweep : w.sweeps) {
      for (const auto& [value, variants] : sweep.points) {
        std::printf("\n%s = %s\n\n", sweep.key.c_str(), value.c_str());
        TP_RETURN_IF_ERROR(table(variants));
      }
    }
  }
  if (!w.published.empty()) {
    std::printf("\n| published | value | source |\n|---|---|---|\n");
    for (const auto& p : w.published)
      std::printf("| %s | %s | %s |\n", p.what.c_str(), p.value.c_str(), p.source.c_str());
  }
  if (!w.left_out.empty()) {
    std::printf("\nNot published, so chosen or swept here:\n\n");
    for (const std::string& line : w.left_out) std::printf("- %s\n", line.c_str());
  }
  PrintCost(all);
  return OkStatus();
}

Status SimulateConfig(const Options& o) {
  TP_ASSIGN_OR_RETURN(config::LoadedConfig loaded, config::LoadConfig(o.file, o.overrides));
  TP_RETURN_IF_ERROR(CheckGames(loaded));
  auto job = SimJobOf(loaded.config, o.of_job);
  if (!job.ok() && job.status().message().starts_with("environment.")) {
    const EnvironmentConfig& e = *loaded.config.environment();
    const std::string key = !e.is_service()     ? "environment.name"
                            : e.is_endpoint()   ? "rollout.endpoint"
                            : e.command.empty() ? "environment.addresses"
                                                : "environment.command";
    return Status(job.status().code(), loaded.OriginOf(key).Where() + ": " + job.status().message());
  }
  TP_ASSIGN_OR_RETURN(SimJob s, std::move(job));
  s.per_step = o.per_step;
  TP_ASSIGN_OR_RETURN(const SimReport r, Rehearse(s, o.journal));
  if (o.json) {
    nlohmann::json per_step = nlohmann::json::array();
    for (const SimReport::Step& step : r.per_step) {
      per_step.push_back({{"seconds", step.seconds},
                          {"held_rollout", step.time.rollout.held},
                          {"held_actor", step.time.actor.held},
                          {"busy_rollout", step.time.rollout.busy},
                          {"busy_actor", step.time.actor.busy}});
    }
    const nlohmann::json out = {{"name", s.name},
                                {"placement", Name(loaded.config.scheduler.placement)},
                                {"hardware", s.hardware.name},
                                {"steps", r.steps},
                                {"step_s", r.step_s},
                                {"samples_per_s", r.samples_per_s},
                                {"tokens_per_s", r.tokens_per_s},
                                {"idle_rollout", r.idle_rollout},
                                {"idle_actor", r.idle_actor},
                                {"share_expanded", r.share_expanded},
                                {"moves", r.switches},
                                {"dropped", r.dropped},
                                {"events", r.events},
                                {"cpu_s", r.cpu_s},
                                {"lag_hist", r.lag_hist},
                                {"log_hash", std::to_string(r.log_hash)},
                                {"prefilled", r.prefilled},
                                {"prefilled_again", r.prefilled_again},
                                {"per_step", std::move(per_step)}};
    std::printf("%s\n", out.dump().c_str());
    return OkStatus();
  }
  std::printf("# %s on %ld slots of %s, placement %s\n\n%s", s.name.c_str(),
              static_cast<long>(loaded.config.cluster.slots), s.hardware.name.c_str(),
              Name(loaded.config.scheduler.placement), kHardwareNote);
  PrintHead();
  PrintRow(s.name, r);
  std::printf("\nlag of trained samples:");
  for (size_t i = 0; i < r.lag_hist.size(); ++i)
    std::printf(" %zu: %ld", i, static_cast<long>(r.lag_hist[i]));
  std::printf("\n");
  PrintCost({r});
  return OkStatus();
}

}  // namespace

void AddSimulateCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<Options>();
  options->of_job.self_path = context.self_path;
  CLI::App* simulate = app.add_subcommand(
      "simulate", "Rehearse a job or a workload in virtual time, with the real controller");
  simulate->add_option("file", options->file, "a job config, or a workload of configs/simulate")->required();
  const std::vector<CLI::Option*> of_jobs = {
      simulate->add_option("overrides", options->overrides, "a.b=c (job configs)"),
      simulate->add_option("--hardware", options->of_job.hardware,
                           "profile of a slot (job configs; default: cpu_slot, with "
                           "cluster.device: cuda h100): a name in configs/hardware, "
                           "or a file"),
      simulate->add_option("--mean-tokens", options->of_job.mean_tokens,
                           "mean answer length (job configs; default: half of the limit)"),
      simulate->add_option(
          "--pace", options->of_job.pace,
          "file of configs/pace: its model and hardware instead (job configs; default: cluster.pace)"),
      simulate->add_option(
          "--like", options->of_job.like,
          "a finished run: its answer lengths and the times of its rewards and slot changes (job configs)"),
      simulate->add_flag("--json", options->json, "one JSON object (job configs)")};
  const std::vector<CLI::Option*> of_workloads = {
      simulate->add_flag("--sweep", options->sweep, "also vary what the publication leaves out (workloads)")};
  simulate->add_option("--journal", options->journal,
                       "new folder for the simulated run's journal, for `tidepool check` and `journal`; of a "
                       "workload one folder a variant");
  simulate->add_flag("--per-step", options->per_step, "an event for every engine step, to check the jumps");
  simulate->footer("Example: tidepool simulate configs/simulate/seer-moonlight.yaml --sweep");
  simulate->callback([options, of_jobs, of_workloads, &context] {
    const bool workload = config::IsWorkload(options->file);
    for (const CLI::Option* option : workload ? of_jobs : of_workloads) {
      if (option->count() == 0) continue;
      const bool named = !option->get_lnames().empty();
      return Fail(context,
                  InvalidArgument((named ? option->get_name() : option->results().front()) + ": is for " +
                                  (workload ? "job configs, and " + options->file + " is a workload"
                                            : "workloads, and " + options->file + " is a job config") +
                                  "; leave it out"));
    }
    const Status s = workload ? SimulateWorkload(*options) : SimulateConfig(*options);
    if (!s.ok()) Fail(context, s, s.code() == StatusCode::kInternal ? 4 : 2);
  });
}

}  // namespace tidepool::workers
