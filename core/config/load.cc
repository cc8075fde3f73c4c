#include "core/config/load.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/base/limited_call.h"
#include "core/base/names.h"
#include "core/config/binder.h"

namespace tidepool::config {
namespace {

namespace fs = std::filesystem;
constexpr size_t kMaxExtends = 16;
constexpr size_t kMaxShown = 50;

// The file in the folder of `path` that was meant. Empty: none is near.
std::string NearestConfig(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder.empty() ? "." : folder, error)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".yaml" || extension == ".yml") names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  const std::string near = Nearest(fs::path(path).filename().string(), names);
  return near.empty() ? "" : (folder / near).string();
}

StatusOr<std::string> ReadText(const std::string& path) {
  if (path.ends_with(".jsonl")) {
    return InvalidArgument(
        path + ": is a file of rows; expected a config in YAML, which names it: data: {path: " + path +
        "}. `tidepool validate` of that config reads the rows");
  }
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    const std::string near = NearestConfig(path);
    return NotFound(path + ": no such file; " +
                    (near.empty() ? "expected a config in YAML" : "did you mean " + near + "?"));
  }
  if (fs::is_directory(status)) return InvalidArgument(path + ": is a folder; expected a config in YAML");
  std::ifstream in(path, std::ios::binary);
  if (!in) return PermissionDenied(path + ": cannot be opened: " + std::strerror(errno));
  std::string text;
  std::vector<char> buffer(1 << 16);
  // One byte beyond the limit is enough to know that it is passed; the parser says so.
  while (static_cast<int64_t>(text.size()) <= kMaxYamlBytes &&
         (in.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || in.gcount() > 0)) {
    text.append(buffer.data(), static_cast<size_t>(in.gcount()));
  }
  return text;
}

std::string Identity(const std::string& path) {
  std::error_code error;
  const fs::path canonical = fs::weakly_canonical(path, error);
  return error ? path : canonical.string();
}

// A section whose keys that are none of ours are options of a task, a game or a control task.
struct Optioned {
  const char* section;
  const char* name;   // the key that says whose
  const char* count;  // a key that means nothing without a name; may be empty
};
constexpr std::array kOptioned = {Optioned{"data", "task", "size"}, Optioned{"environment", "name", ""}};

// What was inherited for another task or game than the one that took its place.
struct LeftOut {
  Place place;  // of the new name
  const Optioned* of = nullptr;
  std::string was;
  bool none_now = false;  // it was taken away, and no other one took its place
  std::vector<std::string> names;
};

// Where `now` is laid on the name in `in`: what was inherited for another one goes with it. What the command
// line says was said for the new one.
void DropOptions(const Optioned& of, Node& in, const Node& now, std::vector<LeftOut>& left_out) {
  const Node* was = in.Find(of.name);
  if (was == nullptr || was->kind != Node::Kind::kScalar || was->text.empty()) return;
  if (now.kind == Node::Kind::kScalar && now.text == was->text) return;
  LeftOut left{.place = now.place,
               .of = &of,
               .was = was->text,
               .none_now = now.kind == Node::Kind::kNull,
               .names = {}};
  std::erase_if(in.members, [&](const auto& member) {
    const std::string key = std::string(of.section) + "." + member.first;
    const bool goes =
        !member.second.place.override && ((now.kind == Node::Kind::kNull && member.first == of.count) ||
                                          (FindKey(key) == nullptr && !IsSection(key)));
    if (goes && member.second.kind != Node::Kind::kNull) left.names.push_back(member.first);
    return goes;
  });
  left_out.push_back(std::move(left));
}

void DropReplacedOptions(Node& base, const Node& over, std::vector<LeftOut>& left_out) {
  for (const Optioned& of : kOptioned) {
    Node* in = base.kind == Node::Kind::kMap ? base.Find(of.section) : nullptr;
    const Node* from = over.kind == Node::Kind::kMap ? over.Find(of.section) : nullptr;
    if (in == nullptr || from == nullptr || in->kind != Node::Kind::kMap || from->kind != Node::Kind::kMap)
      continue;
    if (const Node* now = from->Find(of.name)) DropOptions(of, *in, *now, left_out);
  }
}

