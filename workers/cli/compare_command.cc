// tidepool compare: runs beside each other, in the terminal and on a page.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/utf8.h"
#include "core/observe/append_file.h"
#include "core/observe/comparison.h"
#include "core/observe/progress.h"
#include "workers/cli/command.h"
#include "workers/cli/run_list.h"
#include "workers/cli/run_lookup.h"
#include "workers/cli/table.h"

namespace tidepool::workers {
namespace {

using observe::Comparison;
using observe::RunData;

// What a column of the terminal has room for.
std::string ForColumn(const std::string& text) {
  constexpr size_t kBytesMax = 40;
  return text.size() <= kBytesMax ? text : text.substr(0, CharacterStart(text, kBytesMax - 3)) + "...";
}

struct ComparedColumn {
  RunBrief brief;
  RunData run;
};

void PrintComparison(const std::vector<ComparedColumn>& columns, const Comparison& comparison) {
  std::vector<Cells> rows;
  // `last`: of the row; the lines of a part are indented below its name.
  const auto row = [&](const std::string& name, const auto& cell) {
    Cells cells = {name};
    for (size_t i = 0; i < columns.size(); ++i) cells.push_back(cell(i));
    rows.push_back(std::move(cells));
  };
  const auto part = [&](const std::string& name) { row(name, [](size_t) { return std::string(); }); };
  row("run", [&](size_t i) { return comparison.labels[i]; });
  row("folder", [&](size_t i) { return columns[i].run.folder; });
  row("job", [&](size_t i) { return columns[i].brief.job.empty() ? "-" : columns[i].brief.job; });
  row("state", [&](size_t i) { return columns[i].brief.state; });
  row("steps", [&](size_t i) {
    const RunBrief& b = columns[i].brief;
    return std::to_string(b.step) + (b.steps > 0 ? "/" + std::to_string(b.steps) : "");
  });
  row("time", [&](size_t i) {
    return columns[i].run.metrics.empty()
               ? std::string("-")
               : observe::DurationText(FromSeconds(columns[i].run.metrics.back().wall_s));
  });
  part(comparison.config.empty() ? "config: no difference" : "config, where it differs");
  for (const observe::ComparedKey& key : comparison.config) {
    row("  " + key.key, [&](size_t i) {
      const auto& value = key.runs[i];
      return !value ? "-" : value->empty() ? "\"\"" : ForColumn(*value);
    });
  }
  part(comparison.metrics.empty() ? "metrics: none" : "metrics, last (best)");
  for (const observe::ComparedMetric& metric : comparison.metrics) {
    row("  " + metric.metric, [&](size_t i) -> std::string {
      const auto& f = metric.runs[i];
      if (!f) return "-";
      return Formatted("%.4g", f->last) + (f->best ? " (" + Formatted("%.4g", *f->best) + ")" : "");
    });
  }
  std::fputs(TableText(rows).c_str(), stdout);
}

Status CompareRuns(const std::vector<std::string>& names, const std::vector<std::string>& metrics,
                   std::string out, bool as_json) {
  if (names.size() < 2 || names.size() > observe::kComparedRunsMax) {
    return InvalidArgument("compare: " + std::to_string(names.size()) +
                           (names.size() == 1 ? " run" : " runs") + "; name 2 to " +
                           std::to_string(observe::kComparedRunsMax) + ", `tidepool runs` lists them");
  }
  std::vector<ComparedColumn> columns;
  std::vector<observe::ComparedRun> compared;
  for (const std::string& name : names) {
    TP_ASSIGN_OR_RETURN(const std::string dir, FindRunDirectory(name, "metrics and config are compared"));
    for (const observe::ComparedRun& other : compared) {
      if (IsSameFolder(other.dir, dir))
        return InvalidArgument(name + ": " + dir + " is named twice; name another run to compare it with");
    }
    TP_ASSIGN_OR_RETURN(RunData run, observe::ReadRun(dir, observe::RunParts::kCurves));
    TP_ASSIGN_OR_RETURN(RunBrief brief, BriefOf(dir));
    run.state = brief.state;
    compared.push_back(observe::ComparedRunOf(run, dir, run.Spans()));
    columns.push_back({std::move(brief), std::move(run)});
  }
  TP_ASSIGN_OR_RETURN(const Comparison comparison, observe::Compare(compared, metrics));
  if (as_json) {
    nlohmann::json data = observe::ComparisonData(comparison);
    for (const ComparedColumn& c : columns)
      data["runs"].push_back({{"run", c.brief.run},
                              {"dir", c.brief.dir},
                              {"job", c.brief.job},
                              {"state", c.brief.state},
                              {"step", c.brief.step},
                              {"steps", c.brief.steps},
                              {"wall_s", c.run.metrics.empty() ? 0 : c.run.metrics.back().wall_s}});
    std::printf("%s\n", data.dump(1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    PrintComparison(columns, comparison);
    if (out.empty())
      out = (std::filesystem::path(compared[0].dir) / "../compare.html").lexically_normal().string();
  }
  if (out.empty()) return OkStatus();
  std::vector<RunData> runs;
  for (ComparedColumn& c : columns) runs.push_back(std::move(c.run));
  TP_RETURN_IF_ERROR(observe::ReplaceFile(out, observe::ComparisonHtml(runs, comparison)));
  std::fprintf(as_json ? stderr : stdout, "\ncurves over each other: %s\n", out.c_str());
  return OkStatus();
}

}  // namespace

void AddCompareCommand(CLI::App& app, CommandContext& context) {
  struct Options {
    std::vector<std::string> runs, metrics;
    std::string out;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "compare", "Runs beside each other: where their configs differ, figures, curves on one page");
  command->add_option("runs", options->runs, "Run directories, or beginnings of names under runs/")
      ->required();
  command
      ->add_option("--metric", options->metrics, "A metric of docs/metrics.md for the table; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--out", options->out,
                      "The page; default: compare.html beside the first run, with --json none");
  command->add_flag("--json", options->json, "For machines");
  command->footer(
      "Example: tidepool compare quickstart-20261121T115502Z quickstart-20261121T120731Z --metric "
      "eval/accuracy");
  command->callback([options, &context] {
    if (const Status done = CompareRuns(options->runs, options->metrics, options->out, options->json);
        !done.ok())
      Fail(context, done);
  });
}

}  // namespace tidepool::workers
