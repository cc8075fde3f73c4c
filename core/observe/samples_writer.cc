#include "core/observe/samples_writer.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/real_file_system.h"
#include "core/observe/append_file.h"

namespace tidepool::observe {
namespace {

using nlohmann::json;

std::string PathOf(const std::string& run_dir, int64_t step) {
  return run_dir + "/samples/step_" + std::to_string(step) + ".jsonl";
}

template <typename T>
void Get(const json& j, const char* key, T& out) {
  const auto it = j.find(key);
  if (it == j.end() || it->is_null()) return;
  if constexpr (std::is_same_v<T, std::string>) {
    if (it->is_string()) out = it->get<std::string>();
  } else if constexpr (std::is_same_v<T, bool>) {
    if (it->is_boolean()) out = it->get<bool>();
  } else if constexpr (std::is_arithmetic_v<T>) {
    if (it->is_number()) out = it->get<T>();
  } else if (it->is_array() &&
             std::ranges::all_of(*it, [](const json& v) { return v.is_number() || v.is_null(); })) {
    out.clear();
    for (const json& v : *it) out.push_back(v.is_null() ? 0 : v.get<typename T::value_type>());
  }
}

bool ParseTid(const std::string& text, SampleId& tid) {
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

Status WriteSamples(const std::string& run_dir, int64_t step, const std::vector<SampleRow>& rows) {
  std::string text;
  for (const SampleRow& row : rows) {
    nlohmann::ordered_json j = {{"tid", ToString(row.tid)}, {"prompt", row.prompt},   {"text", row.text},
                                {"reward", row.reward},     {"rewards", row.rewards}, {"ended", row.ended}};
    if (!row.answer.empty()) j["answer"] = row.answer;
    j["ids"] = row.ids;
    j["logprobs"] = row.logprobs;
    j["versions"] = row.versions;
    if (!row.loss_mask.empty()) {
      for (size_t i = 0; i < std::min(row.loss_mask.size(), row.logprobs.size()); ++i) {
        if (row.loss_mask[i] == 0) j["logprobs"][i] = nullptr;
      }
      j["loss_mask"] = row.loss_mask;
    }
    text += j.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  }
  return ReplaceFile(PathOf(run_dir, step), text);
}

StatusOr<std::vector<SampleRow>> ReadSamples(const std::string& run_dir, int64_t step) {
  const std::string path = PathOf(run_dir, step);
  TP_ASSIGN_OR_RETURN(const std::string text, RealFileSystem().ReadFile(path));
  std::vector<SampleRow> rows;
  int64_t line = 0;
  for (size_t at = 0; at < text.size();) {
    ++line;
    const size_t newline = std::min(text.find('\n', at), text.size());
    const json j = json::parse(text.begin() + static_cast<int64_t>(at),
                               text.begin() + static_cast<int64_t>(newline), nullptr, false);
    at = newline + 1;
    if (!j.is_object())
      return DataLoss(path + ":" + std::to_string(line) + ": no sample; expected a JSON object");
    SampleRow row;
    std::string tid;
    Get(j, "tid", tid);
    ParseTid(tid, row.tid);
    Get(j, "prompt", row.prompt);
    Get(j, "text", row.text);
    Get(j, "answer", row.answer);
    Get(j, "ids", row.ids);
    Get(j, "logprobs", row.logprobs);
    Get(j, "versions", row.versions);
    Get(j, "loss_mask", row.loss_mask);
    Get(j, "reward", row.reward);
    Get(j, "ended", row.ended);
    if (const auto rewards = j.find("rewards"); rewards != j.end() && rewards->is_object()) {
      for (const auto& [name, value] : rewards->items()) {
        if (value.is_number()) row.rewards[name] = value.get<double>();
      }
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<int64_t> SampleSteps(const std::string& run_dir) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (std::filesystem::directory_iterator it(run_dir + "/samples", error), end; !error && it != end;
       it.increment(error)) {
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
