#include "core/config/resume.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "core/config/schema.h"

namespace tidepool::config {
namespace {

namespace fs = std::filesystem;

std::string KeyOf(const std::string& override) { return override.substr(0, override.find('=')); }

// Two paths that lead to one file, perhaps by a link.
bool IsSameFile(const std::string& a, const std::string& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) && !error;
}

// A file that is gone may be at another place now; one that is there and is not the other is another one.
bool MayHaveMoved(const std::string& was, const std::string& is) {
  std::error_code error;
  return !was.empty() && !is.empty() && !fs::exists(was, error);
}

std::string NamesOf(const std::vector<RewardFunction>& functions) {
  std::string names;
  for (const RewardFunction& f : functions) names += (names.empty() ? "" : ", ") + f.name;
  return names.empty() ? "none" : names;
}

class Comparison {
 public:
  Comparison(const JobConfig& old, const JobConfig& now) : was_(old), is_(now) {}

  std::vector<Difference> All() {
    const bool init = was_.model.init && is_.model.init;
    Add("model.init", was_.model.init ? "set" : "not set", is_.model.init ? "set" : "not set", false);
    const size_t functions = std::min(was_.reward.functions.size(), is_.reward.functions.size());
    if (was_.reward.functions.size() != is_.reward.functions.size())
      Add("reward.functions", NamesOf(was_.reward.functions), NamesOf(is_.reward.functions), false);
    for (const Key& key : Keys()) {
      if (key.job && (*key.job != was_.kind() || *key.job != is_.kind())) continue;
      if (key.path.starts_with("model.init.") && !init) continue;
      if (key.path == "model.init.warm_start") continue;
      if (key.path.starts_with("reward.functions[].")) {
        for (size_t i = 0; i < functions; ++i) Compare(key, i);
      } else {
        Compare(key, 0);
      }
    }
    Options("data.", was_.data.options, is_.data.options);
    if (was_.rl() != nullptr && is_.rl() != nullptr) {
      Options("environment.", was_.rl()->environment.options, is_.rl()->environment.options);
      Options("algorithm.", was_.rl()->algorithm.options, is_.rl()->algorithm.options);
    }
    return std::move(found_);
  }

 private:
  void Add(const std::string& key, const std::string& was, const std::string& is, bool allowed) {
    if (was != is) found_.push_back({key, was, is, allowed});
  }

  void Compare(const Key& key, size_t index) {
    std::string shown = key.path;
    if (const size_t list = shown.find("[]"); list != std::string::npos)
      shown.insert(list + 1, std::to_string(index));
    const Field was = key.field(was_, index), is = key.field(is_, index);
    bool allowed = key.on_resume == OnResume::kFree;
    if (key.is_path) {
      const std::string &before = *std::get<std::string*>(was), &after = *std::get<std::string*>(is);
      if (IsSameFile(before, after)) return;
      const bool rows = key.path == "data.path" || key.path == "data.eval_path";
      allowed = allowed || (rows && !before.empty() && !after.empty()) || MayHaveMoved(before, after);
    } else if (key.path == "reward.functions[].endpoint") {
      // A server may be elsewhere now; one in place of a registered reward grades otherwise.
      allowed = !std::get<std::string*>(was)->empty() && !std::get<std::string*>(is)->empty();
    }
    Add(shown, ValueText(was), ValueText(is), allowed);
  }

  void Options(const std::string& section, const std::map<std::string, std::string>& before,
               const std::map<std::string, std::string>& after) {
    std::map<std::string, std::string> all = after;
    all.insert(before.begin(), before.end());
    const auto text = [](const auto& options, const std::string& name) {
      return options.contains(name) ? options.at(name) : std::string("not set");
    };
    for (const auto& [name, value] : all) Add(section + name, text(before, name), text(after, name), false);
  }

