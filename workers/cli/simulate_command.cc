// tidepool simulate, plan: jobs rehearsed by the controller that would run them.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/base/real_file_system.h"
#include "core/config/load.h"
#include "core/config/workload.h"
#include "core/environments/text_game.h"
#include "core/environments/trial.h"
#include "core/storage/journal.h"
#include "scheduler/simulator/simulator.h"
#include "workers/cli/command.h"
#include "workers/cli/measured_run.h"
#include "workers/controller/scheduler_options.h"
#include "workers/data/row_source.h"
#include "workers/device/memory_plan.h"

namespace tidepool::workers {
namespace {

using scheduler::SimJob;
using scheduler::SimReport;

constexpr int64_t kFlushBytes = 1 << 20;

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
  std::string file, hardware, pace, like, journal;
  std::vector<std::string> overrides;
  double mean_tokens = 0;
  bool sweep = false, per_step = false, json = false;
};

// All token counts of a paced job are those of the job that it stands for.
void StretchTokens(SimJob& s, int64_t factor) {
  scheduler::RolloutOptions& r = s.controller.rollout;
  const int64_t chunk = scheduler::ChunkTokens(r.chunk_tokens, r.max_new_tokens, r.block_tokens);
  r.max_new_tokens *= factor;
  r.chunk_tokens = chunk * factor;
  r.kv_cache_tokens *= factor;
  s.prompt_tokens *= factor;
  s.turns.observation_tokens *= factor;
  s.controller.environment.max_turn_tokens *= factor;
  for (auto& [tid, n] : s.recorded_lengths) n *= factor;
}

// Turns of an environment as a good player sees them; how long a learner takes is not known, so half of the
// limit.
Status ShapeTurns(const JobConfig& config, TurnShape& turns) {
  const EnvironmentConfig& e = *config.environment();
  TP_ASSIGN_OR_RETURN(const auto environment,
                      environments::MakeTextEnvironment(e.name, e.options, config.seed));
  TP_ASSIGN_OR_RETURN(turns.max_turns, environments::MaxTurns(e.name, *environment));
  if (e.max_turns > 0) turns.max_turns = std::min(e.max_turns, turns.max_turns);
  turns.mean_turns = std::max(1.0, 0.5 * static_cast<double>(turns.max_turns));
  turns.sigma_turns = 0.6;
  turns.latency_median_s = e.latency.median_s;
  turns.latency_tail = e.latency.tail;
  turns.latency_max_s = e.latency.max_s;
  turns.straggler_share = e.latency.straggler_share;
  turns.straggler_s = e.latency.straggler_s;
  // As the run itself reads them, where the model's folder is there to tell; else a model made from the
  // config reads letters and an end token, and others about four letters a token and the chat template around
  // them.
  std::unique_ptr<RowSource> rows;
  if (std::error_code error;
      !config.model.path.empty() && std::filesystem::exists(config.model.path + "/tokenizer.json", error)) {
    TP_ASSIGN_OR_RETURN(rows, RowSource::Create(config, config.model.path));
  }
  // One after the other, each with a NUL at its end, as the child hands them out.
  std::string said;
  TP_ASSIGN_OR_RETURN(said,
                      environments::PlayTrial(
                          *environment, environments::LabelOf(*environments::FindTextEnvironment(e.name)),
                          {.games = 16,
                           .turns = turns.max_turns,
                           .varied = false,
                           .reset_s = e.reset_timeout_s,
                           .step_s = e.step_timeout_s},
                          [&](const std::string& text, environments::Said what) {
                            if (what == environments::Said::kObservation) said += text + '\0';
                          },
                          [&] { return said; }));
  int64_t tokens = 0, observations = 0;
  for (size_t at = 0; at < said.size(); at = said.find('\0', at) + 1, ++observations) {
    const std::string observation = said.substr(at, said.find('\0', at) - at);
    const auto letters = static_cast<int64_t>(observation.size());
    if (rows != nullptr) {
      TP_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                          rows->EncodeObservation(observation, /*ended=*/false));
      tokens += static_cast<int64_t>(ids.size());
    } else {
      tokens += config.model.init ? letters + 1 : letters / 4 + 8;
    }
  }
  if (observations > 0)
    turns.observation_tokens = std::max<int64_t>(1, (tokens + observations / 2) / observations);
  return OkStatus();
}

