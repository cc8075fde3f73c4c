#include "core/observe/samples_writer.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/json_fields.h"
#include "core/base/real_file_system.h"
#include "core/observe/append_file.h"
#include "core/observe/json_lines.h"
#include "core/storage/run_directory.h"

namespace tidepool::observe {
namespace {

using nlohmann::json;

std::string PathOf(const std::string& run_dir, int64_t step) {
  return storage::RunPaths(run_dir).samples() + "/step_" + std::to_string(step) + ".jsonl";
}

// Of its text; false: it is none, and `tid` is anything.
bool SampleIdOf(const std::string& text, SampleId& tid) {
  const char* at = text.data();
  const char* end = text.data() + text.size();
  const auto take = [&](auto& value) {
    const auto result = std::from_chars(at, end, value);
    at = result.ptr;
    return result.ec == std::errc();
  };
  const auto point = [&] { return at != end && *at++ == '.'; };
  return take(tid.ordinal) && point() && take(tid.issue) && point() && take(tid.sample) && at == end;
}

}  // namespace

nlohmann::ordered_json ToJson(const SampleRow& row) {
  auto j = JsonOf<nlohmann::ordered_json>(row);
  j["tid"] = ToString(row.tid);
  if (row.answer.empty()) j.erase("answer");
  if (row.loss_mask.empty()) j.erase("loss_mask");
  for (size_t i = 0; i < std::min(row.loss_mask.size(), row.logprobs.size()); ++i) {
    if (row.loss_mask[i] == 0) j["logprobs"][i] = nullptr;  // nobody sampled it
  }
  return j;
}

Status WriteSamples(const std::string& run_dir, int64_t step, const std::vector<SampleRow>& rows) {
  std::string text;
  for (const SampleRow& row : rows)
    text += ToJson(row).dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  return ReplaceFile(PathOf(run_dir, step), text);
}

StatusOr<std::vector<SampleRow>> ReadSamples(const std::string& run_dir, int64_t step) {
  const std::string path = PathOf(run_dir, step);
  TP_ASSIGN_OR_RETURN(const std::string text, RealFileSystem().ReadFile(path));
  std::vector<SampleRow> rows;
  TP_RETURN_IF_ERROR(ForEachJsonLine(text, /*half=*/true, [&](int64_t line, const json& j) {
    SampleRow& row = rows.emplace_back();
    if (!FromJson(j, row))
      return DataLoss(path + ":" + std::to_string(line) + ": no sample; expected a JSON object");
    if (const auto tid = j.find("tid"); tid != j.end() && tid->is_string())
      SampleIdOf(tid->get<std::string>(), row.tid);
    return OkStatus();
  }));
  return rows;
}

std::vector<int64_t> SampleSteps(const std::string& run_dir) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (std::filesystem::directory_iterator it(storage::RunPaths(run_dir).samples(), error), end;
       !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with("step_") || !name.ends_with(".jsonl")) continue;
    int64_t step = 0;
    const char* last = name.data() + name.size() - 6;
    if (std::from_chars(name.data() + 5, last, step).ptr == last) steps.push_back(step);
  }
  std::ranges::sort(steps);
  return steps;
}

}  // namespace tidepool::observe
