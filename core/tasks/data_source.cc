#include "core/tasks/data_source.h"

#include <nlohmann/json.hpp>
#include <numeric>
#include <unordered_set>

#include "core/base/check.h"
#include "core/base/hash.h"
#include "core/base/rng.h"

namespace tidepool::tasks {
namespace {

std::string TaskIdentity(const DataConfig& config, uint64_t seed) {
  nlohmann::json j = {{"task", config.task}, {"size", config.size},       {"held_out", config.held_out},
                      {"seed", seed},        {"shuffle", config.shuffle}, {"options", config.options}};
  return Sha256Hex(j.dump());
}

}  // namespace

StatusOr<DataSource> DataSource::Create(const DataConfig& config, uint64_t seed, JobKind job) {
  DataSource source;
  source.shuffle_ = config.shuffle;
  source.pairs_ = !config.task.empty() && TrainsOnPairs(job);
  source.seed_ = Mix64(seed ^ 0x64617461ULL);
  // eval_path alone: questions to be asked, and nothing to train on.
  if (config.task.empty() == (config.path.empty() && config.eval_path.empty())) {
    return InvalidArgument("data: expected either task (a generated one) or path (a JSONL file)");
  }
  if (!config.task.empty()) {
    auto task = MakeTask({.name = config.task,
                          .options = config.options,
                          .size = config.size,
                          .held_out = config.held_out,
                          .seed = source.seed_});
    if (!task.ok()) return Status(task.status().code(), "data." + task.status().message());
    source.task_ = std::move(task).value();
    source.task_name_ = config.task;
    source.size_ = source.task_->train_size();
    source.held_out_size_ = source.task_->held_out_size();
    source.identity_ = TaskIdentity(config, seed);
    return source;
  }
  TP_RETURN_IF_ERROR(source.OpenFiles(config, job));
  return source;
}

Status DataSource::OpenFiles(const DataConfig& config, JobKind job) {
  const JsonlOptions options{.kind = TrainsOnPairs(job)    ? RowKind::kPair
                                     : job == JobKind::kRl ? RowKind::kRl
                                                           : RowKind::kSft};
  train_path_ = config.path;
  eval_path_ = config.eval_path.empty() ? config.path : config.eval_path;
  nlohmann::json identity = {{"shuffle", config.shuffle}, {"seed", seed_}, {"job", Name(job)}};
  if (!config.path.empty()) {
    TP_ASSIGN_OR_RETURN(JsonlData train, JsonlData::Open(config.path, options));
    train_ = std::make_shared<const JsonlData>(std::move(train));
    identity["train"] = train_->digest();
  }
  const int64_t rows = train_ == nullptr ? 0 : train_->size();
  std::unordered_set<uint64_t> held_out_prompts;
  std::vector<bool> set_aside(static_cast<size_t>(rows), false);
  if (!config.eval_path.empty()) {
    TP_ASSIGN_OR_RETURN(JsonlData eval, JsonlData::Open(config.eval_path, options));
    eval_ = std::make_shared<const JsonlData>(std::move(eval));
    identity["eval"] = eval_->digest();
    held_out_rows_.resize(static_cast<size_t>(eval_->size()));
    std::iota(held_out_rows_.begin(), held_out_rows_.end(), int64_t{0});
  } else {
    if (config.held_out < 0 || config.held_out > rows / 2) {
      return InvalidArgument("data.held_out: " + std::to_string(config.held_out) + " of the " +
                             std::to_string(rows) + " rows of " + config.path +
                             "; at most half can be held out: lower it, or give eval_path");
    }
    identity["held_out"] = config.held_out;
    for (int64_t i = 0; i < config.held_out; ++i) {
      const int64_t row = PermutedIndex(i, rows, Mix64(seed_ ^ 0x68656c64ULL));
      held_out_rows_.push_back(row);
      set_aside[static_cast<size_t>(row)] = true;
    }
  }
  held_out_size_ = static_cast<int64_t>(held_out_rows_.size());
  for (const int64_t row : held_out_rows_) held_out_prompts.insert(HeldOutFile().prompt_key(row));
  for (int64_t row = 0; row < rows; ++row) {
    if (set_aside[static_cast<size_t>(row)]) continue;
    if (held_out_prompts.contains(train_->prompt_key(row))) {
      ++like_held_out_;
      continue;
    }
    train_rows_.push_back(row);
  }
  size_ = static_cast<int64_t>(train_rows_.size());
  if (size_ == 0 && train_ != nullptr) {
    return InvalidArgument("data.path: every row of " + config.path +
                           " has the prompt of a held-out row; nothing is left to train on");
  }
  if (like_held_out_ > 0) {
    warnings_.push_back(config.path + ": " + std::to_string(like_held_out_) +
                        " rows have the prompt of a held-out row and are not trained on");
  }
  for (const auto& file : {train_, eval_}) {
    if (file == nullptr || file->bad_lines() == 0) continue;
    warnings_.push_back(std::to_string(file->bad_lines()) + " bad lines are left out; the first is " +
                        file->problems().front());
  }
  identity_ = Sha256Hex(identity.dump());
  return OkStatus();
}

// A wrong answer that looks like the right one: two unlike neighbours change places (which ones is the
// index's choice). Where all are alike it is the answer of another question.
Question DataSource::AsPair(Question q, int64_t index, bool held_out) const {
  std::vector<size_t> unlike;
  for (size_t i = 0; i + 1 < q.answer.size(); ++i) {
    // Bytes of one character in UTF-8 stay together.
    const auto plain = [&](size_t at) { return static_cast<uint8_t>(q.answer[at]) < 0x80; };
    if (plain(i) && plain(i + 1) && q.answer[i] != q.answer[i + 1]) unlike.push_back(i);
  }
  std::string wrong = q.answer;
  if (!unlike.empty()) {
    const size_t at = unlike[static_cast<size_t>(
        Mix64(seed_ ^ Mix64(static_cast<uint64_t>(index) * 2 + (held_out ? 1 : 0))) % unlike.size())];
    std::swap(wrong[at], wrong[at + 1]);
  } else {
    const int64_t n = held_out ? held_out_size_ : size_;
    for (int64_t k = 1; k < n && wrong == q.answer; ++k)
      wrong = (held_out ? task_->HeldOut((index + k) % n) : task_->Train((index + k) % n)).answer;
  }
  q.fields["rejected"] = wrong;
  return q;
}

int64_t DataSource::Index(int64_t ordinal) const {
  TP_CHECK(ordinal >= 0) << "row " << ordinal;
  const int64_t epoch = ordinal / size_;
  int64_t index = ordinal % size_;
  if (shuffle_) index = PermutedIndex(index, size_, Mix64(seed_ ^ Mix64(static_cast<uint64_t>(epoch))));
  return task_ != nullptr ? index : train_rows_[static_cast<size_t>(index)];
}

RowOrigin DataSource::Origin(int64_t ordinal) const {
  const int64_t row = Index(ordinal);
  if (task_ != nullptr) return {.row = row};
  return {train_path_, train_->line(row), row};
}

RowOrigin DataSource::HeldOutOrigin(int64_t index) const {
  if (task_ != nullptr) return {.row = index};
  const int64_t row = held_out_rows_.at(static_cast<size_t>(index));
  return {eval_path_, HeldOutFile().line(row), row};
}

Question DataSource::Row(int64_t ordinal) const {
  const int64_t index = Index(ordinal);
  if (task_ == nullptr) return train_->Row(index);
  Question asked = task_->Train(index);
  return pairs_ ? AsPair(std::move(asked), index, /*held_out=*/false) : asked;
}

Question DataSource::HeldOut(int64_t index) const {
  TP_CHECK(index >= 0 && index < held_out_size_) << index << " of " << held_out_size_;
  if (task_ == nullptr) return HeldOutFile().Row(held_out_rows_[static_cast<size_t>(index)]);
  Question asked = task_->HeldOut(index);
  return pairs_ ? AsPair(std::move(asked), index, /*held_out=*/true) : asked;
}

std::string DataSource::Place(int64_t ordinal) const {
  const int64_t index = Index(ordinal);
  return task_ != nullptr ? task_name_ + ", question " + std::to_string(index) : train_->place(index);
}

std::string DataSource::HeldOutPlace(int64_t index) const {
  return task_ != nullptr ? task_name_ + ", held-out question " + std::to_string(index)
                          : HeldOutFile().place(held_out_rows_[static_cast<size_t>(index)]);
}

int64_t DataSource::Bytes(int64_t ordinal) const {
  return task_ != nullptr ? 0 : train_->bytes(Index(ordinal));
}

std::vector<std::string> DataSource::Problems() const {
  std::vector<std::string> all;
  for (const auto& file : {train_, eval_}) {
    if (file != nullptr) all.insert(all.end(), file->problems().begin(), file->problems().end());
  }
  return all;
}

int64_t DataSource::bad_lines() const {
  return (train_ == nullptr ? 0 : train_->bad_lines()) + (eval_ == nullptr ? 0 : eval_->bad_lines());
}

}  // namespace tidepool::tasks