// Values measured in the pace file replace guessed ones and those of another run.
void TakeMeasured(const config::Pace& p, SimJob& s) {
  const auto take = [](double measured, double& guess) {
    if (measured >= 0) guess = measured;
  };
  take(p.step_gap_s, s.step_gap_s);
  take(p.message_s, s.message_s);
  take(p.reward_s, s.reward_s);
  take(p.release_s, s.release_s);
  take(p.grant_s, s.grant_s);
  take(p.publish_s, s.publish_s);
  take(p.slow_beside, s.slow_beside);
  take(p.jitter, s.jitter);
}

StatusOr<SimJob> FromConfig(const JobConfig& config, const Options& o) {
  if (config.rl() == nullptr)
    return InvalidArgument(std::string("job is ") + Name(config.kind()) +
                           "; what is simulated generates (job: rl)");
  SimJob s;
  s.name = config.name;
  s.seed = config.seed;
  s.controller = SchedulerOptions(config, /*held_out=*/0);
  s.recompute = config.train.recompute;
  s.further_models = FurtherModels(config);
  s.controller.run_id = "sim";
  s.controller.data_rows = int64_t{1} << 40;
  s.release_s = s.grant_s = 0.02;
  s.lengths.mean_tokens =
      o.mean_tokens > 0 ? o.mean_tokens : 0.5 * static_cast<double>(config.rollout.max_new_tokens);
  s.prompt_tokens = std::max<int64_t>(1, std::min<int64_t>(config.data.max_prompt_tokens, 64));
  if (config.environment() != nullptr) TP_RETURN_IF_ERROR(ShapeTurns(config, s.turns));
  const std::string pace = o.pace.empty() ? config.cluster.pace : o.pace;
  double scale = 1;  // modelled seconds of the run that is taken as an example
  int64_t factor = 1;
  std::optional<config::Pace> paced;
  if (pace.empty()) {
    TP_ASSIGN_OR_RETURN(s.hardware, config::LoadHardware(o.hardware.empty() ? "cpu_slot" : o.hardware));
    TP_ASSIGN_OR_RETURN(const model::ModelSpec m, SpecOf(config.model));
    const auto parameters = static_cast<double>(model::ParameterCount(m));
    const double w = config.model.dtype == DType::kBFloat16 ? 2 : 4;
    s.model = {m.architecture, parameters, parameters, m.layers, m.heads, m.kv_heads, m.head_size, w, w, 0};
  } else if (!o.hardware.empty()) {
    return InvalidArgument("--hardware: found " + o.hardware + ", but " + pace + " (" +
                           (o.pace.empty() ? "cluster.pace" : "--pace") +
                           ") says the hardware; give one of the two");
  } else {
    TP_ASSIGN_OR_RETURN(paced, config::LoadPace(pace));
    s.hardware = paced->hardware;
    s.model = paced->model;
    s.devices_per_slot = paced->devices_per_slot;
    s.engine_efficiency = paced->engine_efficiency;
    s.train_efficiency = paced->train_efficiency;
    factor = paced->token_factor;
    if (!config.cluster.pace.empty()) {
      scale = config.cluster.pace_scale;
      s.engine_quantum =
          factor;  // as the paced run itself: its engine makes that many modelled steps at once
    }
    // Paced slots keep the caches of the small job, which holds all that may be in flight.
    if (config.rollout.kv_cache_tokens == 0) s.controller.rollout.kv_cache_tokens = int64_t{1} << 40;
  }
  s.tick_s = config.cluster.heartbeat_s / scale;
  s.prompt_once = config.cluster.pace.empty();  // a paced trainer is given the time of all rows
  if (!o.like.empty()) {
    TP_ASSIGN_OR_RETURN(MeasuredRun m, MeasureRun(o.like));
    s.recorded_lengths = std::move(m.lengths);
    s.prompt_tokens = std::max<int64_t>(1, std::llround(m.prompt_tokens));
    s.reward_s = m.reward_s / scale;
    if (m.moves > 0) {
      s.release_s = m.release_s / scale;
      s.grant_s = m.grant_s / scale;
    }
    s.publish_s = m.publish_s / scale;
    s.message_s = 0.0005 / scale;
    for (const auto& [worker, at] : m.join_s) s.join_s[worker] = at / scale;
  }
  if (paced) TakeMeasured(*paced, s);
  StretchTokens(s, factor);
  return s;
}

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

