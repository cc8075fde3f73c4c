// models, tasks, algorithms, rewards, environments: what this build knows, one line each, NAME for details.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/algorithms/registry.h"
#include "core/base/limited_call.h"
#include "core/base/names.h"
#include "core/environments/text_game.h"
#include "core/environments/trial.h"
#include "core/environments/vector.h"
#include "core/model/adapter_files.h"
#include "core/model/families/family.h"
#include "core/model/hugging_face.h"
#include "core/tasks/reward.h"
#include "core/tasks/task.h"
#include "scheduler/policies/policy_plugin.h"
#include "workers/cli/command.h"

namespace tidepool::workers {
namespace {

using Json = nlohmann::ordered_json;

struct RegistryOptions {
  std::string name;
  bool json = false;
  bool table = false;                // algorithms
  std::vector<std::string> options;  // the next three: tasks
  int64_t samples = 3;
  uint64_t seed = 1;
};

// A list with aligned names, or one entry by name.
struct Line {
  std::string name, text, details;
  Json json;
};

// `width`: of the names; `indent`: of the JSON.
void Show(CommandContext& context, const RegistryOptions& o, const std::string& kind,
          const std::vector<Line>& lines, int width = 22, int indent = 1) {
  if (!o.name.empty()) {
    for (const Line& line : lines) {
      if (line.name != o.name) continue;
      std::printf("%s", o.json ? (line.json.dump(indent) + "\n").c_str() : line.details.c_str());
      return;
    }
    return Fail(context, NotFound("no " + kind + " is named '" + o.name + "'; there are " +
                                  tidepool::Listed(lines, &Line::name)));
  }
  if (o.json) {
    Json all = Json::array();
    for (const Line& line : lines) all.push_back(line.json);
    std::printf("%s\n", all.dump(indent).c_str());
    return;
  }
  for (const Line& line : lines) std::printf("%-*s %s\n", width, line.name.c_str(), line.text.c_str());
}

// An adapter's folder, and whether the model that it names is here and its own.
Status DescribeAdapter(const std::string& folder, bool as_json) {
  TP_ASSIGN_OR_RETURN(const auto adapter, model::AdapterFolder::Open(folder));
  const model::AdapterSpec& s = adapter.spec();
  std::error_code error;
  const bool here = std::filesystem::exists(adapter.base() + "/config.json", error);
  if (here) TP_RETURN_IF_ERROR(adapter.CheckBase(adapter.base()));
  std::vector<std::string> targets;
  for (const model::AdapterTarget target : s.targets) targets.emplace_back(Name(target));
  if (as_json) {
    const Json out = {{"folder", folder},
                      {"adapter_of", adapter.base()},
                      {"base_fingerprint", adapter.fingerprint()},
                      {"base_is_here", here},
                      {"parameters", adapter.parameters()},
                      {"rank", s.rank},
                      {"alpha", s.alpha},
                      {"rslora", s.rslora},
                      {"targets", targets},
                      {"reward_model", s.score}};
    std::printf("%s\n", out.dump().c_str());
    return OkStatus();
  }
  std::printf("%s: adapter of %s%s, %.3f M parameters, rank %lld, alpha %g%s, of %s%s\n", folder.c_str(),
              adapter.base().empty() ? "a model that it does not name" : adapter.base().c_str(),
              here ? "" : " (no folder here)", static_cast<double>(adapter.parameters()) / 1e6,
              static_cast<long long>(s.rank), s.alpha, s.rslora ? " (rslora)" : "",
              tidepool::Listed(targets).c_str(), s.score ? ", with a reward model's head" : "");
  return OkStatus();
}

// A folder: what it is, or the reason why it cannot be used.
Status DescribeFolder(const std::string& folder, bool as_json) {
  std::error_code error;
  if (std::filesystem::exists(folder + "/" + model::kAdapterConfigFile, error) &&
      !std::filesystem::exists(folder + "/model.safetensors", error))
    return DescribeAdapter(folder, as_json);
  TP_ASSIGN_OR_RETURN(const model::ModelSpec s, model::ReadSpec(folder));
  TP_RETURN_IF_ERROR(model::CheckHuggingFace(folder));
  int64_t parameters = 0;
  for (const model::Parameter& p : model::Layout(s)) parameters += p.numel();
  if (as_json) {
    const Json out = {{"folder", folder},
                      {"model_type", s.architecture},
                      {"parameters", parameters},
                      {"layers", s.layers},
                      {"hidden_size", s.hidden_size},
                      {"heads", s.heads},
                      {"kv_heads", s.kv_heads},
                      {"head_size", s.head_size},
                      {"vocab_size", s.vocab_size},
                      {"max_position", s.max_position},
                      {"experts", s.moe.experts},
                      {"tied", s.tie_embeddings},
                      {"eos_token_ids", s.eos_token_ids}};
    std::printf("%s\n", out.dump().c_str());
    return OkStatus();
  }
  std::printf(
      "%s: %s, %.1f M parameters, %lld layers of %lld, %lld heads of %lld (%lld for keys and values), "
      "vocabulary %lld, %lld positions\n",
      folder.c_str(), s.architecture.c_str(), static_cast<double>(parameters) / 1e6,
      static_cast<long long>(s.layers), static_cast<long long>(s.hidden_size),
      static_cast<long long>(s.heads), static_cast<long long>(s.head_size),
      static_cast<long long>(s.kv_heads), static_cast<long long>(s.vocab_size),
      static_cast<long long>(s.max_position));
  if (s.moe.experts > 0) {
    std::printf("  %lld of %lld layers have %lld experts, %lld a token%s\n",
                static_cast<long long>(s.sparse_layers()), static_cast<long long>(s.layers),
                static_cast<long long>(s.moe.experts), static_cast<long long>(s.moe.experts_per_token),
                s.moe.shared_intermediate_size > 0 ? ", and a shared one" : "");
  }
  if (s.ends_at_max_position)
    std::printf(
        "  positions end at %lld: beyond, a sliding window or rope scaling that is not implemented would "
        "count\n",
        static_cast<long long>(s.max_position));
  return OkStatus();
}

void ShowModels(CommandContext& context, const RegistryOptions& o) {
  std::error_code error;
  if (!o.name.empty() && std::filesystem::is_directory(o.name, error)) {
    if (const Status status = DescribeFolder(o.name, o.json); !status.ok()) Fail(context, status);
    return;
  }
  const std::string policy =
      "actor and critic of a control task: model: {policy: mlp, hidden: [64, 64], shared: false} with an "
      "environment (docs/adding_a_control_task.md)";
  std::vector<Line> lines;
  for (const model::Family* f : model::Families()) {
    lines.push_back({f->model_type,
                     std::string(" ") + f->doc,
                     std::string(f->model_type) + " (" + f->architecture + ")\n  " + f->doc +
                         "\n  refused by name: " + f->refused + "\n",
                     {{"model_type", f->model_type},
                      {"architecture", f->architecture},
                      {"doc", f->doc},
                      {"refused", f->refused}}});
  }
  lines.push_back({"mlp",
                   " " + policy,
                   "mlp (mlp_policy)\n  " + policy + "\n",
                   {{"model_type", "mlp_policy"}, {"name", "mlp"}, {"doc", policy}}});
  if (!o.name.empty() && std::ranges::find(lines, o.name, &Line::name) == lines.end())
    return Fail(context, NotFound("models: '" + o.name + "' is neither a family (" + model::FamilyNames() +
                                  ") nor a folder"));
  Show(context, o, "model", lines, 10, -1);
}

Json OptionsJson(const std::vector<tasks::Option>& options) {
  Json list = Json::array();
  for (const tasks::Option& o : options) {
    list.push_back({{"name", o.name},
                    {"default", Json::parse(o.default_json, nullptr, false)},
                    {"values", tasks::DescribeOption(o)},
                    {"doc", o.doc}});
  }
  return list;
}

Json TaskJson(const tasks::TaskInfo& info) {
  return {{"name", info.name},
          {"doc", info.doc},
          {"held_out_unit", info.held_out_unit},
          {"options", OptionsJson(info.options)}};
}

Status DescribeTask(const RegistryOptions& o) {
  const tasks::TaskInfo* info = tasks::FindTask(o.name);
  tasks::TaskRequest request{.name = o.name, .size = o.samples, .held_out = 0, .seed = o.seed};
  for (const std::string& option : o.options) {
    const auto equals = option.find('=');
    if (equals == std::string::npos) return InvalidArgument("--option: " + option + " is not name=value");
    const std::string name = option.substr(0, equals), typed = option.substr(equals + 1);
    request.options[name] = info == nullptr ? typed : tasks::OptionJson(info->options, name, typed);
  }
  TP_ASSIGN_OR_RETURN(const auto task, tasks::MakeTask(request));  // names the nearest task if there is none
  TP_ASSIGN_OR_RETURN(const int64_t units, tasks::CountUnits(o.name, request.options));
  Json json = TaskJson(*info);
  json["units"] = units;
  json["samples"] = Json::array();
  try {
    for (int64_t i = 0; i < std::min(o.samples, task->train_size()); ++i) {
      const tasks::Question q = task->Train(i);
      json["samples"].push_back({{"prompt", q.prompt}, {"answer", q.answer}, {"fields", q.fields}});
    }
  } catch (const PluginThrew& threw) {
    return InvalidArgument(threw.what());
  }
  if (o.json) {
    std::printf("%s\n", json.dump().c_str());
    return OkStatus();
  }
  const bool many = units >= int64_t{1} << 62;
  std::printf("%s: %s\n  %s%s %s to draw from\n  options (of `data`, or --option name=value):\n",
              info->name.c_str(), info->doc.c_str(), many ? "more than " : "",
              many ? "4e18" : std::to_string(units).c_str(), info->held_out_unit.c_str());
  for (const tasks::Option& option : info->options) {
    std::printf("    %-10s %-14s %s (%s)\n", option.name.c_str(), option.default_json.c_str(),
                option.doc.c_str(), tasks::DescribeOption(option).c_str());
  }
  for (const auto& sample : json["samples"]) {
    std::printf("  %s\n    -> %s\n", sample["prompt"].get<std::string>().c_str(),
                sample["answer"].get<std::string>().c_str());
  }
  return OkStatus();
}

void ShowTasks(CommandContext& context, const RegistryOptions& o) {
  if (!o.name.empty()) {
    if (const Status status = DescribeTask(o); !status.ok()) Fail(context, status);
    return;
  }
  std::vector<Line> lines;
  for (const tasks::TaskInfo& info : tasks::ListTasks())
    lines.push_back({info.name, info.doc, "", TaskJson(info)});
  Show(context, o, "task", lines, 17, -1);
}

void ShowAlgorithms(CommandContext& context, const RegistryOptions& o) {
  if (o.table) {
    std::printf("%s", algorithms::AlgorithmTable().c_str());
    return;
  }
  std::vector<Line> lines;
  for (const algorithms::AlgorithmEntry& e : algorithms::Algorithms()) {
    if (!e.off_policy.empty()) {
      lines.push_back({e.name,
                       e.doc,
                       algorithms::DescribeAlgorithm(e),
                       {{"name", e.name}, {"paper", e.paper}, {"doc", e.doc}, {"formulas", e.off_policy}}});
      continue;
    }
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
    std::string spec = info.name + (info.argument.empty() ? "" : ":" + info.argument);
    std::string keys;
    for (const std::string& key : info.keys) keys += (keys.empty() ? "" : ", ") + key;
    if (info.by_model()) spec = info.name + "\", path: \"FOLDER";
    lines.push_back(
        {info.name,
         info.doc,
         info.name + ": " + info.doc + "\n  argument  " + (info.argument.empty() ? "none" : info.argument) +
             (keys.empty() ? "" : "\n  keys      " + keys) +
             "\n  in a config  reward: {functions: [{name: \"" + spec + "\", weight: 1.0}]}\n",
         {{"name", info.name}, {"argument", info.argument}, {"doc", info.doc}, {"keys", info.keys}}});
  }
  Show(context, o, "reward", lines);
}

// The first turns of a game, played well.
std::string ExampleEpisode(const environments::TextEnvironmentInfo& info) {
  const auto environment = environments::MakeTextEnvironment(info.name, {}, 1);
  if (!environment.ok()) return "";
  std::string text = "  an episode\n";
  const auto played = environments::PlayTrial(
      **environment, environments::LabelOf(info),
      {.games = 1, .turns = 3, .varied = false, .reset_s = 10, .step_s = 10},
      [&](const std::string& words, environments::Said said) {
        if (said == environments::Said::kLast) return;
        text += std::string("    ") + (said == environments::Said::kAction ? ">" : "<") + " ";
        for (const char c : words) text += c == '\n' ? std::string("\n      ") : std::string(1, c);
        text += "\n";
      },
      [&] { return text; });
  // The others are shown nevertheless.
  return played.ok() ? *played + "    ...\n"
                     : "  an episode cannot be played: " + played.status().message() + "\n";
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
             "\n  options      " + (e.options.empty() ? "none" : e.options) +
             "\n  in a config  model: {policy: mlp}, environment: {name: " + e.name + ", instances: 8}\n",
         {{"name", e.name},
          {"reference", e.reference},
          {"observation_size", e.observation_size},
          {"actions", e.actions},
          {"continuous", e.continuous},
          {"max_steps", e.max_episode_steps},
          {"solved", e.solved_return},
          {"reward", e.reward},
          {"options", e.options}}});
  }
  for (const environments::TextEnvironmentInfo& e : environments::ListTextEnvironments()) {
    std::string options;
    for (const tasks::Option& option : e.options) {
      options += "    " + option.name +
                 std::string(option.name.size() < 13 ? 13 - option.name.size() : 1, ' ') +
                 option.default_json + "  " + option.doc + " (" + tasks::DescribeOption(option) + ")\n";
    }
    lines.push_back({e.name,
                     e.doc,
                     e.name + ": " + e.doc + "\n  action       " + e.action + "\n  reward       " + e.reward +
                         "\n  in a config  environment: {name: " + e.name +
                         "}\n  options of `environment`\n" + options + ExampleEpisode(e),
                     {{"name", e.name},
                      {"doc", e.doc},
                      {"action", e.action},
                      {"reward", e.reward},
                      {"options", OptionsJson(e.options)}}});
  }
  Show(context, o, "environment", lines);
}

