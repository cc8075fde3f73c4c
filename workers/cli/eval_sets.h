#pragma once
// The sets of questions of one `tidepool eval`, and what the answers to them are worth. One thread.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/status.h"
#include "core/tasks/reward.h"
#include "workers/cli/answer_statistics.h"
#include "workers/cli/inference.h"
#include "workers/data/row_source.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

struct EvalSet {
  std::string name;  // the task's, or the file's as it was named; of a share of one, "FILE (held out)"
  std::vector<EncodedRow> rows;
  bool of_file = false;  // else of a task; a row's origin says where it is
  int64_t too_long = 0;  // rows left out: their prompts have more tokens than allowed
  // "rows.jsonl:7", "products question 7": where row `index` is.
  [[nodiscard]] std::string Place(size_t index) const;
};

struct EvalSetLimits {
  int64_t rows = 0;           // at most so many; 0: all
  int64_t prompt_tokens = 0;  // longer prompts are left out; 0: none
};

// A task's held-out questions; `held_out`: in the task's unit, < 0: the usual number. `options`: name ->
// JSON. Errors begin with what is wrong: "--task", "--option".
StatusOr<EvalSet> TaskSet(const std::string& task, const std::map<std::string, std::string>& options,
                          int64_t held_out, uint64_t seed, const RowSource& text,
                          const EvalSetLimits& limits);
// All rows of a JSONL file. Bad lines that are left out are added to `warnings`; errors name file and line.
StatusOr<EvalSet> FileSet(const std::string& path, const RowSource& text, const EvalSetLimits& limits,
                          std::vector<std::string>& warnings);

// What the evaluations of a run ask: its held-out questions, or rows of its files, the first
// `limits.rows` of them. `text` is its own.
struct RunSet {
  EvalSet set;
  std::unique_ptr<RowSource> text;
};
// `run`: the run's directory, and its config. `model_dir`: the model that answers.
//   kFailedPrecondition  nothing is held out, or it is not to be answered: pairs, texts to be learned; or the
//                        files hold other rows than the run was trained on
//   kNotFound            a file is not there any more
StatusOr<RunSet> SetOfRun(const std::string& run, const JobConfig& config, const std::string& model_dir,
                          const EvalSetLimits& limits);

struct NamedReward {
  std::string name;  // as it was asked for, NAME or NAME:ARG
  tasks::Reward grade;
  double weight = 1;  // of its score in the sum
  double timeout_s = RewardFunction{}.timeout_s;
};
// kInvalidArgument, kNotFound: "--reward: ...".
StatusOr<std::vector<NamedReward>> MakeRewards(const std::vector<std::string>& names);
// Those that the run's evaluations grade by.  requires functions of this program: no servers, no models
StatusOr<std::vector<NamedReward>> RewardsOfRun(const JobConfig& config);

// What one answer is worth.
struct Grade {
  std::map<std::string, double> rewards;            // by name; empty where it could not be scored
  std::map<std::string, std::string> details = {};  // what a reward said besides, by name
  double first = 0, sum = 0;                        // of the first reward; of all, by their weights
  std::string error;                                // why it could not be scored
  bool of_data = false;                             // the row is to blame, not the worker
};
// `input`: the answer as a judge sees it (RowSource::InputOf). `failed`: not empty: why there is no answer.
Grade GradeAnswer(const std::vector<NamedReward>& rewards, const tasks::RewardInput& input,
                  const std::string& failed);

Grade GradeOf(const up::Graded& verdict);  // of a GradingSession

// Counts the answers to a set, or to several.
class EvalTally {
 public:
  explicit EvalTally(std::vector<std::string> rewards) : names_(std::move(rewards)) {}
  // The answers of a row stand together: `row` counts from 0 in a set, sets are told apart by AddRows.
  void AddRows(int64_t rows);
  // Of the rows added last. `ended`: by itself, not at a limit.
  void Add(int64_t row, const Grade& grade, int64_t tokens, bool ended);
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] int64_t rows() const { return static_cast<int64_t>(whole_.size()); }
  [[nodiscard]] int64_t answers() const { return answers_; }
  [[nodiscard]] int64_t unscored() const { return unscored_; }
  [[nodiscard]] int64_t cut() const { return cut_; }  // answers that ended at the limit of tokens
  // A first reward was neither 0 nor 1: accuracy and pass@k mean nothing.
  [[nodiscard]] bool graded() const { return graded_; }

  struct Measure {
    std::string name;  // "accuracy", "pass@4", "reward", "reward/format"
    MeanInterval of;
    int64_t rows = 0;    // that it is over: those with enough scored answers
    bool share = false;  // 0 to 1, of a count
  };
  // Accuracy and pass@k, where they mean something, then the mean reward; each reward where there are
  // several.
  [[nodiscard]] std::vector<Measure> Measures(const std::vector<int64_t>& pass_at) const;
  [[nodiscard]] double tokens_mean() const;

 private:
  std::vector<std::string> names_;
  std::vector<QuestionScore> whole_;                          // of all rewards together
  std::map<std::string, std::vector<QuestionScore>> single_;  // of each
  int64_t begin_ = 0;                                         // of the rows added last
  int64_t answers_ = 0, unscored_ = 0, cut_ = 0, tokens_ = 0;
  bool graded_ = false;
};

}  // namespace tidepool::workers
