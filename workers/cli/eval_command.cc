// eval: what a model's answers to questions are worth.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/config/load.h"
#include "core/environments/text_game.h"
#include "core/observe/held_out.h"
#include "core/storage/run_directory.h"
#include "core/tasks/task.h"
#include "workers/cli/answer_progress.h"
#include "workers/cli/command.h"
#include "workers/cli/eval_sets.h"
#include "workers/cli/game_eval.h"
#include "workers/cli/grading_session.h"
#include "workers/cli/model_session.h"
#include "workers/cli/ordered_lines.h"
#include "workers/cli/plugin_calls.h"
#include "workers/cli/policy_eval.h"
#include "workers/controller/job.h"
#include "workers/data/model_folder.h"
#include "workers/side/model_reward.h"

namespace tidepool::workers {
namespace {

using nlohmann::json;

struct EvalOptions : SamplingOptions {
  std::vector<std::string> tasks, files, task_options, rewards;
  std::vector<int64_t> pass_at;
  std::string output;
  int64_t limit = 0, max_prompt_tokens = 0, held_out = -1, samples = 1;
  bool as_json = false;
  PolicyEvalOptions policy;
  std::optional<JobConfig> run;        // whose model it is
  bool own_seed = false;               // --seed
  std::unique_ptr<PluginCalls> calls;  // of rewards and games, once there are any
  // Nothing is named: what the run's own evaluations ask, by its rewards and limits.
  [[nodiscard]] bool AsksRun() const { return run && tasks.empty() && files.empty(); }
  // The run's task is asked as the run asks it, as far as the command line says nothing else.
  [[nodiscard]] bool IsRunsTask(const std::string& task) const { return run && run->data.task == task; }
};

// Options of a task, NAME=VALUE; of one of several, TASK:NAME=VALUE.
StatusOr<std::map<std::string, std::string>> OptionsOf(const EvalOptions& o, const std::string& task) {
  std::map<std::string, std::string> options;
  if (o.IsRunsTask(task)) options = o.run->data.options;
  const tasks::TaskInfo* questions = tasks::FindTask(task);
  const environments::TextEnvironmentInfo* game = environments::FindTextEnvironment(task);
  const std::vector<tasks::Option> table = questions != nullptr ? questions->options
                                           : game != nullptr    ? game->options
                                                                : std::vector<tasks::Option>();
  for (const std::string& option : o.task_options) {
    const size_t equals = option.find('='), colon = option.find(':');
    if (equals == std::string::npos) return InvalidArgument("--option: " + option + " is not name=value");
    const bool named = colon < equals;
    const std::string of = named ? option.substr(0, colon) : "";
    if (named ? std::ranges::find(o.tasks, of) == o.tasks.end() : o.tasks.size() > 1) {
      return InvalidArgument("--option: " + option +
                             (named ? ": " + of + " is not asked here; name one of --task"
                                    : ": of which task? With several it is TASK:name=value"));
    }
    const size_t begin = named ? colon + 1 : 0;
    if (named && of != task) continue;
    const std::string name = option.substr(begin, equals - begin);
    options[name] = tasks::OptionJson(table, name, option.substr(equals + 1));
  }
  return options;
}

Status CheckOptions(const EvalOptions& o) {
  if (o.tasks.empty() && o.files.empty() && !o.run)
    return InvalidArgument(
        "eval: give --task or --data, as many as you like; without them --model is a run, whose own held-out "
        "questions are asked");
  if (o.tasks.empty() && (!o.task_options.empty() || o.held_out >= 0))
    return InvalidArgument(
        std::string("eval: ") + (o.held_out >= 0 ? "--held-out" : "--option") +
        " is for --task, which is to be named; of --data, and of what a run has held out, all "
        "rows are asked, or as many as --limit says");
  for (const auto* names : {&o.tasks, &o.files}) {
    for (const std::string& name : *names) {
      if (std::ranges::count(*names, name) > 1)
        return InvalidArgument((names == &o.tasks ? "--task: " : "--data: ") + name + " stands there twice");
    }
  }
  if (o.samples > 1 && o.job.rollout.temperature == 0)
    return InvalidArgument(
        "eval: --samples above 1 needs --temperature above 0; greedy answers are all the same");
  for (const int64_t k : o.pass_at) {
    if (k > o.samples)
      return InvalidArgument("--pass-at: " + std::to_string(k) + " of " + std::to_string(o.samples) +
                             " answers cannot be drawn; raise --samples");
  }
  return CheckSampling(o);
}

// As asked for, ascending; else 1, 2, 4 ... of the samples there are.
std::vector<int64_t> PassAt(const EvalOptions& o) {
  std::vector<int64_t> ks = o.pass_at;
  if (ks.empty() && o.samples > 1) {
    for (int64_t k = 1; k <= o.samples; k *= 2) ks.push_back(k);
  }
  std::ranges::sort(ks);
  ks.erase(std::ranges::unique(ks).begin(), ks.end());
  return ks;
}

// Of a model that is asked: an adapter's name where there are several, else empty.
std::string AskedName(const EvalOptions& o, size_t asked) {
  return o.adapters.size() > 1 ? o.adapter_names[asked] : "";
}

json RowOf(const EvalSet& set, size_t row, int64_t sample, const std::string& text, const Completion& answer,
           const Grade& grade, const std::string& adapter) {
  const tasks::Question& question = set.rows[row].question;
  json line = {{"set", set.name},
               {"row", row},
               {"sample", sample},
               {"prompt", question.prompt},
               {"answer", question.answer},
               {"text", text},
               {"tokens", answer.tokens.size()},
               {"ended", answer.ended}};
  if (set.of_file) line["line"] = set.rows[row].origin.line;
  if (!adapter.empty()) line["adapter"] = adapter;
  for (const tasks::Message& m : question.messages)
    line["messages"].push_back({{"role", m.role}, {"content", m.content}});
  const bool scored = grade.error.empty();
  line["score"] = scored ? json(grade.first) : json(nullptr);  // of the first reward
  line["reward"] = scored ? json(grade.sum) : json(nullptr);
  line["rewards"] = grade.rewards;
  if (!grade.details.empty()) line["details"] = grade.details;
  if (!scored) line["error"] = grade.error;
  return line;
}

json ToJson(const std::string& name, const EvalTally& tally, const std::vector<int64_t>& pass_at) {
  json out = {{"set", name},
              {"rows", tally.rows()},
              {"answers", tally.answers()},
              {"unscored", tally.unscored()},
              {"cut", tally.cut()},
              {"tokens_mean", tally.tokens_mean()}};
  for (const EvalTally::Measure& m : tally.Measures(pass_at))
    out[m.name] = {{"value", m.of.mean}, {"low", m.of.low}, {"high", m.of.high}};  // not a number: null
  return out;
}

// One line a measure of each set, in columns.
void PrintTable(const std::vector<std::pair<std::string, EvalTally>>& sets,
                const std::vector<int64_t>& pass_at) {
  std::vector<std::vector<std::string>> table = {{"set", "measure", "value", "95 % interval", "rows"}};
  for (const auto& [name, tally] : sets) {
    for (const EvalTally::Measure& m : tally.Measures(pass_at)) {
      const std::string kind = m.share ? "accuracy" : "reward";
      const auto value = [&](double v) { return observe::HeldOutText(kind, v); };
      table.push_back({name, m.name, value(m.of.mean),
                       std::isnan(m.of.low) ? "-" : value(m.of.low) + " to " + value(m.of.high),
                       std::to_string(m.rows)});
    }
  }
  std::vector<size_t> width(table.front().size());
  for (const auto& line : table) {
    for (size_t i = 0; i < line.size(); ++i) width[i] = std::max(width[i], line[i].size());
  }
  for (const auto& line : table) {
    for (size_t i = 0; i < line.size(); ++i) {
      const bool left = i < 2;  // words; numbers stand at the right
      std::printf(left ? "%s%-*s" : "%s%*s", i == 0 ? "" : "  ", static_cast<int>(width[i]), line[i].c_str());
    }
    std::printf("\n");
  }
}

// What came of all sets.
struct Outcome {
  explicit Outcome(const std::vector<std::string>& rewards) : total(rewards) {}
  std::vector<std::pair<std::string, EvalTally>> sets;
  EvalTally total;
  std::string first_error;  // of the answers that could not be scored
  bool of_data = true;      // all of them for reasons that are in the data
};

// Of one that was asked.
Status Complain(const EvalOptions& o, const Outcome& outcome) {
  const EvalTally& total = outcome.total;
  if (total.unscored() == total.answers()) {
    const std::string message = "eval: no answer could be scored; the first: " + outcome.first_error;
    return outcome.of_data ? InvalidArgument(message) : Internal(message);
  }
  if (total.unscored() > 0) {
    std::fprintf(stderr, "warning: %lld of %lld answers are not scored; the first: %s\n",
                 static_cast<long long>(total.unscored()), static_cast<long long>(total.answers()),
                 outcome.first_error.c_str());
  }
  if (total.cut() > 0) {
    std::fprintf(stderr, "note: %lld of %lld answers were cut off at a limit (--max-new-tokens %lld)\n",
                 static_cast<long long>(total.cut()), static_cast<long long>(total.answers()),
                 static_cast<long long>(o.job.rollout.max_new_tokens));
  }
  if (total.graded()) {
    std::fprintf(stderr,
                 "note: %s gives more than 0 and 1, so accuracy and pass@k mean nothing and are left out\n",
                 total.names().front().c_str());
  }
  return OkStatus();
}

// `asked`: what came of each of EvalOptions::Asked.
Status Report(const EvalOptions& o, const std::vector<Outcome>& asked) {
  for (size_t i = 0; i < asked.size(); ++i) {
    const Status status = Complain(o, asked[i]);
    if (!status.ok()) return AskedName(o, i).empty() ? status : status.At(AskedName(o, i));
  }
  const std::vector<int64_t> pass_at = PassAt(o);
  if (o.as_json) {
    json out = {{"model", o.job.model.path},
                {"samples", o.samples},
                {"temperature", o.job.rollout.temperature},
                {"max_new_tokens", o.job.rollout.max_new_tokens},
                {"seed", o.job.seed},
                {"reward_names", asked.front().total.names()}};
    for (size_t i = 0; i < asked.size(); ++i) {
      json of = {{"total", ToJson("total", asked[i].total, pass_at)}};
      if (!o.adapters.empty()) of["adapter"] = o.adapters[i];
      for (const auto& [name, tally] : asked[i].sets) of["sets"].push_back(ToJson(name, tally, pass_at));
      if (asked.size() == 1) {
        out.update(of);
      } else {
        of["name"] = o.adapter_names[i];
        out["adapters"].push_back(std::move(of));
      }
    }
    std::printf("%s\n", out.dump().c_str());
    return OkStatus();
  }
  std::vector<std::pair<std::string, EvalTally>> table;
  for (size_t i = 0; i < asked.size(); ++i) {
    const std::string name = AskedName(o, i).empty() ? "" : AskedName(o, i) + ": ";
    for (const auto& [set, tally] : asked[i].sets) table.emplace_back(name + set, tally);
    if (asked[i].sets.size() > 1) table.emplace_back(name + "total", asked[i].total);
  }
  PrintTable(table, pass_at);
  return OkStatus();
}

void SayTooLong(const EvalOptions& o, const std::vector<EvalSet>& sets) {
  for (const EvalSet& set : sets) {
    if (set.too_long == 0) continue;
    std::fprintf(stderr,
                 "warning: %s: %lld rows are left out; their prompts have more than %lld tokens "
                 "(--max-prompt-tokens)\n",
                 set.name.c_str(), static_cast<long long>(set.too_long),
                 static_cast<long long>(o.max_prompt_tokens));
  }
}

// All sets, or why one cannot be read; what is left out of them is said.
StatusOr<std::vector<EvalSet>> ReadSets(const EvalOptions& o, const RowSource& text) {
  const EvalSetLimits limits{.rows = o.limit, .prompt_tokens = o.max_prompt_tokens};
  std::vector<EvalSet> sets;
  std::vector<std::string> warnings;
  for (const std::string& task : o.tasks) {
    TP_ASSIGN_OR_RETURN(const auto options, OptionsOf(o, task));
    const bool runs = o.IsRunsTask(task);
    TP_ASSIGN_OR_RETURN(EvalSet set,
                        TaskSet(task, options, runs && o.held_out < 0 ? o.run->data.held_out : o.held_out,
                                runs && !o.own_seed ? o.run->seed : o.job.seed, text, limits));
    sets.push_back(std::move(set));
  }
  for (const std::string& file : o.files) {
    TP_ASSIGN_OR_RETURN(EvalSet set, FileSet(file, text, limits, warnings));
    sets.push_back(std::move(set));
  }
  for (const std::string& warning : warnings) std::fprintf(stderr, "warning: %s\n", warning.c_str());
  SayTooLong(o, sets);
  return sets;
}

Status NotWritten(const EvalOptions& o, const char* why = "") {
  return Unavailable("--output: " + o.output + " cannot be written" + why);
}

// --output, where it is wanted.
StatusOr<std::unique_ptr<OrderedLines>> OpenOutput(const EvalOptions& o, int64_t lines) {
  if (o.output.empty()) return std::unique_ptr<OrderedLines>();
  auto out = std::make_unique<OrderedLines>(o.output, std::ios::trunc, static_cast<size_t>(lines));
  if (!out->ok()) return NotWritten(o);
  return out;
}

// What the run's own evaluations go by, as far as the command line does not say it.
void TakeLimitsOfRun(const CLI::App& command, EvalOptions& o) {
  const JobConfig& run = *o.run;
  const auto given = [&](const char* name) { return command.count(name) > 0; };
  RolloutConfig& r = o.job.rollout;
  if (!given("--max-new-tokens")) r.max_new_tokens = run.rollout.max_new_tokens;
  if (!given("--stop")) r.stop = run.rollout.stop;
  if (!given("--limit")) o.limit = run.eval.samples;
  if (!given("--max-prompt-tokens")) o.max_prompt_tokens = run.data.max_prompt_tokens;
}

// All answers of a set, each with what it is worth by `on_grade`.
Status GradeBySession(GradingSession& grader, const std::vector<Completion>& answers,
                      const std::function<tasks::RewardInput(size_t, const Completion&)>& input_of,
                      const std::function<void(size_t, const Completion&, const Grade&)>& on_grade) {
  std::vector<tasks::RewardInput> inputs;
  std::vector<size_t> asked;
  for (size_t i = 0; i < answers.size(); ++i) {
    if (!answers[i].error.empty()) {
      on_grade(i, answers[i], GradeAnswer({}, {}, answers[i].error));
      continue;
    }
    inputs.push_back(input_of(i, answers[i]));
    asked.push_back(i);
  }
  TP_ASSIGN_OR_RETURN(const std::vector<up::Graded> verdicts, grader.Grade(std::move(inputs)));
  for (size_t k = 0; k < asked.size(); ++k) on_grade(asked[k], answers[asked[k]], GradeOf(verdicts[k]));
  return OkStatus();
}

Status Ask(const CommandContext& context, const FoundModel& model, EvalOptions& o) {
  const bool by_run = o.rewards.empty() && o.AsksRun() && !o.run->reward.functions.empty();
  // What is no function of this program is asked as the run asks it.
  std::unique_ptr<GradingSession> grader;
  if (by_run && std::ranges::any_of(o.run->reward.functions, [](const RewardFunction& f) {
        return !f.endpoint.empty() || f.by_model();
      })) {
    for (const RewardFunction& f : o.run->reward.functions) {
      if (f.by_model()) TP_RETURN_IF_ERROR(CheckModelReward(f).At("the run's reward " + f.name));
    }
    TP_ASSIGN_OR_RETURN(const std::string worker_path, FindWorker({}, context.self_path));
    TP_ASSIGN_OR_RETURN(grader, GradingSession::Start({.job = *o.run,
                                                       .self_path = context.self_path,
                                                       .worker_path = worker_path,
                                                       .stop = StopOnSignal()}));
  }
  std::vector<NamedReward> rewards;
  std::vector<std::string> names;
  if (grader != nullptr) {
    for (const RewardFunction& f : o.run->reward.functions) names.push_back(f.name);
  } else {
    TP_ASSIGN_OR_RETURN(
        rewards, by_run
                     ? RewardsOfRun(*o.run)
                     : MakeRewards(o.rewards.empty() ? std::vector<std::string>{"exact_answer"} : o.rewards));
  }
  o.calls = std::make_unique<PluginCalls>(StopOnSignal());
  PluginCalls& calls = *o.calls;
  for (NamedReward& reward : rewards) {
    names.push_back(reward.name);
    reward.grade =
        calls.LimitedReward(tasks::RewardLabel(reward.name), reward.timeout_s, std::move(reward.grade));
  }
  std::unique_ptr<RowSource> text;
  std::vector<EvalSet> sets;
  if (o.AsksRun()) {
    TP_ASSIGN_OR_RETURN(RunSet own, SetOfRun(model.run, *o.run, model.dir,
                                             {.rows = o.limit, .prompt_tokens = o.max_prompt_tokens}));
    text = std::move(own.text);
    sets.push_back(std::move(own.set));
    SayTooLong(o, sets);
  } else {
    TP_ASSIGN_OR_RETURN(text, TextOf(o));
    TP_ASSIGN_OR_RETURN(sets, ReadSets(o, *text));
  }
  int64_t answers = 0;
  const std::vector<int32_t> asked = o.Asked();
  for (const EvalSet& set : sets) answers += static_cast<int64_t>(set.rows.size() * asked.size()) * o.samples;
  TP_ASSIGN_OR_RETURN(auto session, StartSession(context, o));
  TP_ASSIGN_OR_RETURN(const auto dump, OpenOutput(o, answers));
  AnswerProgress progress(answers, 0);
  std::vector<Outcome> outcomes(asked.size(), Outcome(names));
  Status grader_lost;
  size_t before = 0;  // answers of the sets before
  for (const EvalSet& set : sets) {
    // A set at a time: its answers are those that it has alone.
    std::vector<InferenceSession::Request> requests;
    for (size_t row = 0; row < set.rows.size(); ++row) {
      for (int32_t k = 0; k < o.samples; ++k) {
        for (const int32_t adapter : asked)
          requests.push_back({static_cast<int64_t>(row), k, set.rows[row].prompt,
                              o.job.rollout.temperature == 0, 0, adapter});
      }
    }
    for (Outcome& outcome : outcomes) {
      outcome.sets.emplace_back(set.name, EvalTally(names));
      for (EvalTally* t : {&outcome.sets.back().second, &outcome.total})
        t->AddRows(static_cast<int64_t>(set.rows.size()));
    }
    const auto input_of = [&](size_t i, const Completion& answer) {
      const auto row = static_cast<size_t>(requests[i].ordinal);
      tasks::RewardInput input = text->InputOf({requests[i].ordinal, 0, requests[i].sample}, set.rows[row],
                                               answer.tokens.ids, answer.ended);
      input.max_new_tokens = o.job.rollout.max_new_tokens;
      input.held_out = true;
      return input;
    };
    const auto on_grade = [&](size_t i, const Completion& answer, const Grade& grade) {
      const auto row = static_cast<size_t>(requests[i].ordinal);
      const std::string said = text->ResponseText(answer.tokens.ids);
      const size_t which = i % asked.size();
      Outcome& outcome = outcomes[which];
      for (EvalTally* t : {&outcome.sets.back().second, &outcome.total})
        t->Add(requests[i].ordinal, grade, answer.tokens.size(), answer.ended);
      if (!grade.error.empty()) {
        if (outcome.first_error.empty()) outcome.first_error = set.Place(row) + ": " + grade.error;
        outcome.of_data = outcome.of_data && grade.of_data;
      }
      if (dump != nullptr) {
        // A model may write bytes that are no text.
        dump->Put(before + i, RowOf(set, row, requests[i].sample, said, answer, grade, AskedName(o, which))
                                  .dump(-1, ' ', false, json::error_handler_t::replace));
      }
    };
    const auto on_done = [&](size_t i, const Completion& answer) {
      progress.OnAnswer();
      if (grader == nullptr) on_grade(i, answer, GradeAnswer(rewards, input_of(i, answer), answer.error));
    };
    const auto done = session->Complete(
        requests,
        [&](size_t, const std::vector<int32_t>& ids) {
          progress.OnTokens(static_cast<int64_t>(ids.size()));
          if (grader != nullptr && grader_lost.ok()) grader_lost = grader->Renew();
        },
        [&] { return !grader_lost.ok() || !calls.lost().ok() || (dump != nullptr && !dump->ok()); }, on_done);
    before += requests.size();
    if (!done.ok() || !calls.lost().ok()) progress.Finish();
    TP_RETURN_IF_ERROR(calls.lost());
    if (dump != nullptr && !dump->ok()) return NotWritten(o, "; is the disk full?");
    TP_RETURN_IF_ERROR(grader_lost);
    TP_RETURN_IF_ERROR(done.status());
    if (grader != nullptr) {
      TP_RETURN_IF_ERROR(GradeBySession(*grader, *done, input_of, on_grade));
    }
  }
  progress.Finish();
  return Report(o, outcomes);
}

// The job whose held-out games are played: the run's own, with what the command line changes of it.
StatusOr<JobConfig> JobOfGame(const EvalOptions& o, const FoundModel& model, const std::string& task,
                              bool own_seed) {
  JobConfig job;
  job.job = RlJob{};
  if (!model.run.empty()) {
    TP_ASSIGN_OR_RETURN(const config::LoadedConfig loaded,
                        config::LoadConfig(storage::RunPaths(model.run).config()));
    const EnvironmentConfig* e = loaded.config.environment();
    if (e != nullptr && e->name == task) job = loaded.config;
  }
  if (own_seed) job.seed = o.job.seed;
  EnvironmentConfig& e = std::get<RlJob>(job.job).environment;
  e.name = task;
  if (o.limit > 0) e.held_out = o.limit;
  if (e.held_out < 1) e.held_out = EnvironmentConfig{}.held_out;
  TP_ASSIGN_OR_RETURN(auto options, OptionsOf(o, task));
  for (const auto& [key, number] :
       {std::pair<std::string, int64_t*>("max_turns", &e.max_turns),
        std::pair<std::string, int64_t*>("max_turn_tokens", &e.max_turn_tokens)}) {
    const auto it = options.find(key);
    if (it == options.end()) continue;
    const json value = json::parse(it->second, nullptr, false);
    if (!value.is_number_integer() || value.get<int64_t>() < 1)
      return InvalidArgument("--option: " + key + " is " + it->second + "; expected a whole number above 0");
    *number = value.get<int64_t>();
    options.erase(it);
  }
  for (auto& [name, value] : options) e.options[name] = value;
  job.train.micro_batch_tokens = int64_t{1} << 40;
  job.data.max_prompt_tokens = int64_t{1} << 20;
  return job;
}

bool IsGame(const EvalOptions& o, const std::string& task) {
  const EnvironmentConfig* e = o.run ? o.run->environment() : nullptr;
  if (e != nullptr && e->is_service() && e->name == task) return true;
  return environments::FindTextEnvironment(task) != nullptr && tasks::FindTask(task) == nullptr;
}

// Games of several turns: a game is a row, an episode an answer, "right" that it was solved.
Status AskGames(const CommandContext& context, const FoundModel& model, const CLI::App& command,
                EvalOptions& o) {
  for (const char* name : {"--data", "--reward", "--held-out", "--max-prompt-tokens"}) {
    if (command.count(name) > 0)
      return InvalidArgument("eval: " + std::string(name) +
                             " is for questions, and --task names games of several turns; ask them apart");
  }
  for (const std::string& task : o.tasks) {
    if (!IsGame(o, task))
      return InvalidArgument("--task: " + task + " is no game as the others; ask them apart");
  }
  TP_RETURN_IF_ERROR(CheckModelFolder(o.job.model.path, "--model"));
  std::vector<JobConfig> jobs;
  std::vector<std::unique_ptr<RowSource>> texts;
  const std::vector<int32_t> asked = o.Asked();
  int64_t episodes = 0;
  for (const std::string& task : o.tasks) {
    TP_ASSIGN_OR_RETURN(JobConfig job, JobOfGame(o, model, task, command.count("--seed") > 0));
    auto text = RowSource::Create(job, o.job.model.path);
    if (!text.ok()) return text.status().At("--task " + task);
    episodes += job.environment()->held_out * o.samples * static_cast<int64_t>(asked.size());
    // Of an episode, as in the run.
    if (command.count("--max-new-tokens") == 0 && job.rollout.max_new_tokens > 0)
      o.job.rollout.max_new_tokens =
          std::max(jobs.empty() ? 0 : o.job.rollout.max_new_tokens, job.rollout.max_new_tokens);
    jobs.push_back(std::move(job));
    texts.push_back(std::move(*text));
  }
  TP_ASSIGN_OR_RETURN(auto session, StartSession(context, o));
  // Games are played while the worker has nothing to do, and it is to be there afterwards.
  o.calls = std::make_unique<PluginCalls>([stop = StopOnSignal(), serving = session.get()] {
    (void)serving->Renew();  // Complete says what is wrong with it
    return stop();
  });
  PluginCalls& calls = *o.calls;
  TP_ASSIGN_OR_RETURN(const auto dump, OpenOutput(o, episodes));
  AnswerProgress progress(episodes, 0);
  std::vector<Outcome> outcomes(asked.size(), Outcome({"return"}));
  size_t before = 0;
  for (size_t play = 0; play < jobs.size() * asked.size(); ++play) {
    const size_t i = play / asked.size(), which = play % asked.size();
    Outcome& outcome = outcomes[which];
    const EnvironmentConfig& e = *jobs[i].environment();
    EvalTally tally({"return"});
    for (EvalTally* t : {&tally, &outcome.total}) t->AddRows(e.held_out);
    const auto on_done = [&](const PlayedGame& p) {
      progress.OnAnswer();
      progress.OnTokens(p.tokens);
      Grade grade{.rewards = {{"return", p.reward}},
                  .first = p.solved ? 1.0 : 0.0,
                  .sum = p.reward,
                  .error = p.error,
                  .of_data = false};
      if (!p.error.empty() && outcome.first_error.empty())
        outcome.first_error = e.name + " game " + std::to_string(p.game) + ": " + p.error;
      outcome.of_data = outcome.of_data && p.error.empty();
      for (EvalTally* t : {&tally, &outcome.total}) t->Add(p.game, grade, p.tokens, p.ended);
      if (dump == nullptr) return;
      json line = {{"set", e.name},      {"row", p.game},    {"sample", p.sample}, {"reward", p.reward},
                   {"solved", p.solved}, {"ended", p.ended}, {"turns", p.turns},   {"tokens", p.tokens},
                   {"said", p.said},     {"error", p.error}};
      if (const std::string name = AskedName(o, which); !name.empty()) line["adapter"] = name;
      dump->Put(before + static_cast<size_t>(p.game * o.samples + p.sample),
                line.dump(-1, ' ', false, json::error_handler_t::replace));
    };
    const auto played = PlayGames(*session, *texts[i], calls, jobs[i],
                                  {.samples = static_cast<int32_t>(o.samples),
                                   .greedy = o.job.rollout.temperature == 0,
                                   .max_new_tokens = o.job.rollout.max_new_tokens,
                                   .adapter = asked[which]},
                                  on_done);
    if (!played.ok()) progress.Finish();
    if (dump != nullptr && !dump->ok()) return NotWritten(o, "; is the disk full?");
    TP_RETURN_IF_ERROR(played.status());
    before += played->size();
    outcome.sets.emplace_back(e.name, std::move(tally));
  }
  progress.Finish();
  return Report(o, outcomes);
}

// Options that mean nothing to the kind of model that is evaluated.
constexpr const char* kOfText[] = {"--data",           "--reward",  "--held-out",      "--limit",
                                   "--samples",        "--pass-at", "--dtype",         "--max-new-tokens",
                                   "--temperature",    "--top-k",   "--top-p",         "--min-p",
                                   "--stop",           "--threads", "--deterministic", "--max-prompt-tokens",
                                   "--max-concurrent", "--device"};
constexpr const char* kOfPolicies[] = {"--episodes", "--sampled", "--render", "--episode"};

Status Eval(const CommandContext& context, const CLI::App& command, EvalOptions& o) {
  const auto given = [&](const char* name) { return command.count(name) > 0; };
  const auto refused = [&](auto& names, const std::string& what) -> Status {
    for (const char* name : names) {
      if (given(name)) return InvalidArgument("eval: " + std::string(name) + " is for " + what);
    }
    return OkStatus();
  };
  if (!o.files.empty()) TP_RETURN_IF_ERROR(CheckOptions(o));  // with any model
  TP_ASSIGN_OR_RETURN(const FoundModel model, TakeModel(o));
  if (!model.is_policy()) {
    TP_RETURN_IF_ERROR(refused(
        kOfPolicies, "policies of control tasks, and " + model.dir + " is a model of text; leave it out"));
    o.own_seed = given("--seed");
    if (!model.run.empty()) {
      auto loaded = config::LoadConfig(storage::RunPaths(model.run).config());
      if (loaded.ok()) o.run = std::move(loaded->config);
      if (!loaded.ok() && o.tasks.empty() && o.files.empty()) return loaded.status();
    }
    TP_RETURN_IF_ERROR(CheckOptions(o));
    if (o.AsksRun()) {
      TakeLimitsOfRun(command, o);
      if (const EnvironmentConfig* e = o.run->environment(); e != nullptr) {
        if (e->is_endpoint())
          return InvalidArgument(
              "--model: the environment of " + model.run +
              " are programs that call its endpoint; let them call `tidepool serve --model " + model.run +
              "`, or give --task or --data");
        o.limit = o.limit > 0 ? std::min(o.limit, e->held_out) : e->held_out;
        o.tasks = {e->name};
      }
    }
    return std::ranges::any_of(o.tasks, [&](const std::string& t) { return IsGame(o, t); })
               ? AskGames(context, model, command, o)
               : Ask(context, model, o);
  }
  TP_RETURN_IF_ERROR(
      refused(kOfText, "models of text, and " + model.dir + " is a policy of a control task; leave it out"));
  if (given("--episode") && !given("--render"))
    return InvalidArgument("eval: --episode says which one --render draws; give --render FILE.svg");
  o.policy.tasks = o.tasks;
  o.policy.task_options = o.task_options;
  if (given("--seed")) o.policy.seed = o.job.seed;
  o.policy.output = o.output;
  o.policy.as_json = o.as_json;
  return EvaluatePolicy(context, model, o.policy);
}

}  // namespace

void AddEvalCommand(CLI::App& app, CommandContext& context) {
  auto eval = std::make_shared<EvalOptions>();
  eval->job.rollout.max_new_tokens = 64;
  CLI::App* e = app.add_subcommand("eval",
                                   "What a model is worth: its answers to held-out questions of tasks and to "
                                   "JSONL files, of a run without either to what the run has held out; the "
                                   "episodes of a policy of a control task");
  AddSampling(e, eval.get());
  e->add_option(
      "--task", eval->tasks,
      "Generated task (its held-out questions) or game of several turns (its held-out games), several may be "
      "given; of a policy, its environment");
  e->add_option(
      "--option", eval->task_options,
      "Option of the task, name=value (letters=abc, factors=[2,9]); TASK:name=value of one of several");
  e->add_option("--held-out", eval->held_out, "Held-out questions of a task, in its unit");
  e->add_option("--data", eval->files, "JSONL with `prompt` and `answer`; several may be given");
  e->add_option("--reward", eval->rewards,
                "NAME or NAME:ARG (`tidepool rewards`); several may be given: accuracy is of the first, "
                "`reward` is their sum. Default: exact_answer; of a run's own questions its own rewards");
  e->add_option("--limit", eval->limit,
                "At most so many rows of each set; 0: all. Of a game: so many held-out games")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  e->add_option("--max-prompt-tokens", eval->max_prompt_tokens,
                "Rows with longer prompts are left out; 0: none")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20));
  e->add_option("--max-concurrent", eval->job.rollout.max_concurrent, "Answers under way at a time")
      ->check(CLI::Range(1, 4096));
  e->add_option("--samples", eval->samples, "Answers a question, for pass@k")->check(CLI::Range(1, 1024));
  e->add_option("--pass-at", eval->pass_at, "k of pass@k (1,5,10); default: 1, 2, 4 ... --samples")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024));
  e->add_option("--output", eval->output,
                "JSONL with every answer and its grade, or every episode; replaced");
  e->add_option("--episodes", eval->policy.episodes, "Of a policy: so many are played")
      ->check(CLI::Range(1, 1'000'000));
  e->add_flag("--sampled", eval->policy.sampled, "Of a policy: actions are drawn; else the most likely one");
  e->add_option("--render", eval->policy.render, "Of a policy: an episode as an animated picture, FILE.svg");
  e->add_option("--episode", eval->policy.episode, "The one that --render draws, from 0 on")
      ->check(CLI::Range(0, 1'000'000));
  e->add_flag("--json", eval->as_json, "One JSON object");
  e->footer(
      "Example: tidepool eval --model models/smollm2-135m-instruct --task products --data mine.jsonl "
      "--samples 8 --temperature 0.7");
  e->callback([eval, e, &context] {
    const Status status = Eval(context, *e, *eval);
    if (!status.ok()) Fail(context, status, ModelExitCode(status));
    if (eval->calls != nullptr && !eval->calls->lost().ok()) PluginCalls::EndProcess(context.exit_code);
  });
}

}  // namespace tidepool::workers
