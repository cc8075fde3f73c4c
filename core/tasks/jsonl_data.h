#pragma once
// Rows of a JSONL file: one JSON object a line, in a shape of core/tasks/row_shapes.h.
// Blank lines are skipped. A bad line is named as file:line, counted and left out; a file with more
// bad lines than the limit is refused, because something other than a slip is wrong with it.
// The whole file is read and checked when it is opened. Immutable; any thread.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/tasks/row_shapes.h"

namespace tidepool::tasks {

struct JsonlOptions {
  RowKind kind = RowKind::kRl;
  double max_bad_fraction = 0.01;  // of the lines that are not blank
  int64_t max_file_bytes = int64_t{4} << 30;
  int64_t max_line_bytes = int64_t{16} << 20;
};

// `path` is a file. kNotFound says what to do: names of data sets on a hub are not downloaded.
Status CheckDataFile(const std::string& path);

class JsonlData {
 public:
  // kNotFound: no such file. kInvalidArgument: no good row, or too many bad ones (the first five are
  // named, the others counted). kResourceExhausted: the file is larger than the limit.
  static StatusOr<JsonlData> Open(const std::string& path, const JsonlOptions& options);
  // The same from memory; `name` stands for the file in messages.
  static StatusOr<JsonlData> Parse(std::string text, const std::string& name, const JsonlOptions& options);

  [[nodiscard]] int64_t size() const { return static_cast<int64_t>(rows_.size()); }
  [[nodiscard]] Question Row(int64_t index) const;  // requires 0 <= index < size()
  // Rows with equal keys ask the same thing. A hash, so that no row is parsed again to compare them; 64 bits,
  // of which a million rows have an equal pair once in 10^7 files.
  [[nodiscard]] uint64_t prompt_key(int64_t index) const {
    return rows_.at(static_cast<size_t>(index)).prompt_key;
  }
  [[nodiscard]] int64_t line(int64_t index) const { return rows_.at(static_cast<size_t>(index)).line; }
  // "FILE:LINE"
  [[nodiscard]] std::string place(int64_t index) const { return name_ + ":" + std::to_string(line(index)); }
  [[nodiscard]] int64_t bytes(int64_t index) const { return rows_.at(static_cast<size_t>(index)).length; }
  [[nodiscard]] int64_t bad_lines() const { return bad_lines_; }
  // "file:line: what" of bad lines, at most 20.
  [[nodiscard]] const std::vector<std::string>& problems() const { return problems_; }
  // SHA-256 of the file's bytes, hex.
  [[nodiscard]] const std::string& digest() const { return digest_; }

 private:
  struct Place {
    int64_t offset = 0;
    int64_t length = 0;
    int64_t line = 0;
    uint64_t prompt_key = 0;
  };
  std::string name_, text_;
  std::vector<Place> rows_;
  RowKind kind_ = RowKind::kRl;
  int64_t bad_lines_ = 0;
  std::vector<std::string> problems_;
  std::string digest_;
};

}  // namespace tidepool::tasks
