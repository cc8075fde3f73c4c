// tidepool samples: what was generated and how it was judged, group by group.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/config/resume.h"
#include "core/observe/samples_writer.h"
#include "core/storage/run_directory.h"
#include "workers/cli/command.h"
#include "workers/cli/run_lookup.h"

namespace tidepool::workers {
namespace {

using Json = nlohmann::ordered_json;
using observe::SampleRow;

struct SamplesOptions {
  std::string run;
  bool json = false;
  int64_t step = -1, row = -1, count = -1, groups = -1;
  std::optional<double> min_reward, max_reward;
};

// Equal answers of a group, as one.
struct Answer {
  std::vector<SampleRow> samples;
};
struct Group {
  int64_t step = 0;
  std::vector<Answer> answers;
  [[nodiscard]] const SampleRow& any() const { return answers.front().samples.front(); }
};

// Run lengths of versions: "3 x12, 4 x5".
std::string VersionsText(const std::vector<int64_t>& versions) {
  std::string out;
  for (size_t i = 0; i < versions.size();) {
    size_t end = i;
    while (end < versions.size() && versions[end] == versions[i]) ++end;
    out += (out.empty() ? "" : ", ") + std::to_string(versions[i]) + " x" + std::to_string(end - i);
    i = end;
  }
  return out;
}

// What was generated reads as it is: line feeds stay, each further line indented. What would move the
// terminal's cursor is written out.
void PrintText(const std::string& name, const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) {
      char code[8];
      std::snprintf(code, sizeof(code), "\\x%02x", byte);
      out += code;
    } else {
      out += c;
    }
    if (c == '\n') out += "             ";
  }
  std::printf("%-12s %s\n", name.c_str(), out.c_str());
}

bool SameAnswer(const SampleRow& a, const SampleRow& b) {
  return a.text == b.text && a.turns == b.turns && a.reward == b.reward && a.rewards == b.rewards &&
         a.details == b.details && a.ended == b.ended;
}

void PrintAnswer(const Answer& answer) {
  const SampleRow& row = answer.samples.front();
  if (row.turns.empty()) {
    PrintText("response", row.text);
  } else {
    // The environment's first words are the group's.
    for (size_t i = 1; i < row.turns.size(); ++i) PrintText(row.turns[i].role, row.turns[i].content);
  }
  std::string rewards, names;
  for (const auto& [name, value] : row.rewards) {
    char number[32];
    std::snprintf(number, sizeof(number), " %.3g", value);
    rewards += (rewards.empty() ? " (" : ", ") + name + number;
  }
  constexpr size_t kNamed = 4;
  for (size_t i = 0; i < std::min(answer.samples.size(), kNamed); ++i)
    names += (i == 0 ? "" : ", ") + ToString(answer.samples[i].tid);
  if (answer.samples.size() > kNamed) names += ", ...";
  std::printf("%-12s %.4g%s%s, %s\n", "reward", row.reward, rewards.c_str(), rewards.empty() ? "" : ")",
              !row.ended          ? "cut at the limit"
              : row.turns.empty() ? "ended by itself"
                                  : "the episode is over");
  for (const auto& [name, said] : row.details) PrintText("detail", name + ": " + said);
  const std::string equal =
      answer.samples.size() > 1 ? std::to_string(answer.samples.size()) + " equal answers: " : "";
  std::printf("%-12s %s%s, %zu tokens%s%s\n\n", "sample", equal.c_str(), names.c_str(), row.ids.size(),
              row.versions.empty() ? "" : ", versions ", VersionsText(row.versions).c_str());
}