void ShowPolicies(CommandContext& context, const RegistryOptions& o) {
  std::vector<Line> lines;
  for (const auto& [name, make, file] : scheduler::PolicyPlugins()) {
    const scheduler::PolicyPlugin policy = make();
    const std::string placement = Name(policy.placement), text = policy.summary;
    const bool own = placement == name;
    const std::string config =
        "scheduler: {placement: " + placement + (own ? "" : std::string(", policy: ") + name) + "}";
    lines.push_back({name,
                     text + (own ? "" : " (" + config + ")"),
                     std::string(name) + ": " + text + "\n  in a config  " + config + "\n",
                     {{"name", name}, {"doc", text}, {"placement", placement}}});
  }
  Show(context, o, "policy", lines, 12);
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
       {Kind{"models", "Model families that can be loaded; whether a folder can", "tidepool models qwen3_moe",
             ShowModels},
        Kind{"tasks", "Generated tasks; options and sample questions of one",
             "tidepool tasks products --option factors=[2,5]", ShowTasks},
        Kind{"algorithms", "Algorithms: presets of advantage, loss, aggregation and correction",
             "tidepool algorithms gspo", ShowAlgorithms},
        Kind{"rewards", "Reward functions", "tidepool rewards gsm8k", ShowRewards},
        Kind{"policies", "Placements that scheduler.placement can name, policies of scheduler.policy",
             "tidepool policies multiplexed", ShowPolicies},
        Kind{"environments", "Environments: names that a config takes", "tidepool environments cartpole",
             ShowEnvironments}}) {
    auto options = std::make_shared<RegistryOptions>();
    CLI::App* command = app.add_subcommand(kind.name, kind.doc);
    command->add_option("name", options->name, "show one in detail; of models, a folder to check as well");
    command->add_flag("--json", options->json, "as JSON");
    if (std::string(kind.name) == "tasks") {
      command->add_option("--option", options->options,
                          "Option of the task, name=value (letters=abc, factors=[2,9])");
      command->add_option("-n,--samples", options->samples, "Questions to show")
          ->check(CLI::Range(1, 100000));
      command->add_option("--seed", options->seed, "Names the questions");
    }
    if (std::string(kind.name) == "algorithms")
      command->add_flag("--table", options->table, "the tables of docs/algorithms.md");
    command->footer(std::string("Example: ") + kind.example);
    command->callback([&context, options, show = kind.show] { show(context, *options); });
  }
}

}  // namespace tidepool::workers