// Says what was left out and is not written again for the new one.
void WarnOfLeftOut(const std::vector<LeftOut>& left_out, const Node& root, LoadedConfig& loaded) {
  for (const LeftOut& left : left_out) {
    const std::string section = left.of->section;
    const Node* in = root.kind == Node::Kind::kMap ? root.Find(section) : nullptr;
    std::vector<std::string> keys;
    for (const std::string& name : left.names) {
      if (in == nullptr || in->Find(name) == nullptr) keys.push_back(section + "." + name);
    }
    if (keys.empty()) continue;
    loaded.warnings.push_back(
        left.place.ToString() + ": " + section + "." + left.of->name + ": " + Listed(keys) + " of " +
        left.was + (keys.size() == 1 ? " is" : " are") + " left out, because " +
        (left.none_now ? section + "." + left.of->name + " is taken away" : "another one takes its place"));
  }
}

// The tree of a file on top of what it extends. Problems are appended; the tree is then unusable.
Node LoadTree(const std::string& text, const std::string& path, LoadedConfig& loaded,
              std::vector<std::string> chain, std::vector<LeftOut>& left_out,
              std::vector<Problem>& problems) {
  loaded.files.push_back(path);
  Node root = ParseYaml(text, {.source = path}, problems);
  Node* extends = root.kind == Node::Kind::kMap ? root.Find("extends") : nullptr;
  if (extends == nullptr) return root;
  const Place place = extends->place;
  const Node base_name = *extends;
  std::erase_if(root.members, [](const auto& member) { return member.first == "extends"; });
  if (base_name.kind == Node::Kind::kNull) return root;
  if (base_name.kind != Node::Kind::kScalar || base_name.text.empty()) {
    problems.push_back({place, "extends: found " + base_name.Describe() +
                                   "; expected the path of one config, relative to this file"});
    return root;
  }
  const std::string base_path = (fs::path(path).parent_path() / base_name.text).lexically_normal().string();
  chain.push_back(Identity(path));
  if (std::ranges::count(chain, Identity(base_path)) > 0 || chain.size() > kMaxExtends) {
    problems.push_back({place, "extends: " + base_path +
                                   (chain.size() > kMaxExtends ? " is the end of too long a chain"
                                                               : " extends this file in turn") +
                                   "; a config cannot be built on itself"});
    return root;
  }
  const StatusOr<std::string> base_text = ReadText(base_path);
  if (!base_text.ok()) {
    problems.push_back({place, "extends: " + base_text.status().message()});
    return root;
  }
  Node base = LoadTree(*base_text, base_path, loaded, std::move(chain), left_out, problems);
  DropReplacedOptions(base, root, left_out);
  MergeInto(base, std::move(root));
  return base;
}

void ApplyOverride(Node& root, const std::string& text, std::vector<LeftOut>& left_out,
                   std::vector<Problem>& problems) {
  const Place place{.source = text, .override = true};
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    problems.push_back({place, "expected key=value, like train.steps=100"});
    return;
  }
  const std::string path = text.substr(0, equals);
  if (path == "extends") {
    problems.push_back(
        {place, "extends: cannot be given on the command line; name the other config instead"});
    return;
  }
  std::vector<Problem> found;
  const std::string value_text = text.substr(equals + 1);
  Node value = ParseYaml(value_text, place, found);
  for (Problem& problem : found) problems.push_back({place, path + ": " + problem.text});
  if (!found.empty()) return;
  if (value.kind == Node::Kind::kNull &&
      value_text.find_first_not_of(' ') == std::string::npos) {  // a.b= is the empty text
    value.kind = Node::Kind::kScalar;
    value.quoted = true;
  }
  value.place = place;
  for (const Optioned& of : kOptioned) {
    Node* in = path == std::string(of.section) + "." + of.name && root.kind == Node::Kind::kMap
                   ? root.Find(of.section)
                   : nullptr;
    if (in != nullptr && in->kind == Node::Kind::kMap) DropOptions(of, *in, value, left_out);
  }
  std::string why;
  if (!SetAt(root, path, std::move(value), why)) problems.push_back({place, path + ": " + why});
}

