// tidepool runs: a table of the runs of a folder.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/json_fields.h"
#include "core/base/names.h"
#include "core/observe/progress.h"
#include "workers/cli/command.h"
#include "workers/cli/run_list.h"
#include "workers/cli/run_lookup.h"
#include "workers/cli/run_status.h"
#include "workers/cli/table.h"

namespace tidepool::workers {
namespace {

using Json = nlohmann::ordered_json;

std::string ValueText(const RunFigure& figure, double value) {
  return ShortName(figure.metric) == "accuracy" ? Formatted("%.1f%%", 100 * value) : Formatted("%.3g", value);
}

std::string LearnedText(const std::optional<RunFigure>& f) {
  if (!f) return "-";
  return ShortName(f->metric) + " " + ValueText(*f, f->last) + " (best " + ValueText(*f, f->best) + ")";
}

// The step is named where it is not the run's own: what was learned since is not in the figure.
std::string HeldOutText(const RunBrief& run) {
  const std::optional<RunFigure>& f = run.held_out;
  if (!f) return "-";
  const bool before = f->step == 0;
  return ShortName(f->metric) + " " + (before ? "" : ValueText(*f, f->first) + " -> ") +
         ValueText(*f, f->last) +
         (f->step && (before || *f->step != run.step) ? " at step " + std::to_string(*f->step) : "") +
         (f->best == f->last ? "" : " (best " + ValueText(*f, f->best) + ")");
}

std::string AgeText(double seconds) {
  if (seconds < 0) return "-";
  if (seconds < 90) return Formatted("%.0f s", seconds);
  if (seconds < 90 * 60) return Formatted("%.0f min", seconds / 60);
  if (seconds < 36 * 3600) return Formatted("%.0f h", seconds / 3600);
  return Formatted("%.0f days", seconds / 86400);
}

void PrintRuns(const std::string& root, const std::vector<RunBrief>& runs) {
  if (runs.empty()) {
    std::printf("%s holds no run; start one with `tidepool train CONFIG`\n", root.c_str());
    return;
  }
  std::vector<Cells> rows = {{"run", "state", "job", "task", "steps", "learned", "held out", "size", "age"}};
  int64_t bytes = 0;
  for (const RunBrief& run : runs) {
    const auto or_dash = [](const std::string& text) { return text.empty() ? "-" : text; };
    const std::string silent =
        run.silent_s > kSilent_s ? Formatted(" (silent %.0f s)", run.silent_s) : std::string();
    rows.push_back({run.run, run.state + (run.begins ? " (begins)" : silent), or_dash(run.job),
                    or_dash(run.task),
                    std::to_string(run.step) + (run.steps > 0 ? "/" + std::to_string(run.steps) : ""),
                    LearnedText(run.learned), HeldOutText(run), BytesText(run.bytes), AgeText(run.age_s)});
    bytes += run.bytes;
  }
  std::vector<std::string> gone;
  if (observe::IsTerminal(stdout))
    gone = FitTable(rows, static_cast<size_t>(observe::SizeOfTerminal(stdout).columns),
                    {"job", "size", "task", "age", "learned", "steps"});
  std::fputs(TableText(rows).c_str(), stdout);
  std::printf("%zu %s in %s, %s\n", runs.size(), runs.size() == 1 ? "run" : "runs", root.c_str(),
              BytesText(bytes).c_str());
  if (!gone.empty()) std::printf("(without %s: --json has all)\n", tidepool::Listed(gone).c_str());
}

}  // namespace

void AddRunsCommand(CLI::App& app, CommandContext& context) {
  struct Options {
    std::string root = "runs";
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("runs", "List runs, newest first: state, steps, figures, size");
  command->add_option("dir", options->root, "Folder of runs; default: runs");
  command->add_flag("--json", options->json, "For machines");
  command->footer("Example: tidepool runs");
  command->callback([options, &context] {
    const auto runs = ListRuns(options->root);
    if (!runs.ok()) return Fail(context, runs.status());
    if (!options->json) return PrintRuns(options->root, *runs);
    Json list = Json::array();
    for (const RunBrief& run : *runs) list.push_back(JsonOf<Json>(run));
    std::printf("%s\n", list.dump(1, ' ', false, Json::error_handler_t::replace).c_str());
  });
}

}  // namespace tidepool::workers
