#include "core/config/render.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/algorithms/registry.h"
#include "core/config/policy_rules.h"
#include "core/config/schema.h"
#include "core/environments/text_game.h"
#include "core/tasks/reward.h"
#include "core/tasks/task.h"

namespace tidepool::config {
namespace {

using Json = nlohmann::ordered_json;

std::string WithComment(std::string line, const std::string& comment) {
  constexpr size_t kColumn = 44;
  line.append(line.size() < kColumn ? kColumn - line.size() : 1, ' ');
  return line + "# " + comment + "\n";
}

std::string Comment(const Origin& origin) {
  return origin.kind == Origin::Kind::kFile && !origin.note.empty() ? origin.note : origin.ToString();
}

std::string LastName(const std::string& path) { return path.substr(path.rfind('.') + 1); }

// Whether the key means something to this job; one that does not would be refused when it is read.
bool Applies(const Key& key, const JobConfig& config) {
  if (key.job && *key.job != config.kind()) return false;
  if (BelongsToPolicies(key.path, config)) return false;
  if (config.model.is_policy() && BelongsToText(key.path, config)) return false;
  if (key.path.starts_with("environment.")) return config.environment() != nullptr;
  const bool tasks = config.environment() != nullptr && config.environment()->is_endpoint() &&
                     !(config.data.task.empty() && config.data.path.empty());
  if (config.environment() != nullptr && !(tasks && key.path.starts_with("data.")) &&
      (key.path.starts_with("reward.") || key.path == "data.task" || key.path == "data.path" ||
       key.path == "data.size" || key.path == "data.eval_path" || key.path == "data.held_out")) {
    return false;
  }
  if (key.path == "data.size") return !config.data.task.empty();
  if (key.path == "data.eval_path") return !config.data.eval_path.empty();
  if (key.path == "data.held_out") return config.data.eval_path.empty();
  return !key.path.starts_with("model.init.") || config.model.init.has_value();
}

void AppendFunctions(const LoadedConfig& loaded, JobConfig& config, std::string& out) {
  out += WithComment("  functions:", Comment(loaded.OriginOf("reward.functions")));
  for (size_t i = 0; i < config.reward.functions.size(); ++i) {
    bool first = true;
    for (const Key& key : Keys()) {
      if (!key.path.starts_with("reward.functions[].")) continue;
      const std::string name = LastName(key.path);
      if (!tasks::Reads(config.reward.functions[i], name)) continue;
      out += WithComment((first ? "    - " : "      ") + name + ": " + ValueText(key.field(config, i)),
                         Comment(loaded.OriginOf("reward.functions[" + std::to_string(i) + "]." + name)));
      first = false;
    }
  }
}

// Options that are further keys of `section`. Defaults are shown, but not written: they belong to `whose`.
void AppendOptions(const LoadedConfig& loaded, const std::string& section,
                   const std::map<std::string, std::string>& given,
                   const std::vector<std::pair<std::string, std::string>>& defaults, const std::string& whose,
                   std::string& out) {
  for (const auto& [name, fallback] : defaults) {
    const auto it = given.find(name);
    out += it != given.end()
               ? WithComment("  " + name + ": " + it->second, Comment(loaded.OriginOf(section + "." + name)))
               : WithComment("  # " + name + ": " + fallback, "default of " + whose);
  }
}

std::vector<std::pair<std::string, std::string>> Defaults(const std::vector<tasks::Option>& options) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const tasks::Option& option : options) out.emplace_back(option.name, option.default_json);
  return out;
}

