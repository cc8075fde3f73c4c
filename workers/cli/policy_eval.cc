#include "workers/cli/policy_eval.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/statistics.h"
#include "core/config/load.h"
#include "core/environments/drawing.h"
#include "core/files/mapped_file.h"
#include "core/policy/spec.h"
#include "core/storage/run_directory.h"
#include "workers/cli/answer_progress.h"
#include "workers/cli/model_session.h"
#include "workers/cli/session_folder.h"
#include "workers/controller/job.h"
#include "workers/controller/launcher.h"
#include "workers/net/auth.h"
#include "workers/side/environment_services.h"
#include "workers/side/served_vectors.h"
#include "workers/side/vector_service.h"

namespace tidepool::workers {
namespace {

using nlohmann::json;
using PlayClock = std::chrono::steady_clock;

struct PlayedEnvironment : environments::VectorOptions {
  double step_timeout_s = EnvironmentConfig{}.step_timeout_s;
  std::optional<JobConfig> job = {};  // of a service
};

// The instances of a service, served to the worker that plays. The service itself is this process's.
struct ServedEnvironment {
  std::shared_ptr<EnvironmentServices> services;
  std::unique_ptr<VectorServer> server;
};
StatusOr<ServedEnvironment> ServeTo(const std::string& token_file, const PlayedEnvironment& e) {
  JobConfig job = *e.job;
  job.seed = e.seed;
  std::get<RlJob>(job.job).environment.max_episode_steps = e.max_episode_steps;
  ServedEnvironment s;
  TP_ASSIGN_OR_RETURN(const auto secret, JobTokens::Random());
  const std::string token = secret.Token(CallerRole::kDevice);
  TP_RETURN_IF_ERROR(files::WriteSmallFile(token_file, token));
  s.services = EnvironmentServices::Start(*job.environment(), {.vector = true});
  TP_ASSIGN_OR_RETURN(s.server, VectorServer::Start({.token = token}));
  s.server->Serve([job, services = s.services, kept = std::make_shared<KeptInstances>(0)] {
    return std::make_unique<ServedHost>(job, services, kept);
  });
  return s;
}

// The environment that is played: the run's own, with what the command line changes of it.
StatusOr<PlayedEnvironment> EnvironmentOf(const FoundModel& model, const policy::PolicySpec& spec,
                                          const PolicyEvalOptions& o) {
  PlayedEnvironment e;
  e.name = spec.environment;
  if (!model.run.empty()) {
    TP_ASSIGN_OR_RETURN(const config::LoadedConfig loaded,
                        config::LoadConfig(storage::RunPaths(model.run).config()));
    if (loaded.config.environment() != nullptr)
      e = {policy::EnvironmentOfJob(loaded.config), loaded.config.environment()->step_timeout_s};
    if (e.served) {
      e.job = loaded.config;
      e.max_episode_steps = e.served->max_episode_steps;
    }
  }
  if (o.tasks.size() > 1) return InvalidArgument("--task: a policy is for one task, " + spec.environment);
  if (!o.tasks.empty() && o.tasks.front() != e.name) {
    if (!e.name.empty())
      return InvalidArgument("--task: found " + o.tasks.front() + ", but the policy of " + model.dir +
                             " was made for " + e.name);
    e.name = o.tasks.front();
  }
  if (e.name.empty()) return InvalidArgument("--task: " + model.dir + " does not say which it is for");
  for (const std::string& option : o.task_options) {
    const size_t equals = option.find('=');
    if (equals == std::string::npos) return InvalidArgument("--option: " + option + " is not name=value");
    const std::string name = option.substr(0, equals), text = option.substr(equals + 1);
    const json value = json::parse(text, nullptr, false);
    if (name != "max_episode_steps" && e.served)
      return InvalidArgument("--option: " + name + " is no option of a service; it was started with " +
                             storage::RunPaths(model.run).config());
    if (name != "max_episode_steps") {
      e.options[name] = value.is_string() ? value.get<std::string>() : text;
      continue;
    }
    if (!value.is_number_integer() || value.get<int64_t>() < 1)
      return InvalidArgument("--option: max_episode_steps is " + text + "; expected a whole number above 0");
    e.max_episode_steps = value.get<int64_t>();
    if (e.served) e.served->max_episode_steps = e.max_episode_steps;
  }
  if (o.seed) e.seed = *o.seed;
  return e;
}

std::string LastLineOf(const std::string& path) {
  std::ifstream in(path);
  std::string line, last;
  while (std::getline(in, line)) {
    if (!line.empty()) last = line;
  }
  return last;
}

// How many lines a file has that grows: each look reads what has come.
class GrowingLines {
 public:
  explicit GrowingLines(std::string path) : path_(std::move(path)) {}
  int64_t Count() {
    if (!in_.is_open()) in_.open(path_, std::ios::binary);  // the worker makes it
    in_.clear();
    char bytes[1 << 16];
    do {
      in_.read(bytes, sizeof(bytes));
      lines_ += std::count(bytes, bytes + in_.gcount(), '\n');
    } while (in_);
    return lines_;
  }

