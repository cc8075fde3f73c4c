#include "core/observe/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <numeric>

#include "core/observe/append_file.h"
#include "core/observe/chart.h"
#include "core/observe/progress.h"
#include "core/observe/report_page.h"
#include "core/observe/timeline.h"

namespace tidepool::observe {
namespace {

constexpr const char* kBlue = "#2f6fed";
constexpr const char* kGreen = "#13a071";
constexpr const char* kAmber = "#f0a020";
constexpr const char* kViolet = "#8b5cf6";
constexpr const char* kPink = "#d9498a";
constexpr const char* kTeal = "#0ea5b7";
constexpr const char* kGrey = "#9aa5b5";

std::string Printf(const char* format, double value) {
  std::array<char, 48> buffer{};
  std::snprintf(buffer.data(), buffer.size(), format, value);
  return buffer.data();
}

std::string BytesText(double bytes) {
  if (bytes >= 1e9) return Printf("%.2f GB", bytes / 1e9);
  if (bytes >= 1e6) return Printf("%.0f MB", bytes / 1e6);
  return Printf("%.0f kB", bytes / 1e3);
}

std::string Percent(double share) { return Printf("%.1f", 100 * share) + "<small>%</small>"; }

std::string Fact(const RunData& run, const std::string& key) {
  const auto it = run.facts.find(key);
  return it == run.facts.end() ? std::string() : it->second;
}

double Mean(const Points& points, size_t from, size_t to) {
  double sum = 0;
  for (size_t i = from; i < to; ++i) sum += points[i].second;
  return to > from ? sum / static_cast<double>(to - from) : 0;
}

double Median(Points points) {
  if (points.empty()) return 0;
  std::ranges::nth_element(points, points.begin() + static_cast<int64_t>(points.size() / 2), {},
                           &Points::value_type::second);
  return points[points.size() / 2].second;
}

double Largest(const Points& points) {
  double largest = 0;
  for (const auto& [x, y] : points) largest = std::max(largest, y);
  return largest;
}

void Tile(std::string& out, const std::string& key, const std::string& value, const std::string& detail,
          bool good = false) {
  out += std::string("<div class=\"tile") + (good ? " good" : "") + "\"><div class=\"k\">" + Escape(key) +
         "</div><div class=\"v\">" + value + "</div><div class=\"d\">" + Escape(detail) + "</div></div>";
}

std::string Header(const RunData& run) {
  const std::string name = Fact(run, "name").empty() ? run.folder : Fact(run, "name");
  std::string badge = "<span class=\"badge live\">no summary yet: running or interrupted</span>";
  if (run.finished && run.exit_code == 0) badge = "<span class=\"badge ok\">finished</span>";
  if (run.finished && run.exit_code != 0)
    badge = "<span class=\"badge bad\">ended with exit code " + std::to_string(run.exit_code) + "</span>";
  std::string html = "<header><h1>" + Escape(name) + "</h1>" + badge + "</header><p class=\"sub\">";
  std::string parts;
  const auto part = [&parts](const std::string& label, const std::string& value) {
    if (!value.empty())
      parts += (parts.empty() ? "" : " &nbsp;·&nbsp; ") + label + "<b>" + Escape(value) + "</b>";
  };
  part("run ", run.folder);
  part("job ", Fact(run, "job"));
  part("seed ", Fact(run, "seed"));
  part("Tidepool ", Fact(run, "version"));
  part("commit ", Fact(run, "commit").substr(0, 12));
  html += parts + "</p>";
  if (const std::string paced = Fact(run, "paced_note"); !paced.empty())
    html += "<p class=\"card warn\">" + Escape(paced) + "</p>";
  const std::string fault = Fact(run, "fault").empty() ? Fact(run, "error") : Fact(run, "fault");
  if (!fault.empty()) html += "<p class=\"card warn\">" + Escape(fault) + "</p>";
  return html;
}

std::string Tiles(const RunData& run) {
  std::string html = "<section class=\"tiles\">";
  const Points accuracy = run.Accuracy();
  const auto before = run.accuracy.find("before");
  const auto after = run.accuracy.find("after");
  if (before != run.accuracy.end() && after != run.accuracy.end()) {
    Tile(html, "held-out accuracy",
         Percent(before->second) + "<span class=\"arrow\">→</span>" + Percent(after->second),
         "greedy, before and after", after->second > before->second);
  } else if (accuracy.size() > 1) {
    Tile(
        html, "held-out accuracy",
        Percent(accuracy.front().second) + "<span class=\"arrow\">→</span>" + Percent(accuracy.back().second),
        "greedy, first and latest", accuracy.back().second > accuracy.front().second);
  }
  if (const Points returns = run.Metric("eval/return/mean"); !returns.empty()) {
    const Points low = run.Metric("eval/return/low"), high = run.Metric("eval/return/high");
    const std::string interval = low.empty() || high.empty()
                                     ? std::string()
                                     : ", 95 % interval " + Printf("%.1f", low.back().second) + " to " +
                                           Printf("%.1f", high.back().second);
    Tile(html, "held-out return",
         (returns.size() > 1 ? Printf("%.1f", returns.front().second) + "<span class=\"arrow\">→</span>"
                             : std::string()) +
             Printf("%.1f", returns.back().second),
         "mean of an episode, first and latest" + interval, returns.back().second > returns.front().second);
  }
  const Points reward = run.Metric("critic/score/mean");
  if (!reward.empty()) {
    const size_t n = std::max<size_t>(1, reward.size() / 10);
    Tile(html, "mean reward",
         Printf("%.3f", Mean(reward, 0, n)) + "<span class=\"arrow\">→</span>" +
             Printf("%.3f", Mean(reward, reward.size() - n, reward.size())),
         "first and last tenth of the steps");
  }
  const Points loss = run.FirstOf({"sft/loss", "actor/loss"});
  if (reward.empty() && !loss.empty())
    Tile(html, "loss",
         Printf("%.3f", loss.front().second) + "<span class=\"arrow\">→</span>" +
             Printf("%.3f", loss.back().second),
         "first and last step");
  if (!run.metrics.empty()) {
    Tile(html, "optimizer steps", NumberText(static_cast<double>(run.metrics.back().step)),
         "in " + DurationText(FromSeconds(run.metrics.back().wall_s)));
  }
  const Points step_time = run.FirstOf({"timing_s/step", "perf/time_per_step"});
  if (!step_time.empty())
    Tile(html, "time per step", Printf("%.2f", Median(step_time)) + " <small>s</small>", "median");
  const Points speed = run.FirstOf({"perf/throughput", "rollout/tok_s"});
  if (!speed.empty()) Tile(html, "throughput", NumberText(Median(speed)) + " <small>tok/s</small>", "median");
  const Points lag = run.Metric("staleness/max");
  if (!lag.empty())
    Tile(html, "largest lag", Printf("%.0f", Largest(lag)) + " <small>versions</small>",
         "of any token trained on");
  const Points mismatch = run.Metric("training/rollout_logp_diff/max");
  if (!mismatch.empty())
    Tile(html, "max |Δ log-prob|", NumberText(Largest(mismatch)), "rollout against trainer");
  double memory = 0;
  for (const auto& [process, bytes] : run.peak_bytes) memory += bytes;
  if (memory > 0)
    Tile(html, "peak memory", BytesText(memory),
         std::to_string(run.peak_bytes.size()) + " processes together");
  return html + "</section>";
}

std::string StepTimes(const RunData& run) {
  static const std::array<std::array<const char*, 3>, 8> kPhases = {{{"gen", "generate", kBlue},
                                                                     {"reward", "reward", kAmber},
                                                                     {"old_log_prob", "recompute", "#7cc8ae"},
                                                                     {"ref", "reference", "#b8dbe0"},
                                                                     {"adv", "advantages", kTeal},
                                                                     {"update_actor", "update", kGreen},
                                                                     {"update_weights", "weights", kViolet},
                                                                     {"save", "save", kPink}}};
  // Only steps whose whole time is known, so that every bar adds up.
  std::vector<Series> series;
  Points rest;
  for (const auto& [key, name, color] : kPhases) {
    Points points;
    double sum = 0;
    for (const MetricsRow& row : run.metrics) {
      if (!row.metrics.contains("timing_s/step")) continue;
      const auto it = row.metrics.find(std::string("timing_s/") + key);
      const double value = it == row.metrics.end() || !(it->second > 0) ? 0 : it->second;
      points.emplace_back(static_cast<double>(row.step), value);
      sum += value;
    }
    if (sum > 0) series.push_back({name, color, std::move(points)});
  }
  if (series.empty()) return {};
  size_t i = 0;
  for (const MetricsRow& row : run.metrics) {
    const auto it = row.metrics.find("timing_s/step");
    if (it == row.metrics.end()) continue;
    double known = 0;
    for (const Series& s : series) known += s.points[i].second;
    // Phases overlap in split placement; then nothing is left over.
    rest.emplace_back(static_cast<double>(row.step), std::max(0.0, it->second - known));
    ++i;
  }
  series.push_back({"other", "#d3d9e1", std::move(rest)});
  return StackedBars({.title = "Where a step's time goes",
                      .note = "seconds; phases that overlap add up to more than the step"},
                     std::move(series));
}

std::string Charts(const RunData& run) {
  std::string html;
  const auto m = [&run](const char* name) { return run.Metric(name); };
  html += LineChart({.title = "Reward", .note = "mean score of the samples of a step"},
                    {{.name = "reward", .color = kBlue, .points = m("critic/score/mean"), .smooth = true}});
  html += LineChart({.title = "Held-out return",
                     .note = "mean of episodes that are never trained on, with its 95 % interval"},
                    {{.name = "mean", .color = kGreen, .points = m("eval/return/mean"), .dots = true},
                     {.name = "low", .color = kGrey, .points = m("eval/return/low")},
                     {.name = "high", .color = kGrey, .points = m("eval/return/high")}});
  html += LineChart({.title = "Held-out accuracy",
                     .note = "greedy answers to questions that are never trained on",
                     .percent = true,
                     .y_min = 0,
                     .y_max = 1.02},
                    {{.name = "accuracy", .color = kGreen, .points = run.Accuracy(), .dots = true}});
  html += LineChart(
      {.title = "Loss", .note = "mean over the tokens of a step"},
      {{.name = "loss", .color = kBlue, .points = run.FirstOf({"sft/loss", "actor/loss"}), .smooth = true}});
  html += LineChart({.title = "Response length", .note = "tokens"},
                    {{.name = "mean", .color = kBlue, .points = m("response_length/mean"), .smooth = true},
                     {.name = "max", .color = kGrey, .points = m("response_length/max")}});
  html += LineChart({.title = "Lag",
                     .note = "versions between the weights that sampled a token and those trained",
                     .y_min = 0},
                    {{.name = "mean", .color = kViolet, .points = m("staleness/mean")},
                     {.name = "max", .color = kGrey, .points = m("staleness/max")}});
  html += LineChart({.title = "Throughput", .note = "tokens per second", .y_min = 0},
                    {{.name = "whole step", .color = kBlue, .points = m("perf/throughput"), .smooth = true},
                     {.name = "generation", .color = kTeal, .points = m("rollout/tok_s"), .smooth = true}});
  html += StepTimes(run);
  html += LineChart({.title = "Gradient norm", .note = "global L2, before clipping"},
                    {{.name = "norm", .color = kGreen, .points = m("actor/grad_norm"), .smooth = true}});
  html += LineChart({.title = "Rollout against trainer",
                     .note = "|Δ log-prob| of the same tokens, in nats; 0 in deterministic mode"},
                    {{.name = "max", .color = kPink, .points = m("training/rollout_logp_diff/max")},
                     {.name = "mean", .color = kGrey, .points = m("training/rollout_logp_diff/mean")}});
  html += LineChart({.title = "Policy entropy", .note = "nats per token"},
                    {{.name = "entropy", .color = kTeal, .points = m("actor/entropy"), .smooth = true}});
  html += LineChart(
      {.title = "Clipping and KL", .note = "share of clipped tokens; KL from the sampling policy, in nats"},
      {{.name = "clipped", .color = kAmber, .points = m("actor/pg_clipfrac")},
       {.name = "KL", .color = kBlue, .points = m("actor/ppo_kl")}});
  html += LineChart({.title = "Groups without a signal",
                     .note = "share of groups whose rewards are all equal",
                     .percent = true,
                     .y_min = 0,
                     .y_max = 1.02},
                    {{.name = "zero variance",
                      .color = kGrey,
                      .points = run.FirstOf({"filter/zero_variance_ratio", "reward/group_zero_std_frac"}),
                      .smooth = true},
                     {.name = "cut at the limit",
                      .color = kPink,
                      .points = m("response_length/clip_ratio"),
                      .smooth = true}});
  if (html.empty()) return "<p class=\"empty\">No metrics yet.</p>";
  return "<div class=\"grid2\">" + html + "</div>";
}

std::string TimelineLegend(const ReadTrace& trace) {
  std::vector<std::string> seen;
  std::string html = "<div class=\"legend\">";
  for (const ReadSpan& span : trace.spans) {
    if (std::ranges::count(seen, span.category) > 0 || seen.size() >= 10) continue;
    seen.push_back(span.category);
    html += "<span><i style=\"background:" + CategoryColor(span.category) + "\"></i>" +
            Escape(span.category) + "</span>";
  }
  return html + "</div>";
}

std::string Timeline(const RunData& run) {
  const bool traced = !run.trace.spans.empty();
  const ReadTrace from_metrics = traced ? ReadTrace{} : TraceFromMetrics(run);
  const ReadTrace& trace = traced ? run.trace : from_metrics;
  if (trace.spans.empty())
    return "<p class=\"empty\">No trace: observe.trace was off, or nothing has run yet.</p>";
  double end = 0;
  for (const ReadSpan& span : trace.spans) end = std::max(end, span.start_s + span.duration_s);
  const double start = std::min(0.0, trace.spans.front().start_s);
  std::vector<double> marks;
  for (const MetricsRow& row : run.metrics) {
    if (row.step > 0) marks.push_back(row.wall_s);
  }
  std::string html = "<div class=\"card\"><div class=\"caption\"><span>The whole run" +
                     std::string(traced ? "" : ", from the phase times of the metrics") + "</span>" +
                     TimelineLegend(trace) + "</div><div class=\"scroll\">" +
                     TimelineSvg(trace, start, end, {}) + "</div>";
  if (marks.size() >= 6) {
    // A few steps from the middle, where the run is neither starting nor ending.
    const size_t middle = marks.size() / 2;
    const double from = marks[middle - 1];
    const double to = marks[std::min(middle + 2, marks.size() - 1)];
    html += "<div class=\"caption\"><span>Steps " + std::to_string(middle + 1) + " to " +
            std::to_string(std::min(middle + 3, marks.size())) +
            " closer up; dashed lines are ends of steps</span></div><div class=\"scroll\">" +
            TimelineSvg(trace, from, to, marks) + "</div>";
  }
  if (traced)
    html +=
        "<p class=\"note\">The files in trace/ open in ui.perfetto.dev with every span and its "
        "arguments.</p>";
  return html + "</div>";
}

// Milliseconds: median / 90 % / longest.
std::string Spread(std::vector<double> seconds) {
  if (seconds.empty()) return "";
  std::ranges::sort(seconds);
  const auto at = [&](double share) {
    return seconds[std::min(seconds.size() - 1,
                            static_cast<size_t>(share * static_cast<double>(seconds.size())))];
  };
  char text[96];
  std::snprintf(text, sizeof(text), "%.1f / %.1f / %.1f", 1e3 * at(0.5), 1e3 * at(0.9), 1e3 * seconds.back());
  return text;
}

std::string MovesTable(const PoolHistory& pool) {
  std::string rows;
  for (const auto& [roles, times] : pool.times) {
    if (roles.first == Role::kNone) continue;  // the first grants wait for processes to start
    std::vector<double> whole;
    for (size_t i = 0; i < times.release_s.size(); ++i)
      whole.push_back(times.release_s[i] + times.grant_s[i]);
    rows += std::string("<tr><td>") + Name(roles.first) + " to " + Name(roles.second) + "</td><td>" +
            std::to_string(whole.size()) + "</td><td>" + std::to_string(times.rolled_back) + "</td><td>" +
            Spread(times.release_s) + "</td><td>" + Spread(times.grant_s) + "</td><td>" + Spread(whole) +
            "</td></tr>";
  }
  if (rows.empty()) return {};
  return "<div class=\"caption\"><span>How long slots took to change hands: milliseconds, median / 90 % / "
         "longest</span></div><table id=\"moves\"><tr><th>move</th>"
         "<th>done</th><th>rolled back</th><th>drain and release</th><th>grant</th><th>whole</th></tr>" +
         rows + "</table>";
}

// The tide: every slot over time, coloured by what it was for.
std::string Pool(const RunData& run) {
  const PoolHistory& pool = run.pool;
  if (pool.empty()) return {};
  std::map<std::string, double> seconds;
  double all = 0;
  for (const ReadSpan& span : pool.lanes.spans) {
    seconds[span.category] += span.duration_s;
    all += span.duration_s;
  }
  static const std::vector<std::pair<std::string, std::string>> kWords = {
      {"rollout", "generates"},
      {"train", "trains"},
      {"actor", "training role between steps"},
      {"moving", "changes hands"},
      {"lost", "without a worker"}};
  std::string legend = "<div class=\"legend\">";
  for (const auto& [category, words] : kWords) {
    if (!seconds.contains(category)) continue;
    legend += "<span><i style=\"background:" + CategoryColor(category) + "\"></i>" + words + " " +
              AxisText(seconds.at(category) / all, true) + "</span>";
  }
  legend += "</div>";
  const double start = pool.lanes.spans.front().start_s;
  std::string html = "<h2>The pool <small>slots over time, from the journal; " + std::to_string(pool.moves) +
                     " transactions moved slots</small></h2><div class=\"card\" id=\"pool\"><div "
                     "class=\"caption\"><span>The whole run</span>" +
                     legend + "</div><div class=\"scroll\">" +
                     TimelineSvg(pool.lanes, start, pool.end_s, {}) + "</div>";
  if (pool.steps.size() >= 6) {
    const size_t middle = pool.steps.size() / 2;
    const size_t last = std::min(middle + 4, pool.steps.size() - 1);
    html += "<div class=\"caption\"><span>Steps " + std::to_string(middle + 1) + " to " +
            std::to_string(last + 1) +
            " closer up; dashed lines are ends of optimizer steps</span></div><div class=\"scroll\">" +
            TimelineSvg(pool.lanes, pool.steps[middle - 1], pool.steps[last], pool.steps) + "</div>";
  }
  return html + MovesTable(pool) + "</div>";
}

std::string Shorten(const std::string& text, size_t most) {
  if (text.size() <= most) return text;
  size_t cut = most;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0U) == 0x80U) --cut;
  return text.substr(0, cut) + " ... (" + std::to_string(text.size() - cut) + " more bytes)";
}