// What stands at the end of a section: options of the task, the environment or the algorithm's parts.
void EndSection(const LoadedConfig& loaded, const std::string& section, std::string& out) {
  const JobConfig& c = loaded.config;
  if (section == "data") {
    if (const tasks::TaskInfo* task = tasks::FindTask(c.data.task))
      AppendOptions(loaded, section, c.data.options, Defaults(task->options), "task " + task->name, out);
  } else if (section == "environment") {
    const EnvironmentConfig& e = *c.environment();
    if (const environments::TextEnvironmentInfo* info = environments::FindTextEnvironment(e.name)) {
      AppendOptions(loaded, section, e.options, Defaults(info->options), "environment " + info->name, out);
    } else {  // a control task: what was given
      AppendOptions(loaded, section, e.options, {e.options.begin(), e.options.end()}, e.name, out);
    }
  } else if (section == "algorithm") {
    const AlgorithmConfig& algorithm = c.rl()->algorithm;
    std::vector<std::pair<std::string, std::string>> defaults;
    for (const algorithms::OptionSpec& option : algorithms::OptionsOfParts(algorithm)) {
      if (FindKey("algorithm." + option.name) != nullptr) continue;
      const std::string fallback = algorithms::ValueText(option.fallback);
      defaults.emplace_back(option.name, fallback.empty() ? "null" : fallback);
    }
    AppendOptions(loaded, section, algorithm.options, defaults, "the algorithm's part", out);
  }
}

// Text for a table cell: Markdown takes <name> for a tag and | for the end of the cell.
std::string Cell(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '|' ? "\\|" : std::string(1, c);
  return out;
}

Json TypeSchema(const Key& key) {
  JobConfig scratch;
  scratch.reward.functions.emplace_back();
  const Field field = key.field(scratch, 0);
  Json j;
  const auto bounds = [&key](Json& to, bool whole) {
    const auto put = [&](const char* name, double value) {
      if (whole) {
        to[name] = static_cast<int64_t>(value);
      } else {
        to[name] = value;
      }
    };
    if (std::isfinite(key.range.lo)) put(key.range.lo_open ? "exclusiveMinimum" : "minimum", key.range.lo);
    if (std::isfinite(key.range.hi)) put(key.range.hi_open ? "exclusiveMaximum" : "maximum", key.range.hi);
  };
  if (std::holds_alternative<bool*>(field)) {
    j["type"] = "boolean";
  } else if (std::holds_alternative<int64_t*>(field) || std::holds_alternative<uint64_t*>(field)) {
    j["type"] = "integer";
    bounds(j, true);
    if (std::holds_alternative<uint64_t*>(field)) j["minimum"] = 0;
  } else if (std::holds_alternative<double*>(field) ||
             std::holds_alternative<std::optional<double>*>(field)) {
    j["type"] = "number";
    bounds(j, false);
  } else if (std::holds_alternative<std::vector<std::string>*>(field)) {
    j["type"] = "array";
    j["items"] = {{"type", "string"}};
    if (key.path != "environment.command") j["items"]["minLength"] = 1;  // an argument may be empty
  } else if (std::holds_alternative<std::vector<int64_t>*>(field)) {
    j["type"] = "array";
    j["items"] = {{"type", "integer"}};
    bounds(j["items"], true);
  } else {
    j["type"] = "string";
    if (!key.choices.empty()) j["enum"] = key.choices;
  }
  j["type"] = Json::array({j["type"], "null"});  // null takes an inherited value away
  if (j.contains("enum")) j["enum"].push_back(nullptr);
  j["description"] = key.doc + (key.unit.empty() ? "" : " (" + key.unit + ")");
  const auto value = Json::parse(ValueText(field), nullptr, false);
  if (std::holds_alternative<std::string*>(field)) {
    j["default"] = *std::get<std::string*>(field);
  } else if (const auto* word = std::get_if<WordField>(&field)) {
    j["default"] = word->Get();
  } else if (!value.is_discarded() && !value.is_null()) {
    j["default"] = value;
  }
  return j;
}

Json Section() {
  Json j;
  j["type"] = Json::array({"object", "null"});
  j["additionalProperties"] = false;
  j["properties"] = Json::object();
  return j;
}

void OptionTable(const std::vector<tasks::Option>& options, std::string& out) {
  out += "| option | type | default | meaning |\n|---|---|---|---|\n";
  for (const tasks::Option& option : options) {
    out += "| `" + option.name + "` | " + tasks::DescribeOption(option) + " | `" + option.default_json +
           "` | " + option.doc + " |\n";
  }
  out += "\n";
}