 private:
  const std::string path_;
  std::ifstream in_;
  int64_t lines_ = 0;
};

// Has a worker play, and waits for it.
StatusOr<std::vector<PlayedEpisode>> Play(const CommandContext& context, const FoundModel& model,
                                          const PlayedEnvironment& e, const PolicyEvalOptions& o) {
  // Without an episode that ends; a task that does not come back is the worker's to tell.
  const double start_s =
      e.job ? e.job->environment()->start_timeout_s + e.job->environment()->reset_timeout_s : 0;
  const auto patience = std::chrono::duration_cast<PlayClock::duration>(
      std::chrono::duration<double>(120 + e.step_timeout_s + start_s));
  TP_ASSIGN_OR_RETURN(const std::string worker, FindWorker({}, context.self_path));
  TP_ASSIGN_OR_RETURN(const SessionFolder folder, SessionFolder::Make());
  const std::string out = folder.path() + "/episodes.jsonl", log = folder.path() + "/worker.log";
  std::vector<std::string> words = {worker,
                                    "play",
                                    "--policy=" + std::filesystem::absolute(model.dir).string(),
                                    "--environment=" + e.name,
                                    "--max-episode-steps=" + std::to_string(e.max_episode_steps),
                                    "--seed=" + std::to_string(e.seed),
                                    "--step-timeout=" + std::to_string(e.step_timeout_s + start_s),
                                    "--episodes=" + std::to_string(o.episodes),
                                    "--out=" + out};
  for (const auto& [name, value] : e.options) words.insert(words.end(), {"--option", name, value});
  if (o.sampled) words.emplace_back("--sampled");
  if (!o.render.empty()) words.push_back("--actions-of=" + std::to_string(o.episode));
  ServedEnvironment served;
  if (e.job) {
    const std::string token_file = folder.path() + "/token";
    TP_ASSIGN_OR_RETURN(served, ServeTo(token_file, e));
    words.insert(words.end(), {"--address=" + served.server->address(), "--token-file=" + token_file});
  }
  const std::function<bool()> stop = StopOnSignal();
  Launcher launcher(false);
  TP_RETURN_IF_ERROR(launcher.Start(0, words, log));
  AnswerProgress progress(o.episodes, 0);
  GrowingLines lines(out);
  int64_t done = 0;
  for (auto until = PlayClock::now() + patience;;) {
    const std::vector<Ended> ended = launcher.Reap();
    for (const int64_t now = lines.Count(); done < now; ++done) {
      progress.OnAnswer();
      until = PlayClock::now() + patience;
    }
    if (!ended.empty()) {
      progress.Finish();
      if (done == o.episodes) return ReadEpisodes(out, o.episodes);
      const std::string said = LastLineOf(log);
      const std::string why = said.empty() ? "the worker " + ended.front().why : said;
      return ended.front().exit_status == 2 ? InvalidArgument(why) : Unavailable(why);
    }
    if (stop()) return Aborted("stopped");
    if (served.services != nullptr && !served.services->failed().empty())
      return Unavailable(served.services->failed());
    if (PlayClock::now() > until)
      return DeadlineExceeded("no episode of " + e.name + " has ended for minutes: " + LastLineOf(log));
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

std::string ShortNumber(double x) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g", x);
  return text;
}

struct Played {
  MeanInterval returns, solved;
  double deviation = 0, least = 0, most = 0;
  double steps_mean = 0;
  int64_t steps_least = 0, steps_most = 0, truncated = 0;
};
Played Summarize(const std::vector<PlayedEpisode>& episodes, double solved_return) {
  Played p;
  RunningMean returns, steps;
  int64_t solved = 0;
  p.least = p.most = episodes.front().score;
  p.steps_least = p.steps_most = episodes.front().steps;
  for (const PlayedEpisode& e : episodes) {
    returns.Add(e.score);
    steps.Add(static_cast<double>(e.steps));
    p.least = std::min(p.least, e.score), p.most = std::max(p.most, e.score);
    p.steps_least = std::min(p.steps_least, e.steps), p.steps_most = std::max(p.steps_most, e.steps);
    p.truncated += e.terminated ? 0 : 1;
    solved += e.score >= solved_return ? 1 : 0;
  }
  const auto n = static_cast<int64_t>(episodes.size());
  p.returns = IntervalOfMean(returns.mean(), returns.deviation(), n);
  p.solved = ShareInterval(static_cast<double>(solved) / static_cast<double>(n), n);
  p.deviation = returns.deviation();
  p.steps_mean = steps.mean();
  return p;
}

}  // namespace

StatusOr<std::vector<PlayedEpisode>> ReadEpisodes(const std::string& path, int64_t episodes) {
  std::ifstream in(path);
  std::vector<PlayedEpisode> out(static_cast<size_t>(episodes));
  std::vector<bool> seen(out.size());
  int64_t lines = 0;
  for (std::string line; std::getline(in, line); ++lines) {
    const json row = json::parse(line, nullptr, false);
    const auto number = [&](const char* key) {
      return row.is_object() && row.contains(key) && row[key].is_number() ? row[key].get<double>() : -1;
    };
    const auto index = static_cast<int64_t>(number("episode"));
    if (index < 0 || index >= episodes || seen[static_cast<size_t>(index)] || number("steps") < 1 ||
        !row.contains("return") || !row["return"].is_number()) {
      return DataLoss(path + ":" + std::to_string(lines + 1) + ": is no line of an episode");
    }
    seen[static_cast<size_t>(index)] = true;
    PlayedEpisode& e = out[static_cast<size_t>(index)];
    e.episode = index;
    e.steps = static_cast<int64_t>(number("steps"));
    e.score = row["return"].get<double>();
    e.terminated = row.value("terminated", false);
    if (row.contains("actions")) e.actions = row["actions"].get<std::vector<float>>();
  }
  if (lines != episodes)
    return DataLoss(path + ": has " + std::to_string(lines) + " lines of " + std::to_string(episodes) +
                    " episodes");
  return out;
}

Status EvaluatePolicy(const CommandContext& context, const FoundModel& model, const PolicyEvalOptions& o) {
  TP_ASSIGN_OR_RETURN(const policy::PolicySpec spec, policy::ReadPolicySpec(model.dir));
  TP_ASSIGN_OR_RETURN(const PlayedEnvironment e, EnvironmentOf(model, spec, o));
  const auto rules = environments::FindVectorEnvironment(e);
  if (!rules.ok()) return rules.status().At(o.task_options.empty() ? "--task" : "--option");
  TP_RETURN_IF_ERROR(policy::CheckPlays(spec, *rules).At(model.dir));
  if (!o.render.empty()) {
    if (e.job)
      return InvalidArgument("--render: " + e.name + " is a service, whose states nobody here can draw");
    if (!o.render.ends_with(".svg"))
      return InvalidArgument("--render: " + o.render + ": an animated SVG is drawn; name a file.svg");
    if (o.episode >= o.episodes)
      return InvalidArgument("--episode: " + std::to_string(o.episode) + " is not among the " +
                             std::to_string(o.episodes) + " that are played, from 0 on");
  }
  TP_ASSIGN_OR_RETURN(const std::vector<PlayedEpisode> episodes, Play(context, model, e, o));

  if (!o.output.empty()) {
    std::ofstream dump(o.output, std::ios::trunc);
    for (const PlayedEpisode& p : episodes) {
      dump << json{{"episode", p.episode},
                   {"return", p.score},
                   {"steps", p.steps},
                   {"terminated", p.terminated}}
                  .dump()
           << "\n";
    }
    dump.close();
    if (!dump) return Unavailable("--output: " + o.output + " cannot be written");
  }
  const char* const how = o.sampled ? "sampled" : "greedy";
  if (!o.render.empty()) {
    const PlayedEpisode& p = episodes[static_cast<size_t>(o.episode)];
    TP_ASSIGN_OR_RETURN(
        const environments::EpisodeFrames frames,
        environments::ReplayEpisode(e, environments::kEvaluationInstances + static_cast<uint64_t>(o.episode),
                                    p.actions,
                                    PluginCall{.what = environments::LabelOf(*rules),
                                               .on = "the episode that is drawn",
                                               .limit_s = e.step_timeout_s,
                                               .key = "environment.step_timeout_s"}));
    const std::string title = e.name + ", episode " + std::to_string(o.episode) + ", " + how + ": return " +
                              ShortNumber(p.score) + " in " + std::to_string(p.steps) + " steps";
    std::ofstream out(o.render, std::ios::trunc);
    out << environments::DrawEpisode(frames, title);
    out.close();
    if (!out) return Unavailable("--render: " + o.render + " cannot be written");
  }
  const Played p = Summarize(episodes, rules->solved_return);
  if (o.as_json) {
    std::printf("%s\n",
                json{{"model", model.dir},
                     {"task", e.name},
                     {"episodes", o.episodes},
                     {"greedy", !o.sampled},
                     {"seed", e.seed},
                     {"return",
                      {{"value", p.returns.mean},
                       {"low", p.returns.low},
                       {"high", p.returns.high},
                       {"std", p.deviation},
                       {"min", p.least},
                       {"max", p.most}}},
                     {"length", {{"mean", p.steps_mean}, {"min", p.steps_least}, {"max", p.steps_most}}},
                     {"truncated", p.truncated},
                     {"solved",
                      {{"value", p.solved.mean},
                       {"low", p.solved.low},
                       {"high", p.solved.high},
                       {"return", rules->solved_return}}}}
                    .dump()
                    .c_str());
    return OkStatus();
  }
  std::printf("%s, %lld episodes, %s, seed %llu\n", e.name.c_str(), static_cast<long long>(o.episodes), how,
              static_cast<unsigned long long>(e.seed));
  std::printf("return  %s (95 %% interval %s to %s), smallest %s, largest %s\n",
              ShortNumber(p.returns.mean).c_str(), ShortNumber(p.returns.low).c_str(),
              ShortNumber(p.returns.high).c_str(), ShortNumber(p.least).c_str(), ShortNumber(p.most).c_str());
  std::printf("length  %s steps, %lld to %lld; the limit of %lld ended %lld\n",
              ShortNumber(p.steps_mean).c_str(), static_cast<long long>(p.steps_least),
              static_cast<long long>(p.steps_most), static_cast<long long>(rules->max_episode_steps),
              static_cast<long long>(p.truncated));
  std::printf("solved  %.1f %% (95 %% interval %.1f to %.1f) have a return of %s or more\n",
              100 * p.solved.mean, 100 * p.solved.low, 100 * p.solved.high,
              ShortNumber(rules->solved_return).c_str());
  if (!o.render.empty()) {
    const PlayedEpisode& drawn = episodes[static_cast<size_t>(o.episode)];
    std::printf("drawn   episode %lld, return %s -> %s\n", static_cast<long long>(o.episode),
                ShortNumber(drawn.score).c_str(), o.render.c_str());
  }
  return OkStatus();
}

}  // namespace tidepool::workers
