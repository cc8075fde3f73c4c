#include "core/tasks/jsonl_data.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/base/hash.h"
#include "core/base/names.h"
#include "core/tasks/grading.h"

namespace tidepool::tasks {

namespace {

// What a file of another format is, and what to do with it; null: it may be lines of JSON.
const char* OtherFormat(std::string_view text) {
  if (text.starts_with("PAR1"))
    return "is a Parquet file; write its rows as JSON lines, by Python's pandas: "
           "pandas.read_parquet(FILE).to_json(\"rows.jsonl\", orient=\"records\", lines=True)";
  if (text.starts_with("\x1f\x8b")) return "is compressed; unpack it: gzip -d FILE";
  if (Trim(text.substr(0, 4096)).starts_with('['))
    return "is one JSON array; expected one object a line, which `jq -c '.[]' FILE > rows.jsonl` writes";
  return nullptr;
}

uint64_t PromptKey(const Question& q) {
  if (q.messages.empty()) return Hash64(q.prompt);
  std::string asked;
  for (const Message& m : q.messages) {
    // The assistant's turns are what is learned in sft, not what is asked.
    if (m.role != "assistant") asked += m.role + "\x1f" + m.content + "\x1e";
  }
  return Hash64(asked);
}

}  // namespace

StatusOr<JsonlData> JsonlData::Parse(std::string text, const std::string& name, const JsonlOptions& options) {
  JsonlData data;
  data.name_ = name;
  data.kind_ = options.kind;
  data.digest_ = Sha256Hex(text);
  data.text_ = std::move(text);
  const std::string_view all = data.text_;
  if (const char* what = OtherFormat(all); what != nullptr) return InvalidArgument(name + ": " + what);
  int64_t line_number = 0;
  for (size_t at = 0; at < all.size();) {
    ++line_number;
    const size_t newline = std::min(all.find('\n', at), all.size());
    const std::string_view line = all.substr(at, newline - at);
    const auto offset = static_cast<int64_t>(at);
    at = newline + 1;
    if (Trim(line).empty()) continue;
    Status status;
    uint64_t prompt_key = 0;
    if (static_cast<int64_t>(line.size()) > options.max_line_bytes) {
      status = InvalidArgument("the line has " + std::to_string(line.size()) + " bytes; at most " +
                               std::to_string(options.max_line_bytes) + " are read");
    } else {
      const StatusOr<Question> row = ParseRow(line, options.kind);
      status = row.status();
      if (row.ok()) prompt_key = PromptKey(*row);
    }
    if (status.ok()) {
      data.rows_.push_back({offset, static_cast<int64_t>(line.size()), line_number, prompt_key});
      continue;
    }
    ++data.bad_lines_;
    if (data.problems_.size() < 20)
      data.problems_.push_back(name + ":" + std::to_string(line_number) + ": " + status.message());
  }
  const auto lines = static_cast<double>(data.rows_.size()) + static_cast<double>(data.bad_lines_);
  if (data.bad_lines_ > 0 && static_cast<double>(data.bad_lines_) > options.max_bad_fraction * lines) {
    std::string message = name + ": " + std::to_string(data.bad_lines_) + " of " +
                          std::to_string(static_cast<int64_t>(lines)) +
                          " lines cannot be used; correct or remove them";
    const size_t named = std::min<size_t>(5, data.problems_.size());
    for (size_t i = 0; i < named; ++i) message += "\n" + data.problems_[i];
    if (const int64_t more = data.bad_lines_ - static_cast<int64_t>(named); more > 0)
      message += "\nand " + std::to_string(more) + " more";
    return InvalidArgument(message);
  }
  if (data.rows_.empty()) return InvalidArgument(name + ": no rows; each line is one JSON object");
  return data;
}

Status CheckDataFile(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) return OkStatus();
  if (std::filesystem::exists(path, error))
    return NotFound(path + " is no file; expected rows as JSON lines");
  if (!LooksLikeHubName(path)) return NotFound(path + ": no such file; expected rows as JSON lines");
  return NotFound(
      path +
      ": no such file, and names on a hub are not downloaded; write the rows to a file, by Python's "
      "datasets: load_dataset(\"" +
      path + "\", split=\"train\").to_json(\"rows.jsonl\"), and name that");
}

StatusOr<JsonlData> JsonlData::Open(const std::string& path, const JsonlOptions& options) {
  TP_RETURN_IF_ERROR(CheckDataFile(path));
  std::error_code error;
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (error || bytes > options.max_file_bytes) {
    return ResourceExhausted(path + ": " + std::to_string(bytes) + " bytes; at most " +
                             std::to_string(options.max_file_bytes) + " are read; split the file");
  }
  std::ifstream in(path, std::ios::binary);
  std::string text(static_cast<size_t>(bytes), '\0');
  if (!in || !in.read(text.data(), bytes))
    return Unavailable(path + ": cannot be read: " + std::strerror(errno));
  return Parse(std::move(text), path, options);
}

Question JsonlData::Row(int64_t index) const {
  const Place& place = rows_.at(static_cast<size_t>(index));
  const std::string_view line =
      std::string_view(text_).substr(static_cast<size_t>(place.offset), static_cast<size_t>(place.length));
  StatusOr<Question> row = ParseRow(line, kind_);
  return std::move(row).value();  // the line was parsed when the file was opened
}

}  // namespace tidepool::tasks
