// new: writes the one file of a new plug-in, and a test, and says how to build and try them.
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "core/algorithms/registry.h"
#include "core/base/names.h"
#include "core/environments/text_game.h"
#include "core/environments/vector.h"
#include "core/model/families/family.h"
#include "core/tasks/reward.h"
#include "core/tasks/task.h"
#include "scheduler/policies/policy_plugin.h"
#include "workers/cli/command.h"
#include "workers/cli/plugin_templates.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;

bool IsEnvironment(const std::string& name) {
  return environments::FindTextEnvironment(name) != nullptr ||
         std::ranges::count(environments::ListVectorEnvironments(), name, &environments::VectorSpec::name) >
             0;
}

struct Kind {
  const char* name;    // as the command has it
  const char* folder;  // of its files
  const char* guide;
  std::string_view (*file)();
  std::string_view (*test)();
  bool (*taken)(const std::string& name);
  const char* list;       // the command that shows it
  const char* job;        // a line that uses it; %s is its name
  bool shows_one = true;  // `list` takes a name
};
constexpr std::array kKinds = {
    Kind{"reward", "core/tasks/rewards", "docs/adding_a_reward.md", RewardTemplate, RewardTestTemplate,
         [](const std::string& name) {
           return std::ranges::count(tasks::ListRewards(), name, &tasks::RewardInfo::name) > 0;
         },
         "rewards", "train configs/quickstart.yaml 'reward.functions=[{name: %s}]'"},
    Kind{"task", "core/tasks/tasks", "docs/adding_a_task.md", TaskTemplate, TaskTestTemplate,
         [](const std::string& name) { return tasks::FindTask(name) != nullptr; }, "tasks",
         "train configs/test/rl_colocated.yaml 'data={task: %s, style: terse, size: 256, held_out: 32}' "
         "'model.init.alphabet=\"0123456789+=\"'"},
    Kind{"environment", "core/environments/games", "docs/adding_an_environment.md", EnvironmentTemplate,
         EnvironmentTestTemplate, IsEnvironment, "environments",
         "train configs/test/rl_episodes.yaml 'environment={name: %s, workers: 2}' "
         "'model.init.alphabet=\"0123456789?\"'"},
    Kind{"control", "core/environments/control_tasks", "docs/adding_a_control_task.md", ControlTemplate,
         ControlTestTemplate, IsEnvironment, "environments",
         "train configs/control/cartpole.yaml environment.name=%s"},
    Kind{"algorithm", "core/algorithms/losses", "docs/adding_an_algorithm.md", AlgorithmTemplate,
         AlgorithmTestTemplate,
         [](const std::string& name) {
           return algorithms::FindAlgorithm(name) != nullptr || algorithms::FindLoss(name) != nullptr ||
                  algorithms::FindAdvantage(name) != nullptr;
         },
         "algorithms", "train configs/quickstart.yaml algorithm.name=%s"},
    Kind{"model", "core/model/families", "docs/adding_a_model.md", ModelTemplate, ModelTestTemplate,
         [](const std::string& name) { return model::FindFamily(name) != nullptr; }, "models",
         "models FOLDER   # a folder whose config.json says model_type: %s"},
    Kind{"policy", "scheduler/policies", "docs/adding_a_policy.md", PolicyTemplate, PolicyTestTemplate,
         [](const std::string& name) {
           return std::ranges::any_of(scheduler::PolicyPlugins(),
                                      [&](const auto& plugin) { return name == plugin.name; });
         },
         "policies", "simulate configs/multiplexed_demo.yaml scheduler.policy=%s",
         /*shows_one=*/false},
};

// "closest_word" -> "MyClosestWord". Nothing of Tidepool's begins so: a bare "Verdict" or "Rules" would be a
// name that the namespace has already.
std::string InPascalCase(const std::string& name) {
  std::string out = "My";
  bool up = true;
  for (const char c : name) {
    if (c == '_') {
      up = true;
      continue;
    }
    out += up && c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    up = false;
  }
  return out;
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

Status CheckName(const std::string& name) {
  const auto small = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto other = [](char c) { return (c >= '0' && c <= '9') || c == '_'; };
  if (name.empty() || !small(name[0]) ||
      !std::ranges::all_of(name, [&](char c) { return small(c) || other(c); })) {
    return InvalidArgument(
        "new: found the name '" + name +
        "'; a name has small letters, digits and underscores and begins with a letter (closest_word)");
  }
  return OkStatus();
}

// The checkout that `from` lies in.
StatusOr<fs::path> FindCheckout(const fs::path& from) {
  for (fs::path at = from;; at = at.parent_path()) {
    std::error_code error;
    if (fs::exists(at / "core/base/plugin.h", error) && fs::exists(at / "cmake/plugins.cmake", error))
      return at;
    if (at == at.parent_path()) break;
  }
  return FailedPrecondition(
      "new: " + from.string() +
      " is not in a checkout of Tidepool, and a plug-in is a file of its sources; change into "
      "one (git clone, then make build)");
}

Status WriteNew(const fs::path& path, const std::string& text) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out)
    return Internal("new: " + path.string() + " cannot be written; is there room, and may you write there?");
  return OkStatus();
}

