#include "workers/cli/sim_job.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/loopback.h"
#include "core/base/names.h"
#include "core/base/real_file_system.h"
#include "core/config/workload.h"
#include "core/environments/text_game.h"
#include "core/environments/trial.h"
#include "core/model/memory_use.h"
#include "core/storage/journal.h"
#include "workers/cli/measured_run.h"
#include "workers/controller/scheduler_options.h"
#include "workers/data/row_source.h"
#include "workers/device/memory_plan.h"

namespace tidepool::workers {

using scheduler::SimJob;
using scheduler::SimReport;

namespace {

constexpr int64_t kFlushBytes = 1 << 20;

// A profile by its name: of the current folder, else of the checkout or the package that the program is from.
StatusOr<std::string> ProfileFile(const std::string& name, const std::string& self_path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::is_regular_file(name, error)) return name;
  std::vector<fs::path> folders = {fs::path("configs") / "hardware"};
  fs::path folder = fs::path(self_path).parent_path();
  for (int up = 0; up < 6 && folder.has_relative_path(); ++up, folder = folder.parent_path()) {
    for (const char* configs : {"configs", "share/tidepool/configs"})
      folders.push_back(folder / configs / "hardware");
  }
  std::vector<std::string> names;
  for (const fs::path& of : folders) {
    const fs::path file = of / (name + ".yaml");
    if (fs::is_regular_file(file, error)) return file.string();
    for (const auto& entry : fs::directory_iterator(of, error))
      if (entry.path().extension() == ".yaml") names.push_back(entry.path().stem().string());
  }
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return InvalidArgument("--hardware: found '" + name + "', which is neither a file nor a profile; " +
                         DidYouMean(name, names));
}

// All token counts of a paced job are those of the job that it stands for.
void StretchTokens(SimJob& s, int64_t factor) {
  scheduler::RolloutOptions& r = s.controller.rollout;
  const int64_t chunk = scheduler::ChunkTokens(r.chunk_tokens, r.max_new_tokens, r.block_tokens);
  r.max_new_tokens *= factor;
  r.chunk_tokens = chunk * factor;
  r.kv_cache_tokens *= factor;
  s.prompt_tokens *= factor;
  s.lengths.mean_tokens *= static_cast<double>(factor);
  s.turns.observation_tokens *= factor;
  s.controller.environment.max_turn_tokens *= factor;
  for (auto& [tid, n] : s.recorded_lengths) n *= factor;
}

// Turns of an environment as a good player sees them; how long a learner takes is not known, so half of the
// limit.
Status ShapeTurns(const JobConfig& config, TurnShape& turns) {
  const EnvironmentConfig& e = *config.environment();
  std::unique_ptr<environments::TextEnvironment> environment;  // null: a service
  if (e.is_service()) {
    if (e.max_turns == 0)
      return InvalidArgument(
          "environment.max_turns: is missing, and nobody plays in a rehearsal who could tell how many turns "
          "an "
          "episode of a service has; write how many it has at most");
    turns.max_turns = e.max_turns;
  } else {
    TP_ASSIGN_OR_RETURN(environment, environments::MakeTextEnvironment(e.name, e.options, config.seed));
    TP_ASSIGN_OR_RETURN(turns.max_turns, environments::MaxTurns(e.name, *environment));
    if (e.max_turns > 0) turns.max_turns = std::min(e.max_turns, turns.max_turns);
  }
  turns.mean_turns = std::max(1.0, 0.5 * static_cast<double>(turns.max_turns));
  turns.sigma_turns = 0.6;
  turns.latency_median_s = e.latency.median_s;
  turns.latency_tail = e.latency.tail;
  turns.latency_max_s = e.latency.max_s;
  turns.straggler_share = e.latency.straggler_share;
  turns.straggler_s = e.latency.straggler_s;
  if (environment == nullptr) return OkStatus();  // nor is it known how long its observations are
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
                          rows->EncodeObservation({observation}, /*ended=*/false));
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
  take(p.group_s, s.group_s);
  take(p.publish_s, s.publish_s);
  take(p.slow_beside, s.slow_beside);
  take(p.jitter, s.jitter);
}

}  // namespace

