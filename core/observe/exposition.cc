#include "core/observe/exposition.h"

#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "core/base/check.h"

namespace tidepool::observe {
namespace {

// "step_s", "tok_s": the unit in full and last, as Prometheus has it. What a counter or a histogram ends in
// is neither.
std::string FamilyOf(std::string_view figure) {
  std::vector<std::string> words;
  std::string unit;
  for (const char c : figure) {
    if (words.empty() || c == '/' || c == '_') words.emplace_back();
    if (c != '/' && c != '_') words.back() += c;
  }
  std::erase(words, "");
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] != "s") continue;
    const bool rate = i > 0 && words[i - 1] == "tok";
    unit = rate ? "_tokens_per_second" : "_seconds";
    words.erase(words.begin() + static_cast<ptrdiff_t>(rate ? i - 1 : i),
                words.begin() + static_cast<ptrdiff_t>(i + 1));
    break;
  }
  if (!words.empty() && words.back() == "total") words.back() = "all";
  if (!words.empty() && words.back() == "count") words.back() = "number";
  std::string family = "tidepool";
  for (const std::string& word : words) family += "_" + word;
  return family + unit;
}

struct Entry {
  std::vector<std::string> literals;  // "reward/<name>/mean": "reward/", "/mean"
  std::vector<std::string> labels;    // between them: "name"
  ExposedName shown;                  // without its labels' values
};

// What stands where the labels are; nullopt: the figure is another. All but the last label end at a '/'.
std::optional<std::vector<std::string>> Values(const Entry& entry, std::string_view figure) {
  if (!figure.starts_with(entry.literals.front())) return std::nullopt;
  figure.remove_prefix(entry.literals.front().size());
  std::vector<std::string> values;
  for (size_t i = 0; i < entry.labels.size(); ++i) {
    const std::string& next = entry.literals[i + 1];
    size_t end = figure.size();
    if (i + 1 < entry.labels.size()) {
      end = figure.find(next);
    } else if (figure.size() >= next.size() && figure.ends_with(next)) {
      end = figure.size() - next.size();
    } else {
      return std::nullopt;
    }
    if (end == std::string_view::npos || end == 0) return std::nullopt;
    values.emplace_back(figure.substr(0, end));
    figure.remove_prefix(end + next.size());
  }
  if (!figure.empty()) return std::nullopt;
  return values;
}

struct Glossary {
  std::map<std::string, std::string> help;   // of every name that stands there
  std::map<std::string, ExposedName> plain;  // of figures
  std::vector<Entry> patterns;               // of figures with labels; the longest literals first
};

// "`x`, not `y` \| z" -> "X, not y | z.", fit for a HELP line.
std::string HelpText(std::string_view cell) {
  std::string out;
  for (const char c : cell) {
    if (c == '`' || c == '\n') continue;
    out += c == '\\' ? "\\\\" : std::string(1, c);
  }
  if (out.empty()) return out;
  if (out[0] >= 'a' && out[0] <= 'z' && !cell.starts_with('`'))
    out[0] = static_cast<char>(out[0] - 'a' + 'A');
  if (out.back() != '.') out += '.';
  return out;
}

Glossary Parse(std::string_view text) {
  Glossary g;
  std::istringstream lines{std::string(text)};
  std::vector<std::pair<std::string, std::string>> patterns;
  for (std::string line; std::getline(lines, line);) {
    const size_t bar = line.find(" | ", 2);
    if (!line.starts_with("| `") || bar == std::string::npos || !line.ends_with(" |")) continue;
    const std::string help = HelpText(std::string_view(line).substr(bar + 3, line.size() - bar - 5));
    const std::string cell = line.substr(0, bar);
    for (size_t at = cell.find('`'); at != std::string::npos; at = cell.find('`', at + 1)) {
      const size_t end = cell.find('`', at + 1);
      if (end == std::string::npos) break;
      const std::string name = cell.substr(at + 1, end - at - 1);
      at = end;
      g.help.emplace(name, help);
      if (name.find('/') == std::string::npos) continue;
      if (name.find('<') != std::string::npos) {
        patterns.emplace_back(name, help);
      } else {
        g.plain.emplace(name, ExposedName{FamilyOf(name), {}, help});
      }
    }
  }
  std::set<std::string> taken;
  for (const auto& [name, shown] : g.plain) taken.insert(shown.family);
  for (const auto& [name, help] : patterns) {
    Entry e;
    std::string whole;
    size_t from = 0;
    for (size_t open = name.find('<'); open != std::string::npos; open = name.find('<', from)) {
      const size_t close = name.find('>', open);
      e.literals.push_back(name.substr(from, open - from));
      e.labels.push_back(name.substr(open + 1, close - open - 1));
      from = close + 1;
    }
    e.literals.push_back(name.substr(from));
    for (const std::string& literal : e.literals) whole += literal + "/";
    e.shown.family = FamilyOf(whole);
    // The whole and its parts are not one family: their sum would mean nothing.
    if (taken.contains(e.shown.family)) e.shown.family += "_by_" + e.labels.front();
    e.shown.help = help;
    g.patterns.push_back(std::move(e));
  }
  const auto length = [](const Entry& e) {
    size_t n = 0;
    for (const std::string& literal : e.literals) n += literal.size();
    return n;
  };
  std::ranges::stable_sort(g.patterns, [&](const Entry& a, const Entry& b) { return length(a) > length(b); });
  return g;
}