Status ToStatus(std::vector<Problem> problems) {
  // In the order of the lines, one file after the other as they were read.
  std::ranges::stable_sort(problems, [](const Problem& a, const Problem& b) {
    return a.place.source == b.place.source && a.place.line < b.place.line;
  });
  std::string message;
  for (size_t i = 0; i < std::min(problems.size(), kMaxShown); ++i) {
    message += (i == 0 ? "" : "\n") + problems[i].place.ToString() + ": " + problems[i].text;
  }
  if (problems.size() > kMaxShown)
    message += "\n... and " + std::to_string(problems.size() - kMaxShown) + " more";
  return InvalidArgument(message);
}

}  // namespace

std::string Origin::ToString() const {
  switch (kind) {
    case Kind::kDefault:
      return note.empty() ? "default" : "default: " + note;
    case Kind::kFile:
      return place.ToString();
    case Kind::kOverride:
      return "override";
  }
  return {};
}

Origin LoadedConfig::OriginOf(const std::string& key) const {
  const auto it = origins.find(key);
  return it == origins.end() ? Origin{} : it->second;
}

namespace {

StatusOr<LoadedConfig> Load(const std::string& text, const std::string& name,
                            const std::vector<std::string>& overrides, bool as_written, bool beside = false) {
  LoadedConfig loaded;
  loaded.beside = beside;
  loaded.path = name;
  loaded.overrides = overrides;
  std::vector<Problem> problems;
  std::vector<LeftOut> left_out;
  Node root = LoadTree(text, name, loaded, {}, left_out, problems);
  // A text that is no proper YAML has lost keys: complaints about those would only mislead.
  if (!problems.empty()) return ToStatus(std::move(problems));
  for (const std::string& override : overrides) ApplyOverride(root, override, left_out, problems);
  WarnOfLeftOut(left_out, root, loaded);
  Binder binder(loaded, problems, as_written);
  binder.Bind(root);
  if (as_written && !problems.empty()) return ToStatus(std::move(problems));
  const UsualLimitFor limit(UsualLimitOf(loaded));
  CheckAcrossKeys(binder, loaded);  // gives defaults their values, too
  if (!as_written && !problems.empty()) return ToStatus(std::move(problems));
  return loaded;
}

}  // namespace

UsualLimit UsualLimitOf(const JobConfig& config) {
  return {config.cluster.plugin_timeout_s, "cluster.plugin_timeout_s"};
}
UsualLimit UsualLimitOf(const LoadedConfig& loaded) {
  UsualLimit limit = UsualLimitOf(loaded.config);
  if (loaded.beside) limit.key += " of " + loaded.path;
  return limit;
}

StatusOr<LoadedConfig> LoadConfigText(const std::string& text, const std::string& name,
                                      const std::vector<std::string>& overrides) {
  TP_ASSIGN_OR_RETURN(LoadedConfig loaded, Load(text, name, overrides, /*as_written=*/false));
  LimitedCall::Usual(UsualLimitOf(loaded));
  return loaded;
}

StatusOr<LoadedConfig> LoadConfig(const std::string& path, const std::vector<std::string>& overrides) {
  TP_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  return LoadConfigText(text, path, overrides);
}

StatusOr<LoadedConfig> ReadCheckedConfig(const std::string& path) {
  TP_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  return Load(text, path, {}, /*as_written=*/true);
}

StatusOr<LoadedConfig> LoadWarmStart(const JobConfig& config) {
  if (!config.model.init || config.model.init->warm_start.empty()) {
    return FailedPrecondition("model.init.warm_start: not set, so there is no warm start to load");
  }
  std::vector<std::string> overrides = {"seed=" + std::to_string(config.seed)};
  if (config.deterministic) overrides.emplace_back("deterministic=true");
  TP_ASSIGN_OR_RETURN(const std::string text, ReadText(config.model.init->warm_start));
  return Load(text, config.model.init->warm_start, overrides, /*as_written=*/false,
              /*beside=*/true);
}

}  // namespace tidepool::config
