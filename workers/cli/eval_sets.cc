#include "workers/cli/eval_sets.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/json_fields.h"
#include "core/base/real_file_system.h"
#include "core/observe/run_files.h"
#include "core/storage/checkpoint.h"
#include "core/storage/run_directory.h"
#include "core/tasks/data_source.h"
#include "core/tasks/jsonl_data.h"
#include "core/tasks/task.h"

namespace tidepool::workers {
namespace {

// Takes a row in, if its prompt is not too long. `where` names it in errors.
StatusOr<bool> Take(EvalSet& set, StatusOr<EncodedRow> row, const std::string& where,
                    const EvalSetLimits& limits) {
  if (!row.ok()) return row.status().At(where);
  if (limits.prompt_tokens > 0 && static_cast<int64_t>(row->prompt.size()) > limits.prompt_tokens) {
    ++set.too_long;
    return false;
  }
  set.rows.push_back(std::move(*row));
  return true;
}

Status CheckRows(const EvalSet& set, const EvalSetLimits& limits) {
  if (!set.rows.empty()) return OkStatus();
  if (set.too_long == 0) return InvalidArgument(set.name + ": there are no questions to ask");
  return InvalidArgument("--max-prompt-tokens: all prompts of " + set.name + " (" +
                         std::to_string(set.too_long) + ") have more than " +
                         std::to_string(limits.prompt_tokens) + " tokens; raise it");
}

bool Full(const EvalSet& set, const EvalSetLimits& limits) {
  return limits.rows > 0 && static_cast<int64_t>(set.rows.size()) >= limits.rows;
}

}  // namespace

std::string EvalSet::Place(size_t index) const {
  const auto& origin = rows[index].origin;
  return of_file ? origin.file + ":" + std::to_string(origin.line)
                 : name + " question " + std::to_string(origin.row);
}

StatusOr<EvalSet> TaskSet(const std::string& task, const std::map<std::string, std::string>& options,
                          int64_t held_out, uint64_t seed, const RowSource& text,
                          const EvalSetLimits& limits) {
  DataConfig data;
  data.task = task;
  data.options = options;
  if (tasks::FindTask(task) == nullptr) {
    const Status missing = tasks::MakeTask({.name = task}).status();  // with the nearest name
    return Status(missing.code(), "--" + missing.message());          // "task: no task is named ..."
  }
  const auto units = tasks::CountUnits(task, options);
  if (!units.ok()) return units.status().At("--option");
  data.held_out = held_out >= 0 ? held_out : std::min<int64_t>(data.held_out, *units / 4);
  const auto source = tasks::DataSource::Create(data, seed, JobKind::kRl);
  if (!source.ok()) return source.status().At("--task " + task);
  EvalSet set{.name = task, .rows = {}, .of_file = false, .too_long = 0};
  for (int64_t i = 0; i < source->held_out_size() && !Full(set, limits); ++i) {
    TP_ASSIGN_OR_RETURN(const bool taken, Take(set, text.Encode(source->HeldOut(i)),
                                               task + " question " + std::to_string(i), limits));
    if (taken) set.rows.back().origin.row = i;
  }
  TP_RETURN_IF_ERROR(CheckRows(set, limits));
  return set;
}

StatusOr<EvalSet> FileSet(const std::string& path, const RowSource& text, const EvalSetLimits& limits,
                          std::vector<std::string>& warnings) {
  auto opened = tasks::JsonlData::Open(path, {});
  if (opened.status().code() == StatusCode::kNotFound) return opened.status().At("--data");
  TP_ASSIGN_OR_RETURN(const tasks::JsonlData file, std::move(opened));
  if (file.bad_lines() > 0) {
    warnings.push_back(path + ": " + std::to_string(file.bad_lines()) +
                       " bad lines are left out; the first is " + file.problems().front());
  }
  EvalSet set{.name = path, .rows = {}, .of_file = true, .too_long = 0};
  for (int64_t i = 0; i < file.size() && !Full(set, limits); ++i) {
    const std::string where = path + ":" + std::to_string(file.line(i));
    TP_ASSIGN_OR_RETURN(const bool taken, Take(set, text.Encode(file.Row(i)), where, limits));
    if (taken) set.rows.back().origin = {.file = path, .line = file.line(i), .row = i};
  }
  TP_RETURN_IF_ERROR(CheckRows(set, limits));
  return set;
}

namespace {

// Of the newest checkpoint; where they are pruned, of the summary. Empty: nothing says.
StatusOr<std::string> TrainedIdentity(const std::string& run) {
  RealFileSystem files;
  const storage::RunPaths paths(run);
  TP_ASSIGN_OR_RETURN(const std::vector<StepNumber> steps,
                      storage::ListCheckpoints(files, paths.checkpoints()));
  if (!steps.empty()) {
    const std::string newest = JoinPath(paths.checkpoints(), storage::CheckpointName(steps.back()));
    TP_ASSIGN_OR_RETURN(const storage::Manifest manifest, storage::ReadManifest(files, newest, std::nullopt));
    const auto trained = manifest.notes.find("data_identity");
    return trained == manifest.notes.end() ? "" : trained->second;
  }
  observe::SummaryFile summary;
  if (const auto text = files.ReadFile(paths.summary(), 1 << 20); text.ok()) {
    const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
    if (json.is_object()) FromJson(json, summary);
  }
  return summary.data_identity;
}

// A share that was held out is another one if the file has changed, and then has rows that were trained on.
Status CheckSameRows(const std::string& run, const JobConfig& config, const RowSource& rows) {
  TP_ASSIGN_OR_RETURN(const std::string trained, TrainedIdentity(run));
  const bool share = config.data.task.empty() && config.data.eval_path.empty();
  if (trained == rows.identity() || (trained.empty() && !share)) return OkStatus();
  return FailedPrecondition(
      (trained.empty() ? "no checkpoint is left of " + run +
                             " and its summary.json does not say which rows it was trained on"
                       : "the data of " + run + " have changed since it was trained") +
      ", so which rows were held out is not known; name the rows to ask with --data FILE");
}

}  // namespace

StatusOr<RunSet> SetOfRun(const std::string& run, const JobConfig& config, const std::string& model_dir,
                          const EvalSetLimits& limits) {
  const std::string instead = "; name what to ask with --task or --data";
  if (TrainsOnPairs(config)) {
    return FailedPrecondition("the held-out rows of " + run +
                              " are pairs, which are compared and not answered; `tidepool status " + run +
                              "` says what became of them" + instead);
  }
  JobConfig job = config;  // as long as the model allows
  job.train.micro_batch_tokens = int64_t{1} << 40;
  job.data.max_prompt_tokens = int64_t{1} << 20;
  auto rows = RowSource::Create(job, model_dir);
  if (!rows.ok()) return Status(rows.status().code(), rows.status().message() + instead);
  RunSet out{
      .set = {.name = config.data.task, .rows = {}, .of_file = config.data.task.empty(), .too_long = 0},
      .text = std::move(*rows)};
  EvalSet& set = out.set;
  if (set.of_file) {
    set.name = config.data.eval_path.empty() ? config.data.path + " (held out)" : config.data.eval_path;
  }
  if (out.text->held_out_size() == 0)
    return FailedPrecondition(run + " has held no rows out (data.held_out: 0)" + instead);
  if (!out.text->HasAnswers())
    return FailedPrecondition("the held-out rows of " + run + " are texts to be learned, without questions" +
                              instead);
  TP_RETURN_IF_ERROR(CheckSameRows(run, config, *out.text));
  for (int64_t i = 0; i < out.text->held_out_size() && !Full(set, limits); ++i) {
    const RowSource::Which which{.number = i, .held_out = true};
    TP_ASSIGN_OR_RETURN([[maybe_unused]] const bool taken,
                        Take(set, out.text->Tokens(which), out.text->Place(which), limits));
  }
  TP_RETURN_IF_ERROR(CheckRows(set, limits));
  return out;
}

StatusOr<std::vector<NamedReward>> MakeRewards(const std::vector<std::string>& names) {
  std::vector<NamedReward> rewards;
  for (const std::string& name : names) {
    if (std::ranges::find(rewards, name, &NamedReward::name) != rewards.end())
      return InvalidArgument("--reward: " + name + " stands there twice");
    auto grade = tasks::MakeReward(name);
    if (!grade.ok()) return grade.status().At("--reward");
    rewards.push_back({.name = name, .grade = std::move(*grade)});
  }
  return rewards;
}

StatusOr<std::vector<NamedReward>> RewardsOfRun(const JobConfig& config) {
  std::vector<NamedReward> rewards;
  for (const RewardFunction& f : config.reward.functions) {
    TP_ASSIGN_OR_RETURN(tasks::Reward grade, tasks::MakeReward(f.name));
    rewards.push_back({f.name, std::move(grade), f.weight, f.timeout_s});
  }
  return rewards;
}

Grade GradeOf(const up::Graded& verdict) {
  Grade grade;
  if (verdict.outcome != GradeOutcome::kOk) {
    grade.error = verdict.why.empty() ? "could not score the answer" : verdict.why;
    grade.of_data = verdict.outcome == GradeOutcome::kData;
    return grade;
  }
  grade.rewards = {verdict.rewards.begin(), verdict.rewards.end()};
  grade.details = verdict.details;
  if (!verdict.rewards.empty()) grade.first = verdict.rewards.front().second;
  grade.sum = verdict.reward;
  return grade;
}

Grade GradeAnswer(const std::vector<NamedReward>& rewards, const tasks::RewardInput& input,
                  const std::string& failed) {
  Grade grade;
  if (!failed.empty()) {
    grade.error = failed;
    return grade;
  }
  for (const NamedReward& reward : rewards) {
    const tasks::Verdict verdict = reward.grade(input);
    if (verdict.outcome != tasks::Verdict::Outcome::kOk) {
      grade = {};
      grade.error =
          reward.name + ": " + (verdict.detail.empty() ? "could not score the answer" : verdict.detail);
      grade.of_data = verdict.outcome == tasks::Verdict::Outcome::kData;
      return grade;
    }
    if (grade.rewards.empty()) grade.first = verdict.score;
    grade.rewards[reward.name] = verdict.score;
    if (!verdict.detail.empty()) grade.details[reward.name] = verdict.detail;
    grade.sum += reward.weight * verdict.score;
  }
  return grade;
}

void EvalTally::AddRows(int64_t rows) {
  begin_ = this->rows();
  const auto now = static_cast<size_t>(begin_ + rows);
  whole_.resize(now);
  for (const std::string& name : names_) single_[name].resize(now);
}

void EvalTally::Add(int64_t row, const Grade& grade, int64_t tokens, bool ended) {
  ++answers_;
  tokens_ += tokens;
  if (!grade.error.empty()) {
    ++unscored_;
    return;
  }
  if (!ended) ++cut_;
  graded_ = graded_ || (grade.first != 0 && grade.first != 1);
  const auto at = static_cast<size_t>(begin_ + row);
  const auto add = [&](QuestionScore& q, double score) {
    ++q.answers;
    q.sum += score;
    if (grade.first == 1) ++q.right;
  };
  add(whole_[at], grade.sum);
  for (const auto& [name, score] : grade.rewards) add(single_[name][at], score);
}

std::vector<EvalTally::Measure> EvalTally::Measures(const std::vector<int64_t>& pass_at) const {
  const auto with_answers = [&](int64_t least) {
    return std::ranges::count_if(whole_, [&](const QuestionScore& q) { return q.answers >= least; });
  };
  std::vector<Measure> out;
  if (!graded_) {
    out.push_back({"accuracy", Accuracy(whole_), with_answers(1), true});
    for (const int64_t k : pass_at)
      out.push_back({"pass@" + std::to_string(k), PassAtK(whole_, k), with_answers(k), true});
  }
  out.push_back({"reward", MeanReward(whole_), with_answers(1), false});
  if (names_.size() > 1) {
    for (const std::string& name : names_)
      out.push_back({"reward/" + name, MeanReward(single_.at(name)), with_answers(1), false});
  }
  return out;
}

double EvalTally::tokens_mean() const {
  return answers_ > 0 ? static_cast<double>(tokens_) / static_cast<double>(answers_) : 0;
}

}  // namespace tidepool::workers