void TaskTable(std::string& out) {
  out += "## Generated tasks\n\nOptions are further keys of `data`.\n\n";
  for (const tasks::TaskInfo& task : tasks::ListTasks()) {
    out += "### `" + task.name + "`\n\n" + task.doc + ". `held_out` counts " + task.held_out_unit + ".\n\n";
    OptionTable(task.options, out);
  }
  out += "## Environments\n\nOptions are further keys of `environment`.\n\n";
  for (const environments::TextEnvironmentInfo& info : environments::ListTextEnvironments()) {
    out += "### `" + info.name + "`\n\n" + info.doc + "\n\nAction: " + Cell(info.action) +
           ". Reward: " + Cell(info.reward) + ".\n\n";
    OptionTable(info.options, out);
  }
  out += "## Rewards\n\n| name | argument | meaning |\n|---|---|---|\n";
  for (const tasks::RewardInfo& reward : tasks::ListRewards()) {
    out += "| `" + reward.name + "` | " +
           (reward.argument.empty() ? "" : "`" + reward.name + ":`" + reward.argument) + " | " + reward.doc +
           " |\n";
  }
}

}  // namespace

std::string ResolvedYaml(const LoadedConfig& loaded) {
  JobConfig config = loaded.config;
  std::string out = "# Every value of this job and where it came from.\n# Config: ";
  for (size_t i = 0; i < loaded.files.size(); ++i)
    out += (i == 0 ? "" : ", which extends ") + loaded.files[i];
  out += "\n# Overrides:" + std::string(loaded.overrides.empty() ? " none" : "") + "\n";
  for (const std::string& override : loaded.overrides) {
    std::string line = override;  // a comment is one line
    std::ranges::replace(line, '\n', ' ');
    std::ranges::replace(line, '\r', ' ');
    out += "#   " + line + "\n";
  }
  for (const std::string& line : loaded.history) out += "# " + line + "\n";
  std::string section;
  bool functions_done = false;
  for (const Key& key : Keys()) {
    if (!Applies(key, loaded.config)) continue;
    const size_t dot = key.path.rfind('.');
    std::string now = dot == std::string::npos ? "" : key.path.substr(0, dot);
    const bool item = now.ends_with("[]");
    if (item) now = "reward";
    if (now != section && now != "model" && !now.empty()) {
      EndSection(loaded, section, out);
      const size_t inner = now.find('.');
      // A section of its own inside one that is open already, or not yet.
      if (inner != std::string::npos && section.substr(0, inner) != now.substr(0, inner))
        out += now.substr(0, inner) + ":\n";
      out += inner == std::string::npos ? now + ":\n" : "  " + now.substr(inner + 1) + ":\n";
    } else if (now == "model" && section.empty()) {
      out += "model:\n";
    }
    section = now;
    if (item) {
      if (!functions_done) AppendFunctions(loaded, config, out);
      functions_done = true;
      continue;
    }
    const std::string value = ValueText(key.field(config, 0));
    const std::string indent = now.empty() ? "" : now.find('.') != std::string::npos ? "    " : "  ";
    out += WithComment(indent + LastName(key.path) + ": " + value, Comment(loaded.OriginOf(key.path)));
  }
  return out;
}

std::string SetYaml(const LoadedConfig& loaded) {
  std::vector<std::string> kept;
  std::istringstream all(ResolvedYaml(loaded));
  std::getline(all, kept.emplace_back());
  kept.back() = "# What is set of this job and where; `tidepool config show` has the defaults, too.";
  for (std::string line; std::getline(all, line);) {
    const size_t comment = line.rfind(" # ");
    const std::string_view from =
        comment == std::string::npos ? std::string_view() : std::string_view(line).substr(comment + 3);
    if (!from.starts_with("default") && !from.starts_with("preset")) kept.push_back(std::move(line));
  }
  // From the last line up: a section of which nothing is left goes, too.
  std::string out;
  size_t below = 0;  // indent of the line below
  for (auto line = kept.rbegin(); line != kept.rend(); ++line) {
    const size_t indent = line->find_first_not_of(' ');
    const std::string_view key = std::string_view(*line).substr(0, line->find(" # "));
    const bool opens = !line->starts_with('#') && key.substr(0, key.find_last_not_of(' ') + 1).ends_with(':');
    if (opens && below <= indent) {
      // A tiny model all of whose keys have their defaults is still one.
      if (!loaded.config.model.init || *line != "  init:") continue;
      *line += " {}";
    }
    out = *line + "\n" + out;
    below = indent;
  }
  return out;
}