std::string SampleCard(const SampleRow& row, double best) {
  const char* css = row.reward <= 0 ? "miss" : row.reward >= best ? "hit" : "part";
  std::string html =
      std::string("<div class=\"card sample ") + css + "\"><p class=\"who\">prompt</p><pre>" +
      Escape(Shorten(row.prompt, 1500)) + "</pre><p class=\"who\">response</p><pre class=\"answer\">" +
      (row.text.empty() ? "<span class=\"c\">(empty)</span>" : Escape(Shorten(row.text, 3000))) +
      "</pre><div class=\"meta\"><span class=\"badge " +
      (row.reward <= 0      ? "bad"
       : row.reward >= best ? "ok"
                            : "mid") +
      "\">reward " + AxisText(row.reward, false) + "</span><span>";
  if (!row.answer.empty()) html += "answer " + Escape(Shorten(row.answer, 60)) + " · ";
  html += std::to_string(row.ids.size()) + " tokens" + (row.ended ? "" : ", cut");
  if (!row.versions.empty()) {
    const auto [lo, hi] = std::ranges::minmax(row.versions);
    html += " · version " + std::to_string(lo) + (hi != lo ? "–" + std::to_string(hi) : "");
  }
  return html + " · " + Escape(ToString(row.tid)) + "</span></div></div>";
}