// "build", or the folder that this program was built in.
std::string BuildFolder(const fs::path& checkout, const std::string& self) {
  const fs::path folder = fs::path(self).parent_path().parent_path();
  const fs::path relative = folder.lexically_relative(checkout);
  const bool inside = !relative.empty() && *relative.begin() != ".." && relative != ".";
  return inside ? relative.string() : "build";
}

// `own`: the folder of plug-ins outside of the sources (TIDEPOOL_PLUGINS), absolute; empty: into the sources.
Status WritePlugin(const Kind& kind, const std::string& name, const std::string& self, const fs::path& own) {
  TP_RETURN_IF_ERROR(CheckName(name));
  std::error_code error;
  // What is written elsewhere is built by the sources of this program all the same.
  TP_ASSIGN_OR_RETURN(const fs::path root,
                      FindCheckout(own.empty() ? fs::current_path(error) : fs::path(self).parent_path()));
  const std::string folder =
      own.empty() ? std::string(kind.folder) : (own / fs::path(kind.folder).filename()).string();
  const std::string file = folder + "/" + name + ".cc",
                    test = (own.empty() ? "tests/plugins/" : (own / "tests/").string()) + kind.name + "_" +
                           name + "_test.cc";
  for (const std::string& path : {file, test}) {
    if (fs::exists(root / path, error))
      return AlreadyExists("new: " + path + " is there already; edit it, or take another name");
  }
  if (kind.taken(name))
    return AlreadyExists("new: " + std::string(kind.name) + " '" + name + "' is there already (tidepool " +
                         kind.list + " " + name + "); take another name");
  const auto named = [&](std::string_view text) {
    const std::string mine = std::string("my_") + kind.name;
    return Replaced(Replaced(std::string(text), InPascalCase(kind.name), InPascalCase(name)), mine, name);
  };
  TP_RETURN_IF_ERROR(WriteNew(root / file, named(kind.file())));
  TP_RETURN_IF_ERROR(WriteNew(root / test, named(kind.test())));
  const fs::path inside = BuildFolder(root, self);
  const std::string build = own.empty() ? inside.string() : (root / inside).string(),
                    target = std::string(kind.name) + "_" + name + "_test";
  std::printf("wrote  %s\n       %s\n", file.c_str(), test.c_str());
  if (own.empty()) {
    std::printf("build  ninja -C %s tidepool tidepool-worker\n", build.c_str());
  } else {
    std::printf(
        "build  cmake -S %s -B %s -DTIDEPOOL_PLUGINS=%s\n       ninja -C %s tidepool tidepool-worker\n",
        root.c_str(), build.c_str(), own.c_str(), build.c_str());
  }
  std::printf("try    %s/bin/tidepool %s%s\n", build.c_str(), kind.list,
              kind.shows_one ? (" " + name).c_str() : "");
  std::printf("       %s/bin/tidepool %s\n", build.c_str(), Replaced(kind.job, "%s", name).c_str());
  std::printf("test   ninja -C %s %s && %s/tests/%s\n", build.c_str(), target.c_str(), build.c_str(),
              target.c_str());
  std::printf("guide  %s\n", kind.guide);
  return OkStatus();
}

}  // namespace

void AddNewCommand(CLI::App& app, CommandContext& context) {
  struct NewOptions {
    std::string kind, name, plugins;
  };
  auto options = std::make_shared<NewOptions>();
  CLI::App* command =
      app.add_subcommand("new", "Start a plug-in: writes its one file and a test into the sources");
  const std::string kinds = Listed(kKinds, [](const Kind& kind) { return std::string(kind.name); });
  command->add_option("kind", options->kind, kinds)->required();
  command
      ->add_option("name", options->name,
                   "Its name, as configs will have it: small letters, digits, underscores")
      ->required();
  command->add_option(
      "--plugins", options->plugins,
      "Write into this folder of plug-ins of your own (TIDEPOOL_PLUGINS), not into the sources");
  command->footer("Example: tidepool new reward closest_word");
  command->callback([options, &context, kinds] {
    const auto kind = std::ranges::find(kKinds, options->kind, &Kind::name);
    const Status status =
        kind == kKinds.end()
            ? InvalidArgument("new: found '" + options->kind + "'; a plug-in is one of " + kinds)
            : WritePlugin(*kind, options->name, context.self_path,
                          options->plugins.empty() ? fs::path() : fs::absolute(options->plugins));
    if (!status.ok()) Fail(context, status);
  });
}

}  // namespace tidepool::workers