const Glossary& TheGlossary() {
  static const Glossary glossary = Parse(MetricsGlossary());
  return glossary;
}

std::string LabelText(const Labels& labels) {
  if (labels.empty()) return "";
  std::string out = "{";
  for (const auto& [name, value] : labels) {
    out += (out.size() > 1 ? "," : "") + name + "=\"";
    for (const char c : value) {
      if (c == '\n') {
        out += "\\n";
      } else {
        if (c == '"' || c == '\\') out += '\\';
        out += c;
      }
    }
    out += '"';
  }
  return out + "}";
}

std::string NumberOf(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end.ptr};
}

// Of /proc/self/stat, by the number that proc(5) gives it; -1: it cannot be read.
double ProcessStat(int number) {
  std::ifstream in("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const size_t name_ends = text.rfind(')');
  if (name_ends == std::string::npos) return -1;
  std::istringstream rest(text.substr(name_ends + 2));  // from field 3 on
  std::string field;
  for (int i = 3; i <= number && rest >> field; ++i) {
  }
  return rest ? std::strtod(field.c_str(), nullptr) : -1;
}

double BootTime() {
  std::ifstream in("/proc/stat");
  for (std::string word; in >> word;) {
    double seconds = 0;
    if (word == "btime" && in >> seconds) return seconds;
  }
  return 0;
}

}  // namespace

std::optional<ExposedName> MetricName(const std::string& figure) {
  const Glossary& glossary = TheGlossary();
  if (const auto plain = glossary.plain.find(figure); plain != glossary.plain.end()) return plain->second;
  for (const Entry& entry : glossary.patterns) {
    const auto values = Values(entry, figure);
    if (!values) continue;
    ExposedName shown = entry.shown;
    for (size_t i = 0; i < values->size(); ++i) shown.labels.emplace_back(entry.labels[i], (*values)[i]);
    return shown;
  }
  return std::nullopt;
}

void DurationHistogram::Add(double seconds) {
  const auto* at = std::ranges::lower_bound(kBounds_s, seconds);
  ++counts_[static_cast<size_t>(at - kBounds_s.begin())];
  sum_ += seconds;
}

Exposition::Family* Exposition::Of(const std::string& name, const char* type) {
  const auto known = families_.find(name);
  if (known != families_.end()) return &known->second;
  const auto help = TheGlossary().help.find(name);
  if (help == TheGlossary().help.end()) return nullptr;
  return &families_.emplace(name, Family{type, help->second, {}}).first->second;
}

void Exposition::Add(Family* family, const std::string& name, const Labels& labels, double value) {
  if (family != nullptr) family->lines.push_back(name + LabelText(labels) + " " + NumberOf(value));
}

void Exposition::Counter(const std::string& name, double value, const Labels& labels) {
  Add(Of(name, "counter"), name, labels, value);
}

void Exposition::Gauge(const std::string& name, double value, const Labels& labels) {
  Add(Of(name, "gauge"), name, labels, value);
}

void Exposition::Durations(const std::string& name, const DurationHistogram& durations,
                           const Labels& labels) {
  Family* family = Of(name, "histogram");
  int64_t below = 0;
  for (size_t i = 0; i < durations.counts().size(); ++i) {
    below += durations.counts()[i];
    Labels with = labels;
    with.emplace_back(
        "le", i < DurationHistogram::kBounds_s.size() ? NumberOf(DurationHistogram::kBounds_s[i]) : "+Inf");
    Add(family, name + "_bucket", with, static_cast<double>(below));
  }
  Add(family, name + "_sum", labels, durations.sum());
  Add(family, name + "_count", labels, static_cast<double>(below));
}

void Exposition::Figures(const std::map<std::string, double>& figures) {
  for (const auto& [figure, value] : figures) {
    const auto shown = MetricName(figure);
    if (!shown) continue;
    Family& family = families_.try_emplace(shown->family, Family{"gauge", shown->help, {}}).first->second;
    Add(&family, shown->family, shown->labels, value);
  }
}

void Exposition::Process() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  Counter("process_cpu_seconds_total", seconds(used.ru_utime) + seconds(used.ru_stime));
  const double page = static_cast<double>(::sysconf(_SC_PAGESIZE));
  Gauge("process_virtual_memory_bytes", ProcessStat(23));
  Gauge("process_resident_memory_bytes", ProcessStat(24) * page);
  Gauge("process_threads", ProcessStat(20));
  Gauge("process_start_time_seconds",
        BootTime() + ProcessStat(22) / static_cast<double>(::sysconf(_SC_CLK_TCK)));
  std::error_code error;
  int64_t open = 0;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end;
       it.increment(error))
    ++open;
  Gauge("process_open_fds", static_cast<double>(open));
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  Gauge("process_max_fds", static_cast<double>(limit.rlim_cur));
}

std::string Exposition::Text() const {
  std::string out;
  for (const auto& [name, family] : families_) {
    out += "# HELP " + name + " " + family.help + "\n# TYPE " + name + " " + family.type + "\n";
    for (const std::string& line : family.lines) out += line + "\n";
  }
  return out;
}

}  // namespace tidepool::observe