// `journal`: folder for the records that the controller wrote, to be read by `check` and `journal`; empty:
// none.
StatusOr<SimReport> RunOne(SimJob job, const std::string& journal = "") {
  RealFileSystem fs;
  std::unique_ptr<storage::JournalWriter> writer;
  Status written = OkStatus();
  if (!journal.empty()) {
    std::error_code error;
    if (std::filesystem::exists(journal, error))
      return AlreadyExists(journal + ": exists; a simulated journal is written to a new folder");
    TP_ASSIGN_OR_RETURN(writer, storage::JournalWriter::Open(fs, journal, "sim-" + job.name));
    job.on_record = [&](const JournalEntry& entry) {
      if (!written.ok()) return;
      while (entry.ctl_epoch >
             writer->ctl_epoch()) {  // the controller was started again: a new segment, as in a real run
        written = writer->Close();
        if (!written.ok()) return;
        auto opened = storage::JournalWriter::Open(fs, journal, "sim-" + job.name);
        written = opened.status();
        if (!written.ok()) return;
        writer = std::move(opened).value();
      }
      writer->Append(entry.record, entry.mono_ns);
      if (writer->buffered_bytes() > kFlushBytes) written = writer->Flush();
    };
  }
  TP_ASSIGN_OR_RETURN(const scheduler::Placement placement, LimitedPlacement(job.controller.fleet));
  job.controller.placement = &placement;
  const std::clock_t begin = std::clock();  // of this core: other work on the machine is not ours
  scheduler::Simulator simulator(job);
  TP_ASSIGN_OR_RETURN(SimReport r, simulator.Run());
  if (writer != nullptr && written.ok()) written = writer->Close();
  TP_RETURN_IF_ERROR(written);
  r.cpu_s = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  if (!r.violation.empty()) return Internal("the simulated journal violates " + r.violation);
  if (!r.done) return Aborted("the simulated run did not end: " + r.why);
  return r;
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
      TP_ASSIGN_OR_RETURN(SimReport r, RunOne(s, o.journal.empty() ? "" : o.journal + "/" + name));
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
  TP_ASSIGN_OR_RETURN(const config::LoadedConfig loaded, config::LoadConfig(o.file, o.overrides));
  TP_RETURN_IF_ERROR(CheckGames(loaded));
  TP_ASSIGN_OR_RETURN(SimJob s, FromConfig(loaded.config, o));
  s.per_step = o.per_step;
  TP_ASSIGN_OR_RETURN(const SimReport r, RunOne(s, o.journal));
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

// Placements and sizes that the job may have, each simulated for a few steps.
Status PlanJob(const Options& o) {
  TP_ASSIGN_OR_RETURN(const config::LoadedConfig loaded, config::LoadConfig(o.file, o.overrides));
  TP_RETURN_IF_ERROR(CheckGames(loaded));
  TP_ASSIGN_OR_RETURN(SimJob base, FromConfig(loaded.config, o));
  base.controller.steps = std::min<int64_t>(loaded.config.train.steps, 20);
  struct Choice {
    std::string name;
    SimReport report;
  };
  std::vector<Choice> choices;
  const int64_t slots = loaded.config.cluster.slots;
  int64_t refused = 0;
  std::string why;
  for (const PlacementKind placement : AllOf<PlacementKind>()) {
    for (int64_t actors = 1; actors <= slots; actors *= 2) {
      const bool one_size = placement == PlacementKind::kColocated || placement == PlacementKind::kElastic;
      if (one_size && actors > 1) break;
      SimJob s = base;
      s.controller.fleet.placement = placement;
      s.controller.fleet.policy.clear();  // the placement's own
      s.controller.fleet.actor_slots = actors;
      auto r = RunOne(s);
      if (!r.ok()) {
        ++refused;
        why = r.status().message();
        continue;
      }
      choices.push_back(
          {Name(placement) + (one_size ? "" : " actor_slots=" + std::to_string(actors)), std::move(*r)});
    }
  }
  if (choices.empty()) return InvalidArgument(o.file + ": no placement fits; the last one: " + why);
  std::sort(choices.begin(), choices.end(),
            [](const Choice& x, const Choice& y) { return x.report.samples_per_s > y.report.samples_per_s; });
  std::printf("# %s: %ld slots of %s, best of %zu placements (%ld did not fit)\n\n%s", base.name.c_str(),
              static_cast<long>(slots), base.hardware.name.c_str(), choices.size(),
              static_cast<long>(refused), kHardwareNote);
  PrintHead();
  for (size_t i = 0; i < std::min<size_t>(3, choices.size()); ++i)
    PrintRow(choices[i].name, choices[i].report);
  std::printf("\n");
  for (size_t i = 0; i < std::min<size_t>(3, choices.size()); ++i) {
    const SimReport& r = choices[i].report;
    const char* bottleneck = r.idle_actor < 0.2 && r.idle_rollout > 0.3
                                 ? "training: slots that generate wait for new versions"
                             : r.tail_s > 0.4 * r.step_s ? "the longest samples of a step"
                             : r.idle_rollout < 0.2      ? "generation"
                                                    : "neither alone: slots move, or wait for each other";
    std::printf("%zu. scheduler.placement=%s: bottleneck %s\n", i + 1, choices[i].name.c_str(), bottleneck);
  }
  return OkStatus();
}

}  // namespace