std::string JsonSchema() {
  Json root = Section();
  root["type"] = "object";
  root["properties"]["extends"] = {
      {"type", Json::array({"string", "null"})},
      {"description", "config that this one is laid on top of, relative to this file"}};
  for (const Key& key : Keys()) {
    Json* at = &root;
    std::string rest = key.path;
    while (rest.find('.') != std::string::npos) {
      std::string name = rest.substr(0, rest.find('.'));
      rest = rest.substr(rest.find('.') + 1);
      const bool list = name.ends_with("[]");
      if (list) name.resize(name.size() - 2);
      Json& child = (*at)["properties"][name];
      if (child.is_null()) {
        child = Section();
        if (list) {
          Json items = Section();
          items["type"] = "object";
          items["required"] = Json::array({"name"});
          child = Json{{"type", Json::array({"array", "null"})},
                       {"items", {{"anyOf", Json::array({items, Json{{"type", "string"}}})}}}};
        }
      }
      at = list ? &child["items"]["anyOf"][0] : &child;
    }
    (*at)["properties"][rest] = TypeSchema(key);
  }
  // Further keys of data are options of the task.
  Json& data = root["properties"]["data"];
  data["additionalProperties"] = true;
  Json by_task = Json::array();
  for (const tasks::TaskInfo& task : tasks::ListTasks()) {
    std::string options;
    for (const tasks::Option& option : task.options)
      options += (options.empty() ? "" : "; ") + option.name + ": " + tasks::DescribeOption(option);
    by_task.push_back({{"const", task.name}, {"description", task.doc + ". Options: " + options}});
  }
  by_task.push_back({{"enum", Json::array({"", nullptr})}});
  data["properties"]["task"].erase("type");
  data["properties"]["task"]["oneOf"] = by_task;
  root["properties"]["environment"]["additionalProperties"] = true;  // options of the environment
  // Further keys of algorithm are options of its parts.
  root["properties"]["algorithm"]["additionalProperties"] = {
      {"type", Json::array({"number", "string", "boolean", "null"})}};
  Json out;
  out["$schema"] = "https://json-schema.org/draft/2020-12/schema";
  out["title"] = "Tidepool job";
  for (auto& [name, value] : root.items()) out[name] = value;
  return out.dump(2) + "\n";
}

std::string ConfigReference() {
  std::string out =
      "# Config reference\n\nGenerated from the schema by `tidepool config reference`; do not edit.\n\n"
      "One YAML file a job; `extends: other.yaml` lays it on top of another, `a.b=c` on the command line "
      "overrides, and a null value "
      "takes an inherited key away. Where another task, game or control task takes the place of an inherited "
      "one, the options that were written for that one are left out, and a warning names them. Keys marked "
      "with a kind of job (*rl*, *dpo*) mean something to that kind "
      "alone. A run may be resumed "
      "with another value of keys "
      "marked *free*.\n\n"
      "A relative *path* is looked for beside the file that it is written in, then in the current directory; "
      "on "
      "the command line "
      "in the current directory alone. The resolved config of a run has absolute paths, so that `--resume` "
      "works "
      "from any directory. A file that was moved may be named anew on resume.\n";
  std::string section = "-";
  JobConfig scratch;
  scratch.reward.functions.emplace_back();
  for (const Key& key : Keys()) {
    const size_t dot = key.path.rfind('.');
    const std::string now = dot == std::string::npos ? "" : key.path.substr(0, dot);
    if (now != section) {
      section = now;
      out += "\n## " + (now.empty() ? std::string("Top level") : "`" + now + "`") +
             "\n\n| key | type | default | meaning | |\n|---|---|---|---|---|\n";
    }
    std::string value = ValueText(key.field(scratch, 0));
    if (value == "\"\"" || value == "null") value = "";
    std::string marks(key.job ? Name(*key.job) : "");
    if (key.on_resume == OnResume::kFree) marks += std::string(marks.empty() ? "" : ", ") + "free";
    out += "| `" + LastName(key.path) + "` | " + DescribeType(key) + " | " +
           (value.empty() ? "" : "`" + value + "`") + " | " + Cell(key.doc) + " | " + marks + " |\n";
  }
  out += "\n";
  TaskTable(out);
  return out;
}

}  // namespace tidepool::config