void PrintGroup(const Group& group, size_t answers) {
  const SampleRow& row = group.any();
  std::string place;
  if (!row.file.empty()) {
    place = ", " + row.file + ":" + std::to_string(row.line) + " (row " + std::to_string(row.row) + ")";
  } else if (row.turns.empty() && !row.messages.empty()) {
    place = ", question " + std::to_string(row.row);
  }
  std::printf("== group %lld.%lld of step %lld%s\n", static_cast<long long>(row.tid.ordinal),
              static_cast<long long>(row.tid.issue), static_cast<long long>(group.step), place.c_str());
  if (!row.turns.empty()) {
    PrintText(row.turns.front().role, row.turns.front().content);
  } else if (row.messages.size() > 1) {
    for (const observe::SampleMessage& said : row.messages) PrintText(said.role, said.content);
  } else {
    PrintText("prompt", row.prompt);
  }
  if (!row.answer.empty()) PrintText("answer", row.answer);
  for (const auto& [name, value] : row.fields) PrintText(name, value);
  std::printf("\n");
  for (size_t i = 0; i < answers; ++i) PrintAnswer(group.answers[i]);
}

bool Wanted(const SamplesOptions& options, const SampleRow& row) {
  return (options.row < 0 || row.row == options.row) &&
         (!options.min_reward || row.reward >= *options.min_reward) &&
         (!options.max_reward || row.reward <= *options.max_reward);
}

// Shows samples group by group as they are read, and keeps no more than one group.
class Listing {
 public:
  explicit Listing(const SamplesOptions& options)
      : options_(options),
        left_(options.count >= 0 ? options.count
              : options.json     ? INT64_MAX
                                 : 8) {}

  // false: there is enough.
  bool Take(int64_t step, SampleRow row) {
    ++read_;
    if (Wanted(options_, row)) Add(step, std::move(row));
    cut_ = Enough() && (options_.json || ++counted_ >= kCounted);
    return !cut_;
  }
  // The group so far is whole: those of a group follow each other.
  void Show() {
    if (group_.answers.empty()) return;
    if (options_.groups >= 0 && groups_ >= options_.groups) {
      ++more_groups_;
    } else {
      ++groups_;
      if (options_.json) PrintLines();
      if (!options_.json) PrintAnswers();
    }
    group_ = {};
  }
  // What was left out. Where reading ended before the last sample there may be more.
  void End(const std::string& where) {
    Show();
    if (groups_ + more_groups_ == 0) {
      std::fprintf(stderr, "note: none of the %lld samples on record of %s is what is asked for\n",
                   static_cast<long long>(read_), where.c_str());
    }
    if (options_.json) return;
    const std::string more = cut_ ? "at least " : "";
    if (hidden_ > 0) {
      std::printf("%s%lld more answers; -n %lld shows %s\n", more.c_str(), static_cast<long long>(hidden_),
                  static_cast<long long>(answers_), cut_ ? "these" : "all");
    }
    if (more_groups_ > 0)
      std::printf("%s%lld more groups\n", more.c_str(), static_cast<long long>(more_groups_));
  }

 private:
  static constexpr int64_t kCounted = 1000;  // of the samples that are left: a file may have a million

