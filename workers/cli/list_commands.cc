// models, tasks: what this build knows, one line each; a name for details.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/model/families/family.h"
#include "core/model/hugging_face.h"
#include "core/tasks/task.h"
#include "workers/cli/command.h"

namespace tidepool::workers {
namespace {

using nlohmann::ordered_json;

// --- models ---

ordered_json FamilyJson(const model::Family& f) {
  return {
      {"model_type", f.model_type}, {"architecture", f.architecture}, {"doc", f.doc}, {"refused", f.refused}};
}

// A folder: what it is, or the reason why it cannot be used.
Status DescribeFolder(const std::string& folder, bool as_json) {
  TP_ASSIGN_OR_RETURN(const model::ModelSpec s, model::ReadSpec(folder));
  TP_RETURN_IF_ERROR(model::CheckHuggingFace(folder));
  int64_t parameters = 0;
  for (const model::Parameter& p : model::Layout(s)) parameters += p.numel();
  if (as_json) {
    const ordered_json out = {{"folder", folder},
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

Status Models(const std::string& name, bool as_json) {
  std::error_code error;
  if (const model::Family* family = model::FindFamily(name);
      family != nullptr && !std::filesystem::is_directory(name, error)) {
    if (as_json) {
      std::printf("%s\n", FamilyJson(*family).dump().c_str());
    } else {
      std::printf("%s (%s)\n  %s\n  refused by name: %s\n", family->model_type, family->architecture,
                  family->doc, family->refused);
    }
    return OkStatus();
  }
  const std::string policy =
      "actor and critic of a control task: model: {policy: mlp, hidden: [64, 64], shared: false} with an "
      "environment (docs/adding_a_policy.md)";
  if (name == "mlp") {
    std::printf(
        "%s\n",
        as_json
            ? ordered_json({{"model_type", "mlp_policy"}, {"name", "mlp"}, {"doc", policy}}).dump().c_str()
            : ("mlp (mlp_policy)\n  " + policy).c_str());
    return OkStatus();
  }
  if (!name.empty()) {
    if (std::filesystem::is_directory(name, error)) return DescribeFolder(name, as_json);
    return NotFound("models: '" + name + "' is neither a family (" + model::FamilyNames() + ") nor a folder");
  }
  ordered_json all = ordered_json::array();
  for (const model::Family* family : model::Families()) {
    if (as_json) {
      all.push_back(FamilyJson(*family));
    } else {
      std::printf("%-10s  %s\n", family->model_type, family->doc);
    }
  }
  if (as_json) {
    all.push_back({{"model_type", "mlp_policy"}, {"name", "mlp"}, {"doc", policy}});
  } else {
    std::printf("%-10s  %s\n", "mlp", policy.c_str());
  }
  if (as_json) std::printf("%s\n", all.dump().c_str());
  return OkStatus();
}

// --- tasks ---

struct TasksOptions {
  std::string name;
  std::vector<std::string> options;
  int64_t samples = 3;
  uint64_t seed = 1;
  bool as_json = false;
};

ordered_json TaskJson(const tasks::TaskInfo& info) {
  ordered_json options = ordered_json::array();
  for (const tasks::Option& o : info.options) {
    options.push_back({{"name", o.name},
                       {"default", ordered_json::parse(o.default_json, nullptr, false)},
                       {"values", tasks::DescribeOption(o)},
                       {"doc", o.doc}});
  }
  return {
      {"name", info.name}, {"doc", info.doc}, {"held_out_unit", info.held_out_unit}, {"options", options}};
}

Status DescribeTask(const TasksOptions& o) {
  const tasks::TaskInfo* info = tasks::FindTask(o.name);
  tasks::TaskRequest request{.name = o.name, .size = o.samples, .held_out = 0, .seed = o.seed};
  for (const std::string& option : o.options) {
    const auto equals = option.find('=');
    if (equals == std::string::npos) return InvalidArgument("--option: " + option + " is not name=value");
    request.options[option.substr(0, equals)] = option.substr(equals + 1);
  }
  TP_ASSIGN_OR_RETURN(const auto task, tasks::MakeTask(request));  // names the nearest task if there is none
  TP_ASSIGN_OR_RETURN(const int64_t units, tasks::CountUnits(o.name, request.options));
  ordered_json json = TaskJson(*info);
  json["units"] = units;
  json["samples"] = ordered_json::array();
  for (int64_t i = 0; i < std::min(o.samples, task->train_size()); ++i) {
    const tasks::Question q = task->Train(i);
    json["samples"].push_back({{"prompt", q.prompt}, {"answer", q.answer}, {"fields", q.fields}});
  }
  if (o.as_json) {
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

Status Tasks(const TasksOptions& o) {
  if (!o.name.empty()) return DescribeTask(o);
  ordered_json all = ordered_json::array();
  for (const tasks::TaskInfo& info : tasks::ListTasks()) {
    if (o.as_json) {
      all.push_back(TaskJson(info));
    } else {
      std::printf("%-17s %s\n", info.name.c_str(), info.doc.c_str());
    }
  }
  if (o.as_json) std::printf("%s\n", all.dump().c_str());
  return OkStatus();
}

}  // namespace

void AddListCommands(CLI::App& app, CommandContext& context) {
  struct Name {
    std::string name;
    bool as_json = false;
  };
  auto models = std::make_shared<Name>();
  CLI::App* m = app.add_subcommand("models", "Model families that can be loaded; whether a folder can");
  m->add_option("name", models->name, "Family, or a model folder to check");
  m->add_flag("--json", models->as_json, "JSON");
  m->footer("Example: tidepool models qwen3_moe");
  m->callback([models, &context] {
    if (const Status status = Models(models->name, models->as_json); !status.ok()) Fail(context, status);
  });

  auto tasks = std::make_shared<TasksOptions>();
  CLI::App* t = app.add_subcommand("tasks", "Generated tasks; options and sample questions of one");
  t->add_option("name", tasks->name, "Task");
  t->add_option("--option", tasks->options, "Option of the task, name=JSON (factors=[2,9])");
  t->add_option("-n,--samples", tasks->samples, "Questions to show")->check(CLI::Range(1, 100000));
  t->add_option("--seed", tasks->seed, "Names the questions");
  t->add_flag("--json", tasks->as_json, "JSON");
  t->footer("Example: tidepool tasks products --option factors=[2,5]");
  t->callback([tasks, &context] {
    if (const Status status = Tasks(*tasks); !status.ok()) Fail(context, status);
  });
}

}  // namespace tidepool::workers
