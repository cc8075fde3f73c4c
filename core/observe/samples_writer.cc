#include "core/observe/samples_writer.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/json_fields.h"
#include "core/base/utf8.h"
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

// The answer first, then the fields by name, each with its beginning as far as there is room.
void CutFields(SampleRow& row) {
  size_t room = kSampleFieldBytes;
  const auto cut = [&](std::string& text) {
    if (text.size() > room) {
      const size_t end = CharacterStart(text, room);
      const std::string note = " ... (" + std::to_string(text.size() - end) + " more bytes)";
      text = text.substr(0, end) + note;
      room = 0;
    } else {
      room -= text.size();
    }
  };
  cut(row.answer);
  for (auto& [name, text] : row.fields) cut(text);
}

}  // namespace

std::vector<size_t> ChooseSamples(std::span<const int64_t> groups, int64_t most) {
  std::vector<size_t> chosen, begins;
  if (most < 0 || static_cast<size_t>(most) >= groups.size()) {
    for (size_t i = 0; i < groups.size(); ++i) chosen.push_back(i);
    return chosen;
  }
  for (size_t i = 0; i < groups.size(); ++i)
    if (i == 0 || groups[i] != groups[i - 1]) begins.push_back(i);
  const auto n = static_cast<size_t>(most);
  // Of groups of one sample as many as there are to choose.
  const size_t shown = std::min(begins.size(), std::max((n + 1) / 2, n * begins.size() / groups.size()));
  // Rounds over these groups: the first of each, then the second ...
  for (size_t round = 0, before = 1; chosen.size() < n && chosen.size() != before; ++round) {
    before = chosen.size();
    for (size_t k = 0; k < shown && chosen.size() < n; ++k) {
      const size_t first = begins[k * begins.size() / shown];
      const size_t at = first + round;
      if (at < groups.size() && groups[at] == groups[first]) chosen.push_back(at);
    }
  }
  std::ranges::sort(chosen);
  return chosen;
}

nlohmann::ordered_json ToJson(const SampleRow& row) {
  auto j = JsonOf<nlohmann::ordered_json>(row);
  j["tid"] = ToString(row.tid);
  for (const char* key :
       {"answer", "messages", "turns", "fields", "details", "rendered_prompt", "file", "loss_mask"})
    if (j[key].empty() || j[key] == "") j.erase(key);
  if (row.line == 0) j.erase("line");
  for (size_t i = 0; i < std::min(row.loss_mask.size(), row.logprobs.size()); ++i) {
    if (row.loss_mask[i] == 0) j["logprobs"][i] = nullptr;  // nobody sampled it
  }
  return j;
}

Status WriteSamples(const std::string& run_dir, int64_t step, const std::vector<SampleRow>& rows) {
  std::string text;
  for (SampleRow row : rows) {
    CutFields(row);
    text += ToJson(row).dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  }
  return ReplaceFile(PathOf(run_dir, step), text);
}

Status ForEachSample(const std::string& run_dir, int64_t step, const std::function<bool(SampleRow)>& take) {
  const std::string path = PathOf(run_dir, step);
  return ForEachJsonLine(path, /*half=*/true, [&](int64_t line, const json& j) -> StatusOr<bool> {
    SampleRow row;
    if (!FromJson(j, row))
      return DataLoss(path + ":" + std::to_string(line) + ": no sample; expected a JSON object");
    if (const auto tid = j.find("tid"); tid != j.end() && tid->is_string())
      SampleIdOf(tid->get<std::string>(), row.tid);
    return take(std::move(row));
  });
}

StatusOr<std::vector<SampleRow>> ReadSamples(const std::string& run_dir, int64_t step, size_t most) {
  std::vector<SampleRow> rows;
  TP_RETURN_IF_ERROR(ForEachSample(run_dir, step, [&](SampleRow row) {
    rows.push_back(std::move(row));
    return rows.size() < most;
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
