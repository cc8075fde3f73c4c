#include "core/observe/config_text.h"

#include <algorithm>
#include <vector>

namespace tidepool::observe {
namespace {

// The value of a line, without its comment; quotes of a string go too.
std::string Value(std::string_view text) {
  const size_t start = text.find_first_not_of(' ');
  if (start == std::string_view::npos) return {};
  text.remove_prefix(start);
  size_t end = std::string_view::npos;
  if (text.front() == '"') {
    for (end = 1; end < text.size() && text[end] != '"'; ++end) end += text[end] == '\\' ? 1 : 0;
    return std::string(text.substr(1, std::min(end, text.size()) - 1));
  }
  bool quoted = false;
  for (size_t i = 0; i < text.size() && end == std::string_view::npos; ++i) {
    if (text[i] == '"') quoted = !quoted;
    if (text[i] == '#' && !quoted && (i == 0 || text[i - 1] == ' ')) end = i;
  }
  text = text.substr(0, end);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return std::string(text);
}

struct Level {
  size_t indent = 0;
  std::string key;
  int64_t item = -1;  // of the list under this key
};

std::string Path(const std::vector<Level>& levels, std::string_view key) {
  std::string path;
  for (const Level& level : levels) {
    path += level.key;
    if (level.item >= 0) path += "[" + std::to_string(level.item) + "]";
    path += ".";
  }
  return path + std::string(key);
}

// Calls take(line) for each, without its line feed.
template <typename Take>
void ForEachLine(std::string_view text, const Take& take) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    take(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
}

// Calls put(key, value, line) for each value.
template <typename Put>
void ForEachValue(std::string_view yaml, const Put& put) {
  std::vector<Level> levels;
  ForEachLine(yaml, [&](std::string_view line) {
    size_t indent = line.find_first_not_of(' ');
    if (indent == std::string_view::npos || line[indent] == '#') return;
    const bool item = line.substr(indent).starts_with("- ");
    if (item) {
      while (!levels.empty() && levels.back().indent >= indent) levels.pop_back();
      if (levels.empty()) return;
      ++levels.back().item;
      indent += 2;
    }
    while (!levels.empty() && levels.back().indent >= indent) levels.pop_back();
    line.remove_prefix(std::min(indent, line.size()));
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) {
      if (item && !levels.empty()) {
        const Level& list = levels.back();
        std::vector<Level> above(levels.begin(), levels.end() - 1);
        put(Path(above, list.key + "[" + std::to_string(list.item) + "]"), Value(line), line);
      }
      return;
    }
    const std::string_view key = line.substr(0, colon);
    const std::string value = Value(line.substr(colon + 1));
    const bool text = line.substr(colon + 1).find('"') != std::string_view::npos;
    if (value.empty() && !text) {
      levels.push_back({indent, std::string(key)});
    } else {
      put(Path(levels, key), value, line);
    }
  });
}

}  // namespace

// As core/config/resume.h writes them:
//   # Resumed at step 20, 20261125T091426Z:
//   #   train.learning_rate: was 0.001, is 1e-05
std::map<std::string, std::string> ConfigChanges(std::string_view yaml) {
  std::map<std::string, std::string> changes;
  std::string step;
  ForEachLine(yaml, [&](std::string_view line) {
    constexpr std::string_view kResumed = "# Resumed at step ", kWas = ": was ", kIs = ", is ";
    if (line.starts_with(kResumed)) {
      line.remove_prefix(kResumed.size());
      step = line.substr(0, line.find(','));
      return;
    }
    if (!line.starts_with("#   ")) step.clear();  // the history is over
    if (step.empty()) return;
    line.remove_prefix(4);
    const size_t was = line.find(kWas), is = line.find(kIs, was);
    if (is == std::string_view::npos) return;
    const std::string key(line.substr(0, was));
    if (key == "train.steps") return;
    std::string& values = changes[key];
    if (values.empty()) values = line.substr(was + kWas.size(), is - was - kWas.size());
    values += ", from step " + step + " " + std::string(line.substr(is + kIs.size()));
  });
  return changes;
}

std::map<std::string, std::string> ConfigValues(std::string_view yaml) {
  std::map<std::string, std::string> values;
  ForEachValue(
      yaml, [&](const std::string& key, const std::string& value, std::string_view) { values[key] = value; });
  return values;
}

std::set<std::string> ConfigDefaults(std::string_view yaml) {
  std::set<std::string> keys;
  ForEachValue(yaml, [&](const std::string& key, const std::string&, std::string_view line) {
    const size_t at = line.rfind(" # ");
    if (at == std::string_view::npos) return;
    const std::string_view from = line.substr(at + 3);
    if (from.starts_with("default") || from.starts_with("preset")) keys.insert(key);
  });
  return keys;
}

}  // namespace tidepool::observe