  JobConfig was_, is_;  // copies: a field of a part that is not there makes it
  std::vector<Difference> found_;
};

// What the comments of a resolved config say (render.h writes them).
struct Comments {
  std::string config;  // behind "# Config: "
  std::vector<std::string> overrides, history;
  std::map<int64_t, std::string> at_line;
};

Comments ReadComments(const std::string& path) {
  Comments out;
  std::ifstream in(path);
  bool head = true;
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    head = head && line.starts_with("# ");
    if (!head) {
      if (const size_t at = line.rfind(" # "); at != std::string::npos)
        out.at_line[number] = line.substr(at + 3);
    } else if (!out.history.empty() || line.starts_with("# Resumed at ")) {
      out.history.push_back(line.substr(2));
    } else if (line.starts_with("# Config: ")) {
      out.config = line.substr(10);
    } else if (line.starts_with("#   ")) {
      out.overrides.push_back(line.substr(4));
    }
  }
  return out;
}

// `loaded`: of the file at `path`, with the overrides of now.
void TakeComments(const std::string& path, LoadedConfig& loaded) {
  Comments comments = ReadComments(path);
  if (!comments.config.empty()) loaded.files = {comments.config};
  loaded.history = std::move(comments.history);
  for (auto& [key, origin] : loaded.origins) {
    if (origin.kind != Origin::Kind::kFile || origin.place.source != path) continue;
    if (const auto said = comments.at_line.find(origin.place.line); said != comments.at_line.end())
      origin.note = said->second;
  }
  std::erase_if(comments.overrides, [&](const std::string& old) {
    return std::ranges::any_of(loaded.overrides,
                               [&](const std::string& now) { return KeyOf(now) == KeyOf(old); });
  });
  loaded.overrides.insert(loaded.overrides.begin(), comments.overrides.begin(), comments.overrides.end());
}

}  // namespace

std::string Difference::ToString() const { return key + ": was " + was + ", is " + is; }

std::string Difference::Told() const {
  return ToString() + (taken_back ? " (an override given earlier, which is not repeated)" : "");
}

std::vector<Difference> Differences(const JobConfig& old, const JobConfig& now) {
  return Comparison(old, now).All();
}

Status CheckAllowed(const std::vector<Difference>& differences, const std::string& anew) {
  std::string refused;
  for (const Difference& d : differences) {
    if (!d.allowed) refused += d.ToString() + "\n";
  }
  if (refused.empty()) return OkStatus();
  return FailedPrecondition(refused + "a run cannot be resumed with these changed; take them back, or " +
                            anew);
}

StatusOr<std::vector<Difference>> ChangesOnResume(const LoadedConfig& old, const LoadedConfig& now,
                                                  int64_t last_step, const std::string& anew) {
  std::vector<Difference> differences = Differences(old.config, now.config);
  TP_RETURN_IF_ERROR(CheckAllowed(differences, anew));
  for (Difference& d : differences) d.taken_back = Overrides(old, d.key) && !Overrides(now, d.key);
  const auto steps = std::ranges::find(differences, "train.steps", &Difference::key);
  if (steps != differences.end() && now.config.train.steps < last_step) {
    const std::string done = std::to_string(last_step);
    return FailedPrecondition(steps->Told() + "; but step " + done +
                              " is done already: give more steps than that to go on, or train.steps=" + done +
                              " to end the run there, with its last evaluation and final/");
  }
  return differences;
}

StatusOr<LoadedConfig> LoadRunConfig(const std::string& path, const std::vector<std::string>& overrides) {
  TP_ASSIGN_OR_RETURN(LoadedConfig loaded, LoadConfig(path, overrides));
  TakeComments(path, loaded);
  return loaded;
}

StatusOr<LoadedConfig> ReadRunConfig(const std::string& path) {
  TP_ASSIGN_OR_RETURN(LoadedConfig loaded, ReadCheckedConfig(path));
  TakeComments(path, loaded);
  return loaded;
}

bool Overrides(const LoadedConfig& loaded, const std::string& key) {
  return std::ranges::any_of(loaded.overrides, [&](const std::string& override) {
    const std::string given = KeyOf(override);
    return key == given || key.starts_with(given + ".") || key.starts_with(given + "[");
  });
}

void AddToHistory(LoadedConfig& loaded, const std::string& when, const std::vector<Difference>& differences) {
  loaded.history.push_back("Resumed at " + when + ":");
  for (const Difference& d : differences) {
    std::string line = d.ToString();  // a comment is one line
    std::ranges::replace(line, '\n', ' ');
    loaded.history.push_back("  " + line);
  }
}

}  // namespace tidepool::config
