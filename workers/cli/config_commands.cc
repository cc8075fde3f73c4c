#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json_fields.h"
#include "core/base/limited_call.h"
#include "core/config/load.h"
#include "core/config/render.h"
#include "core/device/cpu/kernels.h"
#include "workers/cli/command.h"
#include "workers/cli/data_text.h"
#include "workers/cli/host_cores.h"
#include "workers/cli/own_process.h"
#include "workers/cli/plan_text.h"
#include "workers/controller/job.h"
#include "workers/side/environment_services.h"

namespace tidepool::workers {

Status CheckGames(config::LoadedConfig& loaded) {
  TP_ASSIGN_OR_RETURN(const std::string warning, config::TryGames(loaded, TryEnvironmentService));
  if (!warning.empty()) std::fprintf(stderr, "warning: %s\n", warning.c_str());
  return OkStatus();
}

namespace {

// With what the config names checked, too. Warnings go to stderr.
StatusOr<JobData> Checked(const std::string& file, const std::vector<std::string>& overrides,
                          const std::string& self_path) {
  TP_ASSIGN_OR_RETURN(config::LoadedConfig loaded, config::LoadConfig(file, overrides));
  for (const std::string& warning : loaded.warnings) std::fprintf(stderr, "warning: %s\n", warning.c_str());
  TP_RETURN_IF_ERROR(CheckGames(loaded));
  TP_RETURN_IF_ERROR(CheckInputs(loaded));
  (void)device::BestIsa();  // ends the program here if TIDEPOOL_CPU_ISA is misspelt
  WarnOfMemory(loaded);
  WarnOfGpus(loaded, self_path);
  WarnOfThreads(loaded);
  return DataOf(loaded.config);
}

void PrintJson(const nlohmann::ordered_json& out) {
  std::printf("%s\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}
void PrintJsonError(const std::string& file, const std::string& error) {
  PrintJson({{"config", file}, {"ok", false}, {"error", error}});
}

void PrintSummary(const std::string& file, const JobData& data, bool as_json) {
  if (!as_json) {
    std::printf("%s: ok\n", file.c_str());
    return PrintData(data);
  }
  nlohmann::ordered_json out = {{"config", file}, {"ok", true}};
  for (const auto& [of, summary] : data)
    out[of.empty() ? "data" : "warm_start"] = JsonOf<nlohmann::ordered_json>(summary);
  PrintJson(out);
}

// The exit code.
int Validate(const std::string& file, const std::vector<std::string>& overrides, const std::string& self_path,
             bool as_json) {
  const auto failed = [&](const std::string& error, int code) {
    if (as_json) PrintJsonError(file, error);
    std::fprintf(stderr, "%s\n", error.c_str());
    return code;
  };
  try {
    const auto data = Checked(file, overrides, self_path);
    if (!data.ok()) return failed(data.status().message(), 2);
    PrintSummary(file, *data, as_json);
    return 0;
  } catch (const PluginThrew& threw) {
    return failed(file + ": " + threw.what() + "; correct it and build again", 2);
  } catch (const std::exception& e) {
    return failed(file + ": internal error: " + e.what() + "; please report it", 1);
  }
}

}  // namespace

void AddConfigCommands(CLI::App& app, CommandContext& context) {
  struct Options {
    std::vector<std::string> files;
    std::string file;
    std::vector<std::string> overrides;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* validate = app.add_subcommand(
      "validate", "Check configs, and the model and data they name, and say everything that is wrong");
  validate->add_option("config", options->files, "YAML files, and a.b=c for all of them, last wins")
      ->required();
  validate->add_flag("--json", options->json, "An object a config, one a line");
  validate->footer("Example: tidepool validate configs/*.yaml train.steps=5");
  validate->callback([options, &context] {
    const auto overrides = std::ranges::stable_partition(options->files, [](const std::string& word) {
      std::error_code error;
      return word.find('=') == std::string::npos || std::filesystem::exists(word, error);
    });
    options->overrides.assign(overrides.begin(), overrides.end());
    options->files.erase(overrides.begin(), overrides.end());
    if (options->files.empty())
      Fail(context, InvalidArgument("validate: only overrides are given (a.b=c); name a config, too"));
    std::optional<int> killed_by;
    for (const std::string& file : options->files) {
      const PartEnd end =
          InOwnProcess([&] { return Validate(file, options->overrides, context.self_path, options->json); });
      context.exit_code = std::max(context.exit_code, end.code);
      if (end.signal == SIGPIPE) {  // nobody reads any more, so there is nobody to tell
        std::fflush(nullptr);
        ::raise(SIGPIPE);
      }
      if (end.signal) killed_by = end.signal;
      if (end.words.empty()) continue;
      if (options->json) PrintJsonError(file, end.words);
      std::fprintf(stderr, "%s: cannot be used: %s\n", file.c_str(), end.words.c_str());
    }
    std::fflush(nullptr);
    if (killed_by) ::raise(*killed_by);  // whoever waits for this process sees a crash as one
  });
  CLI::App* group = app.add_subcommand("config", "The schema of configs, and what one resolves to");
  group->require_subcommand(1);
  CLI::App* schema = group->add_subcommand("schema", "JSON schema of a config file");
  schema->footer("Example: tidepool config schema > tidepool.schema.json");
  schema->callback([] { std::printf("%s\n", config::JsonSchema().c_str()); });
  CLI::App* reference =
      group->add_subcommand("reference", "Markdown reference of every key (docs/config.md)");
  reference->callback([] { std::printf("%s", config::ConfigReference().c_str()); });
  CLI::App* show = group->add_subcommand("show", "The resolved config, and where each value came from");
  show->add_option("config", options->file, "YAML file")->required();
  show->add_option("overrides", options->overrides, "a.b=c");
  show->footer("Example: tidepool config show configs/quickstart.yaml train.steps=5");
  show->callback([options, &context] {
    auto loaded = config::LoadConfig(options->file, options->overrides);
    if (!loaded.ok()) return Fail(context, loaded.status());
    std::printf("%s", config::ResolvedYaml(*loaded).c_str());
  });
}

}  // namespace tidepool::workers
