// tidepool prune: frees disk of runs that are finished or stopped.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/json_fields.h"
#include "workers/cli/command.h"
#include "workers/cli/prune.h"
#include "workers/cli/run_lookup.h"

namespace tidepool::workers {
namespace {

using Json = nlohmann::ordered_json;

struct PruneArguments {
  std::vector<std::string> runs;
  PruneOptions what;
  bool dry_run = false, json = false;
};

void Describe(const PrunePlan& plan, bool dry_run) {
  for (const PrunedItem& item : plan.items) {
    std::printf("  %-10s %s (%s)\n", BytesText(item.bytes).c_str(), item.path.c_str(), item.what.c_str());
  }
  for (const std::string& stays : plan.stays) std::printf("  stays      %s\n", stays.c_str());
  if (plan.items.empty()) {
    std::printf("%s: nothing to remove\n", plan.run.c_str());
  } else if (dry_run) {
    std::printf("%s: %s would be freed; nothing was removed (--dry-run)\n", plan.run.c_str(),
                BytesText(plan.bytes()).c_str());
  } else {
    std::printf("%s: %s freed\n", plan.run.c_str(), BytesText(plan.bytes()).c_str());
  }
}

StatusOr<Json> PruneOne(const std::string& name, const PruneArguments& options) {
  TP_ASSIGN_OR_RETURN(const std::string dir,
                      FindRunDirectory(name, "prune removes files of a run directory"));
  TP_ASSIGN_OR_RETURN(const auto pruner, Pruner::Open(dir, options.what));
  if (!options.dry_run) TP_RETURN_IF_ERROR(pruner->Remove().At(dir));
  const PrunePlan& plan = pruner->plan();
  if (!options.json) Describe(plan, options.dry_run);
  Json json = {{"run", dir}, {"dry_run", options.dry_run}, {"freed_bytes", plan.bytes()}};
  json["removed"] = Json::array();
  for (const PrunedItem& item : plan.items) json["removed"].push_back(JsonOf<Json>(item));
  json["stays"] = plan.stays;
  return json;
}

}  // namespace

void AddPruneCommand(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<PruneArguments>();
  CLI::App* command = app.add_subcommand("prune", "Free disk of runs that are finished or stopped");
  command->add_option("run", options->runs, "Run directories, or the beginnings of names under runs/")
      ->required();
  command->add_option("--keep", options->what.keep, "Newest checkpoints that stay, 1 or more")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  command
      ->add_flag("--final-only", options->what.final_only,
                 "Of finished runs: no checkpoint stays, so that they cannot go on; final/, report, metrics "
                 "and journal do")
      ->excludes("--keep");
  command->add_flag("--keep-best", options->what.keep_best, "With --final-only: best/ stays, too")
      ->needs("--final-only");
  command->add_flag("--payload", options->what.payload,
                    "Also trajectories that no kept checkpoint needs; `check` cannot prove them any more");
  command->add_flag("--samples", options->what.samples, "Also samples/");
  command->add_flag("--dry-run", options->dry_run, "Say what would go, remove nothing");
  command->add_flag("--json", options->json, "For machines");
  command->footer("Example: tidepool prune quickstart --dry-run");
  command->callback([options, &context] {
    options->what.only_look = options->dry_run;
    Json all = Json::array();
    for (const std::string& run : options->runs) {
      auto pruned = PruneOne(run, *options);
      if (pruned.ok()) {
        all.push_back(*std::move(pruned));
      } else {
        Fail(context, pruned.status());  // the others have nothing to do with it
      }
    }
    if (options->json) std::printf("%s\n", all.dump(1, ' ', false, Json::error_handler_t::replace).c_str());
  });
}

}  // namespace tidepool::workers
