#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "core/config/load.h"
#include "core/config/render.h"
#include "workers/cli/command.h"

namespace tidepool::workers {

void AddConfigCommands(CLI::App& app, CommandContext& context) {
  struct Options {
    std::vector<std::string> files;
    std::string file;
    std::vector<std::string> overrides;
  };
  auto options = std::make_shared<Options>();
  CLI::App* validate = app.add_subcommand("validate", "Check configs and say everything that is wrong");
  validate->add_option("config", options->files, "YAML files")->required();
  validate->footer("Example: tidepool validate configs/*.yaml");
  validate->callback([options, &context] {
    for (const std::string& file : options->files) {
      auto loaded = config::LoadConfig(file, {});
      if (!loaded.ok()) {
        Fail(context, loaded.status());
        continue;
      }
      for (const std::string& warning : loaded->warnings)
        std::fprintf(stderr, "warning: %s\n", warning.c_str());
      std::printf("%s: ok\n", file.c_str());
    }
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
