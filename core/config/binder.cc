#include "core/config/binder.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/algorithms/registry.h"
#include "core/base/names.h"
#include "core/environments/text_game.h"
#include "core/environments/vector.h"
#include "core/tasks/task.h"

namespace tidepool::config {
namespace {

namespace fs = std::filesystem;

std::string Join(const std::string& section, const std::string& name) {
  return section.empty() ? name : section + "." + name;
}

template <typename T>
bool ParseWhole(std::string_view text, T& value) {
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// Reads a node into a field; false if it has the wrong type or range.
struct Reader {
  const Key& key;
  const Node& node;
  bool any_text = false;  // also one that is none of the choices, which are names of plug-ins

  [[nodiscard]] bool IsPlain(ScalarType type) const {
    return node.kind == Node::Kind::kScalar && TypeOf(node) == type;
  }

  bool operator()(bool* out) const {
    if (!IsPlain(ScalarType::kBool)) return false;
    *out = node.text == "true";
    return true;
  }
  template <typename T>
  bool Whole(const Node& from, T* out) const {
    T value{};
    if (from.kind != Node::Kind::kScalar || TypeOf(from) != ScalarType::kInt || !ParseWhole(from.text, value))
      return false;
    if (!key.range.Holds(static_cast<double>(value))) return false;
    *out = value;
    return true;
  }
  bool operator()(int64_t* out) const { return Whole(node, out); }
  bool operator()(uint64_t* out) const { return Whole(node, out); }
  bool operator()(double* out) const {
    if (!IsPlain(ScalarType::kInt) && !IsPlain(ScalarType::kFloat)) return false;
    double value = 0;
    if (!ParseWhole(node.text, value) || !std::isfinite(value) || !key.range.Holds(value)) return false;
    *out = value;
    return true;
  }
  bool operator()(std::optional<double>* out) const {
    double value = 0;
    if (!(*this)(&value)) return false;
    *out = value;
    return true;
  }
  bool operator()(std::string* out) const {
    if (node.kind != Node::Kind::kScalar) return false;
    // A shell takes quotes away, so an override may look like a number; in a file that is a slip.
    if (TypeOf(node) != ScalarType::kText && !node.place.override) return false;
    if (!any_text && !key.choices.empty() && std::ranges::count(key.choices, node.text) == 0) return false;
    *out = node.text;
    return true;
  }
  bool operator()(WordField out) const {
    std::string word;
    return (*this)(&word) && out.Set(word);
  }
  bool operator()(std::vector<std::string>* out) const {
    std::vector<std::string> list;
    if (node.kind != Node::Kind::kList) return false;
    // Of a program: texts, whatever they look like, and an argument may be empty.
    const bool words = key.path == "environment.command";
    for (const Node& item : node.items) {
      if (item.kind != Node::Kind::kScalar ||
          (!words && (item.text.empty() || TypeOf(item) != ScalarType::kText)))
        return false;
      list.push_back(item.text);
    }
    *out = std::move(list);
    return true;
  }
  bool operator()(std::vector<int64_t>* out) const {
    std::vector<int64_t> list;
    if (node.kind != Node::Kind::kList) return false;
    for (const Node& item : node.items) {
      if (!Whole(item, &list.emplace_back())) return false;
    }
    *out = std::move(list);
    return true;
  }
};

// What to do about a value of the wrong type, where it can be told.
std::string Advice(const Field& field, const Node& node) {
  const bool text_wanted =
      std::holds_alternative<std::string*>(field) || std::holds_alternative<WordField>(field);
  const bool scalar = node.kind == Node::Kind::kScalar;
  if (text_wanted && scalar && TypeOf(node) != ScalarType::kText)
    return "; put it in quotes if the text is meant";
  if (std::holds_alternative<bool*>(field) && scalar && !node.quoted) {
    std::string lower = node.text;
    std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
    if (lower == "yes" || lower == "on" || lower == "y") return "; write true";
    if (lower == "no" || lower == "off" || lower == "n") return "; write false";
    if (lower == "true" || lower == "false") return "; write it in small letters";
  }
  if ((std::holds_alternative<int64_t*>(field) || std::holds_alternative<uint64_t*>(field)) && scalar) {
    if (TypeOf(node) == ScalarType::kFloat) return "; write it without point and exponent";
    if (node.quoted) return "; write it without quotes";
  }
  if (std::holds_alternative<double*>(field) && scalar && node.quoted) return "; write it without quotes";
  return {};
}

std::string Compact(const Node& value) {
  return ToJson(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

Place Binder::PlaceOf(const std::string& key) const {
  if (const auto it = loaded_.origins.find(key);
      it != loaded_.origins.end() && it->second.kind != Origin::Kind::kDefault) {
    return it->second.place;
  }
  for (std::string section = key; !section.empty();) {
    const size_t dot = section.rfind('.');
    section = dot == std::string::npos ? "" : section.substr(0, dot);
    if (const auto it = sections_.find(section); it != sections_.end()) return it->second;
  }
  return {.source = loaded_.path, .line = 1};
}

void Binder::Fail(const Place& place, const std::string& key, const std::string& what) {
  bad_.insert(key);
  problems_.push_back({place, key + ": " + what});
}

bool Binder::AllGood(std::initializer_list<const char*> keys) const {
  return std::ranges::all_of(keys, [this](const char* key) { return Good(key); });
}

std::string Binder::FirstWritten(std::initializer_list<const char*> keys) const {
  for (const char* key : keys) {
    if (Written(key)) return key;
  }
  return *keys.begin();
}

bool Binder::Says(const std::string& key) const {
  JobConfig mine = loaded_.config, usual;
  const Key& k = *FindKey(key);
  return Written(key) && ValueText(k.field(mine, 0)) != ValueText(k.field(usual, 0));
}

void Binder::Rule(const std::string& key, std::initializer_list<const char*> keys, bool broken,
                  const std::string& what) {
  if (broken && AllGood(keys)) Complain(key, what);
}

void Binder::Rule(std::initializer_list<const char*> keys, bool broken, const std::string& what) {
  Rule(FirstWritten(keys), keys, broken, what);
}

void Binder::Complain(const std::string& key, const std::string& what) {
  problems_.push_back({PlaceOf(key), key + ": " + what});
}

void Binder::ComplainOf(const std::string& section, const Status& status) {
  const std::string& message = status.message();
  const size_t colon = message.find(": ");
  Complain(section + message.substr(0, colon),
           colon == std::string::npos ? message : message.substr(colon + 2));
}

void Binder::Wrote(const std::string& key, const Node& node) {
  loaded_.origins[key] = {node.place.override ? Origin::Kind::kOverride : Origin::Kind::kFile, node.place,
                          ""};
}

void Binder::Warn(const std::string& key, const std::string& what) {
  loaded_.warnings.push_back(PlaceOf(key).ToString() + ": " + key + ": " + what);
}

void Binder::Unknown(const std::string& section, const std::string& name, const Node& node,
                     std::vector<std::string> known) {
  const std::string full = Join(section, name);
  std::string what = "unknown key";
  std::string near = Nearest(name, known);
  if (!near.empty()) {
    what += "; did you mean '" + Join(section, near) + "'?";
  } else {
    // The right name in the wrong place is the other common slip.
    const auto elsewhere =
        std::ranges::find_if(Keys(), [&](const Key& key) { return key.path.ends_with("." + name); });
    if (elsewhere != Keys().end()) {
      what += "; did you mean '" + elsewhere->path + "'?";
    } else {
      what += "; " + (section.empty() ? std::string("the top level") : "'" + section + "'") + " has " +
              Listed(known);
    }
  }
  Fail(node.place, full, what);
}

void Binder::ResolvePath(const Node& node, const std::string& shown, std::string& path) {
  if (path.empty()) return;
  std::vector<fs::path> places = {fs::path(path)};  // of the current directory
  if (!node.place.override) places.insert(places.begin(), fs::path(node.place.source).parent_path() / path);
  std::vector<std::string> tried;
  for (const fs::path& place : places) {
    std::error_code error;
    std::string found = fs::absolute(place, error).lexically_normal().string();
    if (error) continue;  // the current directory is gone
    while (found.size() > 1 && found.back() == '/') found.pop_back();
    if (fs::exists(found, error)) {
      path = std::move(found);
      return;
    }
    if (std::ranges::count(tried, found) == 0) tried.push_back(std::move(found));
  }
  std::string where;
  for (const std::string& place : tried) where += (where.empty() ? "" : " and ") + place;
  loaded_.warnings.push_back(node.place.ToString() + ": " + shown + ": '" + path + "' is not there (tried " +
                             where + ")");
}

// unix:PATH, whose server may come later: then it is of the current directory. The path of a socket is short
// (sun_path), so that a deep directory leaves it as it is.
void Binder::ResolveSocket(const Node& node, std::string& endpoint) {
  constexpr std::string_view kUnix = "unix:";
  constexpr size_t kLongest = 107;
  if (!endpoint.starts_with(kUnix) || fs::path(endpoint.substr(kUnix.size())).is_absolute()) return;
  const fs::path path = endpoint.substr(kUnix.size());
  std::error_code error;
  fs::path found = fs::path(node.place.source).parent_path() / path;
  if (node.place.override || !fs::exists(found, error)) found = path;
  const std::string whole = fs::absolute(found, error).lexically_normal().string();
  if (!error && whole.size() <= kLongest) endpoint = std::string(kUnix) + whole;
}

bool Binder::Foreign(const Node& node, const std::string& shown, JobKind of) {
  if (of == loaded_.config.kind() || !Good("job")) return false;
  Fail(node.place, shown,
       std::string("belongs to job: ") + Name(of) + ", and this is job: " + Name(loaded_.config.kind()) +
           "; remove it (or set it to null where it is inherited)");
  return true;
}

void Binder::BindKey(const Key& key, const Node& node, const std::string& shown, size_t index) {
  if (node.kind == Node::Kind::kNull) return;  // as if it were not written
  if (key.job && Foreign(node, shown, *key.job)) return;
  const Field field = key.field(loaded_.config, index);
  if (!std::visit(Reader{key, node, as_written_}, field)) {
    std::string what = "found " + node.Describe() + "; expected " + DescribeType(key) + Advice(field, node);
    if (key.path == "job" && algorithms::FindAlgorithm(node.text) != nullptr) {
      what += "; " + node.text + " is an algorithm of job: rl, written algorithm: {name: " + node.text + "}";
    } else if (key.choices.size() > 1 && node.kind == Node::Kind::kScalar) {
      const std::string near = Nearest(node.text, key.choices);
      if (!near.empty()) what += "; did you mean '" + near + "'?";
    }
    return Fail(node.place, shown, what);
  }
  Wrote(shown, node);
  if (key.is_path) ResolvePath(node, shown, *std::get<std::string*>(field));
  if (key.path == "reward.functions[].endpoint") ResolveSocket(node, *std::get<std::string*>(field));
  if (key.path == "environment.command") ResolveCommand(node, *std::get<std::vector<std::string>*>(field));
  if (key.path == "environment.addresses") {
    for (std::string& address : *std::get<std::vector<std::string>*>(field)) ResolveSocket(node, address);
  }
}

void Binder::BindFunctions(const Node& node) {
  const std::string path = "reward.functions";
  if (node.kind == Node::Kind::kNull || Foreign(node, path, JobKind::kRl)) return;
  if (node.kind != Node::Kind::kList) {
    return Fail(node.place, path,
                "found " + node.Describe() + "; expected a list, like [{name: exact_answer, weight: 1.0}]");
  }
  Wrote(path, node);
  loaded_.config.reward.functions.resize(node.items.size());
  for (size_t i = 0; i < node.items.size(); ++i) {
    const Node& item = node.items[i];
    const std::string shown = path + "[" + std::to_string(i) + "]";
    if (item.kind == Node::Kind::kScalar) {  // a name alone
      BindKey(*FindKey("reward.functions[].name"), item, shown + ".name", i);
      continue;
    }
    if (item.kind != Node::Kind::kMap) {
      Fail(item.place, shown, "found " + item.Describe() + "; expected {name, weight, ...}");
      continue;
    }
    sections_[shown] = item.place;
    for (const auto& [name, value] : item.members) {
      if (const Key* key = FindKey(path + "[]." + name)) {
        BindKey(*key, value, shown + "." + name, i);
      } else {
        Unknown(shown, name, value, NamesIn(path + "[]"));
      }
    }
  }
}

void Binder::BindOption(const std::string& section, const std::string& name, const Node& value,
                        std::span<const tasks::Option> options, std::map<std::string, std::string>& into) {
  const std::string full = section + "." + name;
  if (as_written_) {
    into[name] = Compact(value);
    return Wrote(full, value);
  }
  const auto option = std::ranges::find(options, name, &tasks::Option::name);
  if (option == options.end()) {
    std::vector<std::string> known = NamesIn(section);
    for (const tasks::Option& o : options) known.push_back(o.name);
    return Unknown(section, name, value, known);
  }
  if (const Status status = tasks::CheckOption(*option, ToJson(value)); !status.ok())
    return Fail(value.place, full, status.message());
  into[name] = Compact(value);
  Wrote(full, value);
}

// An option that has the name of a key of the section would never get a value.
void Binder::CheckOptionNames(const Node& name, const std::string& section, const std::string& file,
                              std::span<const tasks::Option> options) {
  for (const tasks::Option& option : options) {
    const std::string full = section + "." + option.name;
    if (FindKey(full) == nullptr && !IsSection(full)) continue;
    Fail(name.place, section == "data" ? "data.task" : section + ".name",
         "option '" + option.name + "' of " + name.text + " has the name of the key " + full +
             ", which takes what is written there; give it another name in " + file);
  }
}

// Keys of `data` that are none of ours belong to the task.
void Binder::BindData(const Node& map) {
  const tasks::TaskInfo* task = nullptr;
  if (const Node* name = map.Find("task");
      !as_written_ && name != nullptr && name->kind == Node::Kind::kScalar && !name->text.empty()) {
    task = tasks::FindTask(name->text);
    if (task == nullptr) {
      std::vector<std::string> names;
      for (const tasks::TaskInfo& info : tasks::ListTasks()) names.push_back(info.name);
      Fail(name->place, "data.task",
           "no task is named '" + name->text + "'; " + DidYouMean(name->text, names));
    } else {
      CheckOptionNames(*name, "data", task->file, task->options);
    }
  }
  for (const auto& [name, value] : map.members) {
    if (const Key* key = FindKey("data." + name)) {
      BindKey(*key, value, key->path, 0);
    } else if (value.kind != Node::Kind::kNull && Good("data.task")) {  // else its options cannot be judged
      BindOption("data", name, value,
                 task == nullptr ? std::span<const tasks::Option>() : std::span(task->options),
                 loaded_.config.data.options);
    }
  }
}

// Keys of `environment` that are none of ours belong to the environment.
void Binder::BindEnvironment(const Node& map) {
  const environments::TextEnvironmentInfo* info = nullptr;
  bool control = false;  // a control task checks its options itself, once all are known
  bool service = false;  // has none: they are its program's arguments
  for (const char* key : {"command", "addresses"}) {
    const Node* list = map.Find(key);
    service = service || (list != nullptr && list->kind == Node::Kind::kList && !list->items.empty());
  }
  if (const Node* name = map.Find("name"); name != nullptr && name->text == EnvironmentConfig::kEndpoint)
    service = true;
  if (const Node* name = map.Find("name"); !as_written_ && !service && name != nullptr &&
                                           name->kind == Node::Kind::kScalar && !name->text.empty()) {
    info = environments::FindTextEnvironment(name->text);
    control = environments::FindVectorEnvironment({.name = name->text}).ok();
    if (info == nullptr && !control)
      Fail(name->place, "environment.name", environments::NoSuchEnvironment(name->text));
    if (info != nullptr) CheckOptionNames(*name, "environment", info->file, info->options);
  }
  for (const auto& [name, value] : map.members) {
    const std::string full = "environment." + name;
    if (const Key* key = FindKey(full)) {
      BindKey(*key, value, full, 0);
    } else if (IsSection(full)) {
      BindSection(value, full);
    } else if (service && value.kind != Node::Kind::kNull) {
      Fail(value.place, full,
           "is no key of a service; give it to its program, as an argument of environment.command");
    } else if (Good("environment.name") && value.kind != Node::Kind::kNull &&
               !Foreign(value, full, JobKind::kRl)) {
      auto& options = PartOf<RlJob>(loaded_.config).environment.options;
      if (control && value.kind == Node::Kind::kScalar) {
        options[name] = Compact(value);
        Wrote(full, value);
      } else {
        BindOption("environment", name, value,
                   info == nullptr ? std::span<const tasks::Option>() : std::span(info->options), options);
      }
    }
  }
  auto* rl = std::get_if<RlJob>(&loaded_.config.job);
  if (rl == nullptr || !rl->environment.is_service()) return;
  EnvironmentConfig& e = rl->environment;
  if (e.name.empty()) Adjust(loaded_, "environment.name", e.name, "service", "of a service");
}

// The program of a command, and words that look like files, where they are files beside the config or in the
// current directory: other programs have other ones. A program without a folder is looked for where all
// programs are.
void Binder::ResolveCommand(const Node& node, std::vector<std::string>& command) {
  for (size_t i = 0; i < command.size(); ++i) {
    std::string& word = command[i];
    const bool in_folder = word.find('/') != std::string::npos;
    if (word.empty() || word.front() == '-' || !(in_folder || (i > 0 && fs::path(word).has_extension())))
      continue;
    std::vector<fs::path> places = {fs::path(word)};
    if (!node.place.override) places.insert(places.begin(), fs::path(node.place.source).parent_path() / word);
    for (const fs::path& place : places) {
      std::error_code error;
      if (!fs::is_regular_file(place, error)) continue;
      word = fs::absolute(place, error).lexically_normal().string();
      break;
    }
  }
}

// Keys of `algorithm` that are none of ours are options of its parts; which parts those are is known at the
// end.
void Binder::BindAlgorithm(const Node& map) {
  for (const auto& [name, value] : map.members) {
    if (const Key* key = FindKey("algorithm." + name)) BindKey(*key, value, "algorithm." + name, 0);
    if (IsSection("algorithm." + name)) BindSection(value, "algorithm." + name);
  }
  const bool parts_are_wrong = bad_.contains("algorithm.name") || bad_.contains("algorithm.advantage") ||
                               bad_.contains("algorithm.loss");
  JobConfig scratch = loaded_.config;
  const std::vector<algorithms::OptionSpec> offered =
      as_written_ ? std::vector<algorithms::OptionSpec>()
                  : algorithms::OptionsOfParts(PartOf<RlJob>(scratch).algorithm);
  std::vector<std::string> known = NamesIn("algorithm");
  for (const algorithms::OptionSpec& option : offered) known.push_back(option.name);
  for (const auto& [name, value] : map.members) {
    const std::string full = "algorithm." + name;
    if (FindKey(full) != nullptr || IsSection(full) || parts_are_wrong) continue;
    if (value.kind != Node::Kind::kNull && Foreign(value, full, JobKind::kRl)) continue;
    if (!as_written_ && std::ranges::find(offered, name, &algorithms::OptionSpec::name) == offered.end()) {
      Unknown("algorithm", name, value, known);
      continue;
    }
    if (value.kind != Node::Kind::kScalar && value.kind != Node::Kind::kNull) {
      Fail(value.place, full, "found " + value.Describe() + "; expected a number, a text, true or false");
      continue;
    }
    // null is kept: it takes a default of the part away.
    PartOf<RlJob>(loaded_.config).algorithm.options[name] = Compact(value);
    Wrote(full, value);
  }
}

void Binder::BindSection(const Node& value, const std::string& full) {
  if (value.kind == Node::Kind::kMap) {
    if (full == "model.init") {
      loaded_.config.model.init.emplace();
      Wrote(full, value);
    }
    BindMap(value, full);
  } else if (value.kind != Node::Kind::kNull) {
    Fail(value.place, full,
         "found " + value.Describe() + "; expected keys below it, like " + NamesIn(full).front());
  }
}

void Binder::BindMap(const Node& map, const std::string& section) {
  sections_[section] = map.place;
  if (section == "data") return BindData(map);
  if (section == "algorithm") return BindAlgorithm(map);
  if (section == "environment") return BindEnvironment(map);
  for (const auto& [name, value] : map.members) {
    const std::string full = Join(section, name);
    if (full == "reward.functions") {
      BindFunctions(value);
    } else if (const Key* key = FindKey(full)) {
      if (full != "job") BindKey(*key, value, full, 0);
    } else if (IsSection(full)) {
      BindSection(value, full);
    } else {
      Unknown(section, name, value, NamesIn(section));
    }
  }
}

void Binder::Bind(const Node& root) {
  if (root.kind != Node::Kind::kMap) {
    return Fail(root.place, "config",
                "found " + root.Describe() + "; expected keys such as name, job, model");
  }
  if (const Node* job = root.Find("job"))
    BindKey(*FindKey("job"), *job, "job", 0);  // says which keys there are
  BindMap(root, "");
}

}  // namespace tidepool::config
