#include "workers/data/data_summary.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "core/base/utf8.h"
#include "core/observe/progress.h"
#include "workers/data/model_folder.h"
#include "workers/data/row_answers.h"
#include "workers/data/row_source.h"

namespace tidepool::workers {
namespace {

// What is tokenised at most: about 5 MB of text a second.
constexpr int64_t kRows = 10000, kLongestLines = 500, kHeldOutRows = 2000;
constexpr int64_t kBytes = int64_t{16} << 20;
constexpr size_t kNamed = 5;

std::string SourceOf(const JobConfig& c) {
  if (c.environment() != nullptr) return "environment " + c.environment()->name;
  return c.data.task.empty() ? c.data.path : "task " + c.data.task;
}

// Rows to look at, in their order: all, or the longest lines and others evenly spread.
std::vector<int64_t> Picks(const tasks::DataSource* data, int64_t rows) {
  std::vector<int64_t> all(static_cast<size_t>(std::min(rows, data == nullptr ? kRows : rows)));
  std::iota(all.begin(), all.end(), int64_t{0});
  if (data == nullptr) return all;
  int64_t bytes = 0;
  for (const int64_t row : all) bytes += data->Bytes(row);
  if (rows <= kRows && bytes <= kBytes) return all;
  const auto longer = [&](int64_t a, int64_t b) {
    return data->Bytes(a) != data->Bytes(b) ? data->Bytes(a) > data->Bytes(b) : a < b;
  };
  std::vector<int64_t> longest = all;
  const auto kept = static_cast<ptrdiff_t>(std::min(rows, kLongestLines));
  std::partial_sort(longest.begin(), longest.begin() + kept, longest.end(), longer);
  std::set<int64_t> picks;
  int64_t left = kBytes;
  for (auto it = longest.begin(); it != longest.begin() + kept && left > kBytes / 2; ++it) {
    picks.insert(*it);
    left -= data->Bytes(*it);
  }
  const int64_t mean = std::max<int64_t>(bytes / rows, 1);
  const int64_t spread = std::clamp<int64_t>(left / mean, 1, std::min(kRows, rows));
  for (int64_t i = 0; i < spread; ++i)
    picks.insert(static_cast<int64_t>(static_cast<double>(i) / static_cast<double>(spread) *
                                      static_cast<double>(rows)));
  return {picks.begin(), picks.end()};
}

void Add(LeftOut& out, const std::string& what) {
  if (++out.count <= static_cast<int64_t>(kNamed)) out.first.push_back(what);
}

void Longest(LongestRow& longest, size_t tokens, const std::string& place) {
  if (static_cast<int64_t>(tokens) > longest.tokens) longest = {static_cast<int64_t>(tokens), place};
}

void LookAt(const RowSource& rows, const RowSource::Which& which, DataSummary& s) {
  ++s.looked_at;
  const StatusOr<EncodedRow> row = rows.Tokens(which);
  const std::string place = rows.Place(which);
  if (!row.ok()) return Add(s.unusable, row.status().At(place).message());
  Longest(s.longest_prompt, row->prompt.size(), place);
  Longest(s.longest_row, row->prompt.size() + std::max(row->response.size(), row->rejected.size()), place);
  const Status fits = rows.CheckFits(*row);
  if (!fits.ok()) return Add(s.too_long, fits.At(place).message());
  if (!s.example_place.empty()) return;
  s.example_place = place;
  s.example_prompt = rows.tokenizer().Decode(row->prompt);
  s.example_answer = row->response.empty() ? row->question.answer : rows.tokenizer().Decode(row->response);
}

void Count(const tasks::DataSource& data, DataSummary& s) {
  s.rows = data.size();
  s.held_out = data.held_out_size();
  s.like_held_out = data.like_held_out();
  s.bad_lines = {data.bad_lines(), data.Problems()};
  if (s.bad_lines.first.size() > kNamed) s.bad_lines.first.resize(kNamed);
}

// One line of a text, not endless.
std::string Shown(const std::string& text) {
  constexpr int64_t kCharacters = 160;
  std::string out;
  int64_t characters = 0;
  for (const char c : text) {
    if (!ContinuesCharacter(c) && ++characters > kCharacters) return out + " ...";
    if (c == '\n') {
      out += "\\n";
    } else {
      out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
  }
  return out;
}

std::string Number(int64_t n, const char* one, const char* many) {
  return observe::NumberText(static_cast<double>(n)) + " " + (n == 1 ? one : many);
}

}  // namespace

StatusOr<DataSummary> SummarizeData(const JobConfig& config) {
  JobConfig in_order = config;  // so that the first bad row is the first in the file
  in_order.data.shuffle = false;
  DataSummary s;
  s.source = SourceOf(config);
  s.prompt_tokens_max = config.data.max_prompt_tokens;
  TP_ASSIGN_OR_RETURN(const TextFolder folder, TextFolder::Of(config.model));
  TP_ASSIGN_OR_RETURN(const auto rows, RowSource::Create(in_order, folder.path()));
  s.held_out = rows->held_out_size();
  if (config.model.is_policy()) return s;  // it plays on: there is no end to its rows
  s.rows = rows->size();
  // What a service says first is asked by environment workers alone.
  if (config.environment() != nullptr && config.environment()->is_service()) return s;
  const tasks::DataSource* data = config.environment() == nullptr ? &rows->data() : nullptr;
  if (data != nullptr) Count(*data, s);
  const auto left_out = [&] { return s.too_long.count + s.unusable.count; };
  for (const int64_t row : Picks(data, s.rows)) LookAt(*rows, {row, false}, s);
  const int64_t of_rows = left_out();
  for (int64_t i = 0; i < std::min(s.held_out, kHeldOutRows); ++i) LookAt(*rows, {i, true}, s);
  TP_RETURN_IF_ERROR(rows->CheckRows());
  s.looked_at_all = s.looked_at >= s.rows + s.held_out;
  if (s.looked_at_all) {
    s.rows -= of_rows;
    s.held_out -= left_out() - of_rows;
  }
  TP_ASSIGN_OR_RETURN(const RowsWithoutAnswer without, CountRowsWithoutAnswer(config, *rows));
  TP_RETURN_IF_ERROR(CheckAnswers(without));
  if (without.count > 0) s.ungraded = {without.count, {WarningOf(without)}};
  TP_ASSIGN_OR_RETURN(s.rewards, TryRewards(config, *rows));
  return s;
}

std::vector<std::string> DataLines(const DataSummary& s) {
  std::vector<std::string> lines;
  const bool games = s.source.starts_with("environment ");
  const std::string held_out = observe::NumberText(static_cast<double>(s.held_out)) + " held out";
  lines.push_back("data         " + s.source + ": " +
                  (games && s.rows == 0 ? "episodes without end to train on, " + held_out
                   : games              ? Number(s.rows, "episode", "episodes") + " to train on, " + held_out
                                        : Number(s.rows, "row", "rows") + " to train on, " + held_out));
  const auto add = [&](const std::string& line) { lines.push_back("  " + line); };
  if (s.looked_at > 0) {
    add("longest prompt: " + Number(s.longest_prompt.tokens, "token", "tokens") + " (" +
        s.longest_prompt.place + "); data.max_prompt_tokens is " + std::to_string(s.prompt_tokens_max));
    if (s.longest_row.tokens > s.longest_prompt.tokens)
      add("longest row: " + Number(s.longest_row.tokens, "token", "tokens") + " with its answer (" +
          s.longest_row.place + ")");
  }
  const bool all = s.looked_at_all;
  const auto left_out = [&](const LeftOut& of, const std::string& what, bool counted) {
    if (of.count == 0) return;
    add(what + (counted ? ": " : ": at least ") + observe::NumberText(static_cast<double>(of.count)) +
        ", left out" + (of.count > static_cast<int64_t>(of.first.size()) ? "; the first:" : ":"));
    for (const std::string& line : of.first) add("  " + line);
  };
  left_out(s.too_long, "rows that are too long", all);
  left_out(s.unusable, "rows that cannot be used", all);
  left_out(s.bad_lines, "bad lines", true);
  for (const std::string& line : s.ungraded.first) add("warning: " + line);
  for (const TriedReward& t : s.rewards)
    add(t.not_tried.empty()
            ? "reward " + t.reward + " says of " + t.on + ": " + Shown(t.verdict)
            : "warning: reward " + t.reward + " was not tried on " + t.on + ": " + t.not_tried);
  if (s.like_held_out > 0)
    add(Number(s.like_held_out, "more row has", "more rows have") +
        " the prompt of a held-out row, left out");
  if (s.looked_at > 0 && !all)
    add("lengths are of " + observe::NumberText(static_cast<double>(s.looked_at)) +
        " rows: those with the longest lines, and others evenly spread");
  if (!s.example_place.empty())
    add("for example (" + s.example_place + "): " + Shown(s.example_prompt) +
        (s.example_answer.empty() ? "" : "  ->  " + Shown(s.example_answer)));
  return lines;
}

}  // namespace tidepool::workers
