// algorithms, rewards, environments: what is registered, one line each, NAME for details.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/algorithms/registry.h"
#include "core/environments/text_game.h"
#include "core/environments/vector.h"
#include "core/tasks/reward.h"
#include "workers/cli/command.h"

namespace tidepool::workers {
namespace {

using Json = nlohmann::ordered_json;

struct RegistryOptions {
  std::string name;
  bool json = false;
  bool table = false;
};

// A list with aligned names, or one entry by name.
struct Line {
  std::string name, text, details;
  Json json;
};

void Show(CommandContext& context, const RegistryOptions& o, const std::string& kind,
          const std::vector<Line>& lines) {
  if (!o.name.empty()) {
    std::string known;
    for (const Line& line : lines) {
      known += (known.empty() ? "" : ", ") + line.name;
      if (line.name != o.name) continue;
      std::printf("%s", o.json ? (line.json.dump(1) + "\n").c_str() : line.details.c_str());
      return;
    }
    return Fail(context, NotFound("no " + kind + " is named '" + o.name + "'; there are " + known));
  }
  if (o.json) {
    Json all = Json::array();
    for (const Line& line : lines) all.push_back(line.json);
    std::printf("%s\n", all.dump(1).c_str());
    return;
  }
  for (const Line& line : lines) std::printf("%-22s %s\n", line.name.c_str(), line.text.c_str());
}

void ShowAlgorithms(CommandContext& context, const RegistryOptions& o) {
  if (o.table) {
    std::printf("%s", algorithms::AlgorithmTable().c_str());
    return;
  }
  std::vector<Line> lines;
  for (const algorithms::AlgorithmEntry& e : algorithms::Algorithms()) {
    lines.push_back(
        {e.name,
         e.doc,
         algorithms::DescribeAlgorithm(e),
         {{"name", e.name},
          {"paper", e.paper},
          {"doc", e.doc},
          {"advantage", e.advantage.name},
          {"loss", e.loss.name},
          {"aggregation", e.rules.aggregation.empty() ? algorithms::FindLoss(e.loss.name)->aggregation
                                                      : e.rules.aggregation},
          {"correction", e.rules.correction},
          {"filter", e.rules.filter}}});
  }
  Show(context, o, "algorithm", lines);
}

void ShowRewards(CommandContext& context, const RegistryOptions& o) {
  std::vector<Line> lines;
  for (const tasks::RewardInfo& info : tasks::ListRewards()) {
    const std::string spec = info.name + (info.argument.empty() ? "" : ":" + info.argument);
    lines.push_back({info.name,
                     info.doc,
                     info.name + ": " + info.doc + "\n  argument  " +
                         (info.argument.empty() ? "none" : info.argument) +
                         "\n  in a config  reward: {functions: [{name: \"" + spec + "\", weight: 1.0}]}\n",
                     {{"name", info.name}, {"argument", info.argument}, {"doc", info.doc}}});
  }
  Show(context, o, "reward", lines);
}

// The first turns of a game, played well.
std::string ExampleEpisode(const environments::TextEnvironmentInfo& info) {
  const auto environment = environments::MakeTextEnvironment(info.name, {}, 1);
  if (!environment.ok()) return "";
  const auto game = (*environment)->Make(/*held_out=*/false, 0);
  std::string text = "  an episode\n";
  const auto show = [&](const char* who, const std::string& words) {
    text += std::string("    ") + who + " ";
    for (const char c : words) text += c == '\n' ? std::string("\n      ") : std::string(1, c);
    text += "\n";
  };
  show("<", game->Reset());
  for (int turn = 0; turn < 3; ++turn) {
    const std::string action = game->Solve();
    show(">", action);
    const environments::TextStep step = game->Step(action);
    if (step.done) break;
    show("<", step.observation);
  }
  return text + "    ...\n";
}

void ShowEnvironments(CommandContext& context, const RegistryOptions& o) {
  std::vector<Line> lines;
  for (const environments::VectorSpec& e : environments::ListVectorEnvironments()) {
    const std::string action =
        e.continuous ? std::to_string(e.actions) + " numbers" : std::to_string(e.actions) + " choices";
    lines.push_back(
        {e.name,
         "control task: " + e.reference + " for model.policy: mlp",
         e.name + ": the control task " + e.reference + "\n  observation  " +
             std::to_string(e.observation_size) + " numbers\n  action       " + action + "\n  limit        " +
             std::to_string(e.max_episode_steps) + " steps\n  reward       " + e.reward +
             "\n  solved       at a return of " + nlohmann::json(e.solved_return).dump() +
             "\n  in a config  model: {policy: mlp}, environment: {name: " + e.name + ", instances: 8}\n",
         {{"name", e.name},
          {"reference", e.reference},
          {"observation_size", e.observation_size},
          {"actions", e.actions},
          {"continuous", e.continuous},
          {"max_steps", e.max_episode_steps},
          {"solved", e.solved_return},
          {"reward", e.reward}}});
  }
  for (const environments::TextEnvironmentInfo& e : environments::ListTextEnvironments()) {
    std::string options;
    Json list = Json::array();
    for (const tasks::Option& option : e.options) {
      options += "    " + option.name +
                 std::string(option.name.size() < 13 ? 13 - option.name.size() : 1, ' ') +
                 option.default_json + "  " + option.doc + " (" + tasks::DescribeOption(option) + ")\n";
      list.push_back({{"name", option.name},
                      {"default", Json::parse(option.default_json, nullptr, false)},
                      {"values", tasks::DescribeOption(option)},
                      {"doc", option.doc}});
    }
    lines.push_back(
        {e.name,
         e.doc,
         e.name + ": " + e.doc + "\n  action       " + e.action + "\n  reward       " + e.reward +
             "\n  in a config  environment: {name: " + e.name + "}\n  options of `environment`\n" + options +
             ExampleEpisode(e),
         {{"name", e.name}, {"doc", e.doc}, {"action", e.action}, {"reward", e.reward}, {"options", list}}});
  }
  Show(context, o, "environment", lines);
}

}  // namespace

void AddRegistryCommands(CLI::App& app, CommandContext& context) {
  struct Kind {
    const char* name;
    const char* doc;
    const char* example;
    void (*show)(CommandContext&, const RegistryOptions&);
  };
  for (const Kind& kind :
       {Kind{"algorithms", "Algorithms: presets of advantage, loss, aggregation and correction",
             "tidepool algorithms gspo", ShowAlgorithms},
        Kind{"rewards", "Reward functions", "tidepool rewards gsm8k", ShowRewards},
        Kind{"environments", "Environments: names that a config takes", "tidepool environments cartpole",
             ShowEnvironments}}) {
    auto options = std::make_shared<RegistryOptions>();
    CLI::App* command = app.add_subcommand(kind.name, kind.doc);
    command->add_option("name", options->name, "show one in detail");
    command->add_flag("--json", options->json, "as JSON");
    if (std::string(kind.name) == "algorithms")
      command->add_flag("--table", options->table, "the tables of docs/algorithms.md");
    command->footer(std::string("Example: ") + kind.example);
    command->callback([&context, options, show = kind.show] { show(context, *options); });
  }
}

}  // namespace tidepool::workers
