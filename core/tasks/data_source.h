#pragma once
// The rows of a job in the order in which they are trained on, whatever they come from: a generated
// task or a JSONL file.
//
// Ordinals count without end: row(ordinal) is in epoch ordinal / size(), and each epoch has its own
// permutation named by the seed (or the order of the source with shuffle off). Held-out rows are
// never training rows: a task takes care of that itself; of a file without eval_path, `held_out` rows
// named by the seed are set aside, and training rows with the prompt of a held-out row are left out.
// Immutable; any thread.
//
//   TP_ASSIGN_OR_RETURN(auto source, DataSource::Create(config.data, config.seed, config.kind()));
//   const Question q = source.Row(ordinal);

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/status.h"
#include "core/tasks/jsonl_data.h"
#include "core/tasks/task.h"

namespace tidepool::tasks {

// Where a row is from.
struct RowOrigin {
  std::string file = {};  // empty: a generated question
  int64_t line = 0;       // of the file, from 1
  int64_t row = 0;        // of the file's good rows, or of the task's questions; from 0
};

class DataSource {
 public:
  // `job` says what a row needs. A generated task makes pairs
  // too: the right answer is chosen, one with two neighbouring characters exchanged is rejected
  // (fields["rejected"]). kInvalidArgument, kNotFound: the config or a file is wrong (message with the key or
  // file:line).
  static StatusOr<DataSource> Create(const DataConfig& config, uint64_t seed, JobKind job);

  [[nodiscard]] int64_t size() const { return size_; }  // rows in an epoch, > 0
  [[nodiscard]] Question Row(int64_t ordinal) const;    // requires ordinal >= 0
  [[nodiscard]] int64_t held_out_size() const { return held_out_size_; }
  [[nodiscard]] Question HeldOut(int64_t index) const;         // requires 0 <= index < held_out_size()
  [[nodiscard]] RowOrigin Origin(int64_t ordinal) const;       // as Row
  [[nodiscard]] RowOrigin HeldOutOrigin(int64_t index) const;  // as HeldOut
  // Where a row stands, for messages: "FILE:LINE", or "TASK, question N".
  [[nodiscard]] std::string Place(int64_t ordinal) const;
  [[nodiscard]] std::string HeldOutPlace(int64_t index) const;
  // Of the row's line; 0 of a generated question.
  [[nodiscard]] int64_t Bytes(int64_t ordinal) const;
  // "FILE:LINE: what" of lines that are left out, the first of each file; how many there are.
  [[nodiscard]] std::vector<std::string> Problems() const;
  [[nodiscard]] int64_t bad_lines() const;
  // Rows that are left out because a held-out row has their prompt.
  [[nodiscard]] int64_t like_held_out() const { return like_held_out_; }
  // Names the data: task, options, sizes and seed, or the digests of the files. A run may only be
  // resumed with the same identity. Hex.
  [[nodiscard]] const std::string& identity() const { return identity_; }
  // Things to tell the user (bad lines left out, rows dropped because they are held out).
  [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  [[nodiscard]] Question AsPair(Question question, int64_t index, bool held_out) const;
  Status OpenFiles(const DataConfig& config, JobKind job);
  // Of the task's training questions, or of the rows of `train_`.
  [[nodiscard]] int64_t Index(int64_t ordinal) const;
  [[nodiscard]] const JsonlData& HeldOutFile() const { return eval_ != nullptr ? *eval_ : *train_; }

  std::shared_ptr<const Task> task_;        // of `task_name_`, or
  std::shared_ptr<const JsonlData> train_;  // shared: a source is copied to several threads' owners
  std::shared_ptr<const JsonlData> eval_;   // null: held-out rows are rows of train_
  std::string train_path_, eval_path_;
  std::vector<int64_t> train_rows_;  // rows of train_ that are trained on
  std::vector<int64_t> held_out_rows_;
  int64_t size_ = 0;
  int64_t held_out_size_ = 0, like_held_out_ = 0;
  bool shuffle_ = true;
  bool pairs_ = false;
  uint64_t seed_ = 0;
  std::string identity_, task_name_;
  std::vector<std::string> warnings_;
};

}  // namespace tidepool::tasks
