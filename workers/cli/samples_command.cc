// tidepool samples: what was generated and how it was judged, group by group.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
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
  std::vector<const SampleRow*> samples;
};
struct Group {
  int64_t step = 0;
  std::vector<Answer> answers;
  [[nodiscard]] const SampleRow& any() const { return *answers.front().samples.front(); }
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
         a.ended == b.ended;
}

void PrintAnswer(const Answer& answer) {
  const SampleRow& row = *answer.samples.front();
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
    names += (i == 0 ? "" : ", ") + ToString(answer.samples[i]->tid);
  if (answer.samples.size() > kNamed) names += ", ...";
  std::printf("%-12s %.4g%s%s, %s\n", "reward", row.reward, rewards.c_str(), rewards.empty() ? "" : ")",
              row.ended ? "ended by itself" : "cut at the limit");
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
    for (const observe::Said& said : row.messages) PrintText(said.role, said.content);
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

// The samples of a step that are wanted, by group.
void AddGroups(std::vector<Group>& groups, int64_t step, const std::vector<SampleRow>& rows,
               const SamplesOptions& options) {
  const size_t before = groups.size();
  for (const SampleRow& row : rows) {
    if (!Wanted(options, row)) continue;
    const auto of = [&](const Group& g) {
      return g.any().tid.ordinal == row.tid.ordinal && g.any().tid.issue == row.tid.issue;
    };
    auto group = std::find_if(groups.begin() + static_cast<std::ptrdiff_t>(before), groups.end(), of);
    if (group == groups.end()) {
      groups.push_back({step, {{{&row}}}});
      continue;
    }
    const auto same = std::ranges::find_if(
        group->answers, [&](const Answer& a) { return SameAnswer(*a.samples.front(), row); });
    if (same == group->answers.end()) {
      group->answers.push_back({{&row}});
    } else {
      same->samples.push_back(&row);
    }
  }
}

void PrintLines(const std::vector<Group>& groups, int64_t most) {
  for (const Group& group : groups) {
    for (const Answer& answer : group.answers) {
      for (const SampleRow* row : answer.samples) {
        if (most-- <= 0) return;
        Json line = {{"step", group.step}};
        line.update(observe::ToJson(*row));
        std::printf("%s\n", line.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
      }
    }
  }
}

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
  std::vector<std::vector<SampleRow>> files;  // what the groups point into
  files.reserve(steps.size());
  std::vector<Group> groups;
  size_t read = 0;
  for (const int64_t step : steps) {
    auto rows = observe::ReadSamples(*dir, step);
    if (!rows.ok()) return Fail(context, rows.status());
    read += rows->size();
    files.push_back(*std::move(rows));
    AddGroups(groups, step, files.back(), options);
  }
  if (groups.empty()) {
    std::fprintf(stderr, "note: none of the %zu samples on record of %s is what is asked for\n", read,
                 steps.size() == 1 ? ("step " + std::to_string(steps[0])).c_str() : "all steps");
    return;
  }
  const size_t all_groups = groups.size();
  if (options.groups >= 0 && options.groups < static_cast<int64_t>(all_groups))
    groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(options.groups), groups.end());
  if (options.json) return PrintLines(groups, options.count >= 0 ? options.count : INT64_MAX);

  size_t left = static_cast<size_t>(options.count >= 0 ? options.count : 8), hidden = 0, answers = 0;
  for (const Group& group : groups) {
    const size_t shown = std::min(left, group.answers.size());
    answers += group.answers.size();
    hidden += group.answers.size() - shown;
    left -= shown;
    if (shown > 0) PrintGroup(group, shown);
  }
  if (hidden > 0) std::printf("%zu more answers; -n %zu shows all\n", hidden, answers);
  if (groups.size() < all_groups) std::printf("%zu more groups\n", all_groups - groups.size());
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
      ->add_option("-n,--count", options->count,
                   "How many answers, equal ones of a group counted once; default 8, with --json all samples")
      ->check(not_negative);
  command->footer(
      "What is on record is some of each step: observe.samples_per_step, -1 for all.\n"
      "Example: tidepool samples quickstart --step 20 --max-reward 0 --groups 3");
  command->callback([options, &context] { Samples(context, *options); });
}

}  // namespace tidepool::workers