std::string Samples(const RunData& run) {
  std::string html;
  double best = 0;
  for (const auto& [step, rows] : run.samples) {
    for (const SampleRow& row : rows) best = std::max(best, row.reward);
  }
  for (const auto& [step, rows] : run.samples) {
    if (rows.empty()) continue;
    html += "<p class=\"steps\">Step " + std::to_string(step) + "</p><div class=\"samples\">";
    // Up to three, from different prompts where there are several.
    std::vector<const SampleRow*> shown;
    for (const SampleRow& row : rows) {
      const bool seen =
          std::ranges::any_of(shown, [&](const SampleRow* s) { return s->tid.ordinal == row.tid.ordinal; });
      if (!seen && shown.size() < 3) shown.push_back(&row);
    }
    for (const SampleRow& row : rows) {
      if (shown.size() < 3 && std::ranges::count(shown, &row) == 0) shown.push_back(&row);
    }
    for (const SampleRow* row : shown) html += SampleCard(*row, best);
    html += "</div>";
  }
  return html.empty() ? "<p class=\"empty\">No samples were kept (observe.samples_per_step).</p>" : html;
}

std::string Table(const std::string& title, const std::map<std::string, double>& values,
                  std::string (*text)(double), const std::string& none) {
  std::string html = "<div class=\"card\"><h3>" + Escape(title) + "</h3>";
  double largest = 0;
  for (const auto& [name, value] : values) largest = std::max(largest, value);
  if (values.empty() || largest <= 0) return html + "<p class=\"empty\">" + Escape(none) + "</p></div>";
  std::vector<std::pair<std::string, double>> rows(values.begin(), values.end());
  std::ranges::stable_sort(rows, std::ranges::greater{}, &std::pair<std::string, double>::second);
  html += "<table>";
  for (const auto& [name, value] : rows) {
    if (value <= 0) continue;
    html += "<tr><td>" + Escape(name) + "</td><td style=\"width:45%\"><span class=\"bar\" style=\"width:" +
            Printf("%.1f", 100 * value / largest) + "%\"></span></td><td class=\"n\">" + text(value) +
            "</td></tr>";
  }
  return html + "</table></div>";
}