  [[nodiscard]] bool Enough() const {
    return left_ <= 0 || (options_.groups >= 0 && groups_ >= options_.groups);
  }
  void Add(int64_t step, SampleRow row) {
    const auto id = [](const SampleRow& r) { return std::pair(r.tid.ordinal, r.tid.issue); };
    if (group_.answers.empty() || group_.step != step || id(group_.any()) != id(row)) {
      Show();
      group_.step = step;
    }
    const auto same = std::ranges::find_if(
        group_.answers, [&](const Answer& a) { return SameAnswer(a.samples.front(), row); });
    (same == group_.answers.end() ? group_.answers.emplace_back() : *same).samples.push_back(std::move(row));
  }
  void PrintAnswers() {
    const auto all = static_cast<int64_t>(group_.answers.size()), shown = std::min(left_, all);
    answers_ += all;
    hidden_ += all - shown;
    left_ -= shown;
    if (shown > 0) PrintGroup(group_, static_cast<size_t>(shown));
  }
  void PrintLines() {
    for (const Answer& answer : group_.answers) {
      for (const SampleRow& row : answer.samples) {
        if (left_-- <= 0) return;
        Json line = {{"step", group_.step}};
        line.update(observe::ToJson(row));
        std::printf("%s\n", line.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
      }
    }
  }

  const SamplesOptions& options_;
  Group group_;
  int64_t left_;  // answers to show; with --json samples
  int64_t read_ = 0, counted_ = 0, groups_ = 0, more_groups_ = 0, answers_ = 0, hidden_ = 0;
  bool cut_ = false;
};

// Samples are what an rl job generates to train on.
std::string WhyNone(const std::string& dir) {
  const storage::RunPaths paths(dir);
  const auto run = config::ReadRunConfig(paths.config());
  const std::string yet = paths.samples() + ": no samples yet; they are written once a step is leased";
  if (!run.ok()) return yet;
  const JobConfig& c = run->config;
  if (c.rl() == nullptr) {
    return dir + ": a job: " + Name(c.kind()) +
           " learns from the rows of its data and generates nothing to train on, so it has no samples; "
           "`tidepool "
           "report` has its curves, `tidepool generate --model " +
           dir + " --prompt TEXT` asks its model" +
           (TrainsOnPairs(c)
                ? ""
                : ", `tidepool eval --model " + dir + " --data FILE --output FILE` keeps answers");
  }
  if (c.model.is_policy())
    return dir + ": a policy of control tasks writes no samples; `tidepool eval --model " + dir +
           " --render FILE.svg` draws an episode";
  if (c.observe.samples_per_step == 0)
    return dir +
           ": observe.samples_per_step is 0, so no samples are kept; go on with another by --resume "
           "observe.samples_per_step=N";
  return yet;
}

void Samples(CommandContext& context, const SamplesOptions& options) {
  const auto dir = FindRunDirectory(options.run, "samples are in samples/ of a run directory");
  if (!dir.ok()) return Fail(context, dir.status());
  const std::string folder = storage::RunPaths(*dir).samples();
  std::vector<int64_t> steps = observe::SampleSteps(*dir);
  if (steps.empty()) return Fail(context, NotFound(WhyNone(*dir)));
  if (options.step >= 0 && !std::ranges::binary_search(steps, options.step)) {
    return Fail(context, NotFound(folder + ": step " + std::to_string(options.step) +
                                  " has no samples; there are steps " + std::to_string(steps.front()) +
                                  " to " + std::to_string(steps.back())));
  }
  if (options.step >= 0) {
    steps = {options.step};
  } else if (options.row < 0) {
    steps = {steps.back()};
  }
  Listing listing(options);
  bool on = true;
  for (size_t i = 0; i < steps.size() && on; ++i) {
    const Status read = observe::ForEachSample(
        *dir, steps[i], [&](SampleRow row) { return on = listing.Take(steps[i], std::move(row)); });
    if (!read.ok()) return Fail(context, read);
  }
  listing.End(steps.size() == 1 ? "step " + std::to_string(steps[0]) : "all steps");
}

}  // namespace

void AddSamplesCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<SamplesOptions>();
  CLI::App* command = app.add_subcommand("samples", "Prompts, responses and rewards of a step");
  const CLI::Validator not_negative(
      [](const std::string& text) {
        return text.starts_with('-') ? "is " + text + "; expected 0 or more" : "";
      },
      "");
  command
      ->add_option("run", options->run,
                   "Run directory, or the name of a run under runs/ (the newest that begins so)")
      ->required();
  command->add_flag("--json", options->json, "For machines: one sample a line, with its tokens");
  command->add_option("--step", options->step, "Default: the newest; with --row all")->check(not_negative);
  command->add_option("--row", options->row, "Of this row of the data (a task's question), from 0")
      ->check(not_negative);
  command->add_option("--min-reward", options->min_reward, "With this reward or more");
  command->add_option("--max-reward", options->max_reward, "With this reward or less");
  command->add_option("--groups", options->groups, "How many groups; default all")->check(not_negative);
  command
      ->add_option(
          "-n,--count", options->count,
          "How many answers, equal ones of a group counted once, or all; default 8, with --json all samples")
      ->transform([](const std::string& text) { return text == "all" ? std::to_string(INT64_MAX) : text; })
      ->check(not_negative);
  command->footer(
      "What is on record is some of each step: observe.samples_per_step, -1 for all.\n"
      "Example: tidepool samples quickstart --step 20 --max-reward 0 --groups 3");
  command->callback([options, &context] { Samples(context, *options); });
}

}  // namespace tidepool::workers