void AddSimulateCommands(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<Options>();
  CLI::App* simulate = app.add_subcommand(
      "simulate", "Rehearse a job or a workload in virtual time, with the real controller");
  simulate->add_option("file", options->file, "a job config, or a workload of configs/simulate")->required();
  const std::vector<CLI::Option*> of_jobs = {
      simulate->add_option("overrides", options->overrides, "a.b=c (job configs)"),
      simulate->add_option("--hardware", options->hardware,
                           "profile of a slot (job configs; default: cpu_slot): a name in configs/hardware, "
                           "or a file"),
      simulate->add_option("--mean-tokens", options->mean_tokens,
                           "mean answer length (job configs; default: half of the limit)"),
      simulate->add_option(
          "--pace", options->pace,
          "file of configs/pace: its model and hardware instead (job configs; default: cluster.pace)"),
      simulate->add_option(
          "--like", options->like,
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
  CLI::App* plan =
      app.add_subcommand("plan", "Simulate the placements a job could have; print the best three");
  plan->add_option("config", options->file, "job config")->required();
  plan->add_option("overrides", options->overrides, "a.b=c");
  plan->add_option("--hardware", options->hardware,
                   "profile of a slot (default: cpu_slot): a name in configs/hardware, or a file");
  plan->add_option("--mean-tokens", options->mean_tokens, "mean answer length (default: half of the limit)");
  plan->footer("Example: tidepool plan configs/quickstart.yaml cluster.slots=8");
  plan->callback([options, &context] {
    if (const Status s = PlanJob(*options); !s.ok()) Fail(context, s, 2);
  });
}

}  // namespace tidepool::workers