std::string Faults(const RunData& run) {
  std::map<std::string, double> drops = run.drops;
  if (drops.empty()) {
    drops = run.Sums("drop/");
    std::erase_if(drops, [](const auto& entry) { return entry.first.ends_with("_ratio"); });
  }
  std::map<std::string, double> faults = run.Sums("fault/");
  const Points restarts = run.Metric("worker/restarts");
  if (!restarts.empty()) faults["worker restarts"] = restarts.back().second;
  std::string html = "<div class=\"grid2\">";
  html += Table("Samples and groups dropped, by reason", drops, NumberText, "None.");
  html += Table("Faults", faults, NumberText, "None.");
  html += Table(
      "Time by phase", run.seconds, [](double s) { return DurationText(FromSeconds(s)); },
      "Known when the run has ended.");
  html += Table("Peak memory by process", run.peak_bytes, BytesText, "Known when the run has ended.");
  return html + "</div>";
}

std::string ConfigHtml(const std::string& yaml) {
  std::string html;
  for (size_t at = 0; at < yaml.size();) {
    const size_t newline = std::min(yaml.find('\n', at), yaml.size());
    const std::string line = yaml.substr(at, newline - at);
    at = newline + 1;
    // A comment starts the line or follows a space; a '#' inside of quotes does not come after two.
    const size_t comment = line.starts_with("#") ? 0 : line.find(" # ");
    if (comment == std::string::npos) {
      html += Escape(line) + "\n";
      continue;
    }
    const std::string tail = line.substr(comment);
    const bool override = tail == " # override";
    html += Escape(line.substr(0, comment)) + "<span class=\"" + (override ? "o" : "c") + "\">" +
            Escape(tail) + "</span>\n";
  }
  return html;
}