StatusOr<SimJob> SimJobOf(const JobConfig& config, const SimJobOptions& o) {
  if (config.rl() == nullptr)
    return InvalidArgument(std::string("job is ") + Name(config.kind()) +
                           "; what is simulated generates (job: rl)");
  if (config.model.is_policy())
    return InvalidArgument(std::string("model.policy is ") + Name(config.model.policy) +
                           "; what is simulated generates tokens with a language model (model.path or "
                           "model.init), and of a control task there is no cost model");
  if (config.rollout.mesh.tp > 1)
    return InvalidArgument("rollout.mesh.tp is " + std::to_string(config.rollout.mesh.tp) +
                           ", and how fast engines of several slots are is not known here; write 1");
  SimJob s;
  s.name = config.name;
  s.seed = config.seed;
  s.controller = SchedulerOptions(config, /*held_out=*/0);
  s.recompute = config.train.recompute;
  s.further_models = FurtherModels(config);
  s.controller.run_id = "sim";
  s.controller.data_rows = int64_t{1} << 40;
  s.release_s = s.grant_s = 0.02;
  // Functions of this program take microseconds; those of servers as the simulator has it.
  if (std::ranges::all_of(config.reward.functions,
                          [](const auto& f) { return f.endpoint.empty() && !f.by_model(); }))
    s.reward_s = 0.001;
  s.lengths.mean_tokens =
      o.mean_tokens > 0 ? o.mean_tokens : 0.5 * static_cast<double>(config.rollout.max_new_tokens);
  s.prompt_tokens = std::max<int64_t>(1, std::min<int64_t>(config.data.max_prompt_tokens, 64));
  if (config.environment() != nullptr) TP_RETURN_IF_ERROR(ShapeTurns(config, s.turns));
  const std::string pace = o.pace.empty() ? config.cluster.pace : o.pace;
  double scale = 1;  // modelled seconds of the run that is taken as an example
  int64_t factor = 1;
  std::optional<config::Pace> paced;
  if (pace.empty()) {
    const char* usual = config.cluster.device == DeviceKind::kCuda ? "h100" : "cpu_slot";
    TP_ASSIGN_OR_RETURN(const std::string profile,
                        ProfileFile(o.hardware.empty() ? usual : o.hardware, o.self_path));
    TP_ASSIGN_OR_RETURN(s.hardware, config::LoadHardware(profile));
    TP_ASSIGN_OR_RETURN(const model::ModelSpec m, SpecOf(config.model));
    const auto parameters = static_cast<double>(model::ParameterCount(m));
    const double w = config.model.dtype == DType::kBFloat16 ? 2 : 4;
    s.model = {m.architecture, parameters, parameters, m.layers, m.heads,      m.kv_heads,
               m.head_size,    w,          w,          0,        m.hidden_size};
    s.zero = config.train.zero;
    s.micro_batch_tokens = config.train.micro_batch_tokens;
    s.one_host = IsLoopback(config.cluster.bind);
    if (s.hardware.train_efficiency > 0) s.train_efficiency = s.hardware.train_efficiency;
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
    double sum = 0;
    for (const auto& [tid, length] : s.recorded_lengths) sum += static_cast<double>(length);
    s.lengths.mean_tokens = std::max(1.0, sum / static_cast<double>(s.recorded_lengths.size()));
    s.prompt_tokens = std::max<int64_t>(1, std::llround(m.prompt_tokens));
    s.reward_s = m.reward_s / scale;
    if (m.moves > 0) {
      s.release_s = m.release_s / scale;
      s.grant_s = m.grant_s / scale;
    }
    if (m.group_s > 0) s.group_s = m.group_s / scale;
    s.publish_s = m.publish_s / scale;
    s.message_s = 0.0005 / scale;
    for (const auto& [worker, at] : m.join_s) s.join_s[worker] = at / scale;
  }
  if (paced) TakeMeasured(*paced, s);
  StretchTokens(s, factor);
  return s;
}

StatusOr<SimReport> Rehearse(SimJob job, const std::string& journal) {
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

}  // namespace tidepool::workers