std::string Details(const RunData& run) {
  std::string html = "<details" + std::string(run.metrics.empty() ? " open" : "") +
                     "><summary>Config</summary><pre>" +
                     (run.config_yaml.empty() ? "config.yaml is not there" : ConfigHtml(run.config_yaml)) +
                     "</pre></details>";
  if (!run.environment.empty()) {
    html += "<details open><summary>Environment</summary><table>";
    for (const auto& [name, value] : run.environment)
      html += "<tr><td>" + Escape(name) + "</td><td>" + Escape(value) + "</td></tr>";
    html += "</table></details>";
  }
  return html;
}

}  // namespace

std::string ReportHtml(const RunData& run) {
  const std::string name = Fact(run, "name").empty() ? run.folder : Fact(run, "name");
  std::string html =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\">";
  html +=
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'\">";
  html += "<title>" + Escape(name) + " · Tidepool run</title><style>" + std::string(ReportStyle()) +
          "</style></head><body><main>";
  html += Header(run);
  if (!run.problems.empty()) {
    html += "<p class=\"card warn\">Left out, because it could not be read:";
    for (const std::string& problem : run.problems) html += "<br>" + Escape(problem);
    html += "</p>";
  }
  html += Tiles(run);
  html +=
      "<h2>Curves <small>by optimizer step; where there are two lines of a colour, the thick one is a moving "
      "average</small></h2>" +
      Charts(run);
  html += Pool(run);
  html += "<h2>Who did what when</h2>" + Timeline(run);
  html += "<h2>Samples</h2>" + Samples(run);
  html += "<h2>Drops, faults, time and memory</h2>" + Faults(run);
  html += "<h2>Config and environment</h2>" + Details(run);
  html += "<footer>Made by <code>tidepool report</code> from " + Escape(run.folder) +
          ".</footer></main><script>" + std::string(ReportScript()) + "</script></body></html>\n";
  return html;
}

Status WriteReport(const std::string& run_dir) {
  TP_ASSIGN_OR_RETURN(const RunData run, ReadRun(run_dir));
  const std::string path = run_dir + "/report.html";
  const std::string temporary = path + ".tmp";
  std::error_code error;
  std::filesystem::remove(temporary, error);  // left over; opening appends
  {
    TP_ASSIGN_OR_RETURN(AppendFile file, AppendFile::Open(temporary, {.mode = 0600}));  // samples are in it
    TP_RETURN_IF_ERROR(file.Append(ReportHtml(run)));
  }
  std::filesystem::rename(temporary, path, error);
  return error ? FileError(path, "cannot be put in place", error.value()) : OkStatus();
}

}  // namespace tidepool::observe
