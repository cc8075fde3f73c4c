#include "core/config/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <sstream>

namespace tidepool::config {
namespace {

bool ParseInt(std::string_view text, int64_t& value) {
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

bool LooksLikeInt(std::string_view text) {
  if (!text.empty() && (text[0] == '+' || text[0] == '-')) text.remove_prefix(1);
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

bool ParseFloat(std::string_view text, double& value) {
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  if (text.empty() || text.find_first_not_of("0123456789.eE+-") != std::string_view::npos) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

// Builds the tree from yaml-cpp's events. Events may not throw, so a limit that is passed is noted,
// and what follows is ignored.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(const Place& place, std::vector<Problem>& problems) : place_(place), problems_(problems) {}

  Node root;

  // Where the innermost bracket was opened that is open still, and which; 0: none.
  struct Bracket {
    Place place;
    char opens = 0;
  };
  [[nodiscard]] Bracket OpenBracket() const {
    return levels_.empty() || levels_.back().bracket == 0
               ? Bracket{}
               : Bracket{levels_.back().node.place, levels_.back().bracket};
  }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Refuse(mark, "?", anchor);
    Add(mark, Node{});
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    Complain(mark, "aliases (*name) are not allowed in a config; write the value out, or use extends");
    Add(mark, Node{});
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    Refuse(mark, tag, anchor);
    Node node;
    node.kind = Node::Kind::kScalar;
    node.text = value;
    node.quoted = tag == "!";
    Add(mark, std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value style) override {
    Refuse(mark, tag, anchor);
    Open(mark, Node::Kind::kList, style == YAML::EmitterStyle::Flow ? '[' : 0);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value style) override {
    Refuse(mark, tag, anchor);
    Open(mark, Node::Kind::kMap, style == YAML::EmitterStyle::Flow ? '{' : 0);
  }
  void OnMapEnd() override { Close(); }

 private:
  struct Level {
    Node node;
    char bracket = 0;  // that opened it; 0: it is indented
    bool has_key = false;
    std::string key;
    Place key_place;
  };

  Place At(const YAML::Mark& mark) const {
    Place place = place_;
    if (!place.override) place.line = mark.line + 1;
    return place;
  }
  void Complain(const YAML::Mark& mark, const std::string& text) {
    if (!stopped_) problems_.push_back({At(mark), text});
  }
  void Refuse(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != 0)
      Complain(mark, "anchors (&name) are not allowed in a config; write the value out, or use extends");
    if (!tag.empty() && tag != "?" && tag != "!")
      Complain(mark, "tags (" + tag + ") are not allowed in a config; remove it");
  }
  // Whether one more value fits, which opens a level of its own or not.
  bool Count(const YAML::Mark& mark, int64_t opens) {
    if (++nodes_ <= kMaxYamlNodes && static_cast<int64_t>(levels_.size()) + opens <= kMaxYamlDepth)
      return true;
    Complain(mark,
             nodes_ > kMaxYamlNodes
                 ? "more than " + std::to_string(kMaxYamlNodes) + " values; this is no config"
                 : "nested deeper than " + std::to_string(kMaxYamlDepth) + " levels; this is no config");
    stopped_ = true;
    return false;
  }
  void Open(const YAML::Mark& mark, Node::Kind kind, char bracket) {
    if (stopped_ || !Count(mark, 1)) {
      ++ignored_;
      return;
    }
    Level level;
    level.node.kind = kind;
    level.node.place = At(mark);
    level.bracket = bracket;
    levels_.push_back(std::move(level));
  }
  void Close() {
    if (ignored_ > 0) {
      --ignored_;
      return;
    }
    if (levels_.empty()) return;
    Node node = std::move(levels_.back().node);
    levels_.pop_back();
    Put(std::move(node));
  }
  void Add(const YAML::Mark& mark, Node node) {
    if (stopped_ || !Count(mark, 0)) return;
    node.place = At(mark);
    Put(std::move(node));
  }
  void Put(Node node) {
    if (levels_.empty()) {
      root = std::move(node);
      return;
    }
    Level& level = levels_.back();
    if (level.node.kind == Node::Kind::kList) {
      level.node.items.push_back(std::move(node));
    } else if (!level.has_key) {
      level.has_key = true;
      level.key = node.text;
      level.key_place = node.place;
      if (node.kind != Node::Kind::kScalar)
        problems_.push_back({node.place, "a key is " + node.Describe() + "; expected a name"});
    } else {
      level.has_key = false;
      // A value is where its key is: that is the line to look at, also for values on the next line.
      node.place = level.key_place;
      // `{path:a}` and `{held_out 8}` are keys without a value, which would be passed over.
      if (node.kind == Node::Kind::kNull && level.key.find_first_of(" :") != std::string::npos) {
        problems_.push_back(
            {node.place,
             "'" + level.key +
                 "' is no key and value; write a key, a colon and a blank before the value: key: value"});
      }
      if (const Node* first = level.node.Find(level.key)) {
        problems_.push_back({level.key_place, level.key + ": written twice, first at " +
                                                  first->place.ToString() + "; keep one of the two"});
      } else {
        level.node.members.emplace_back(std::move(level.key), std::move(node));
      }
    }
  }

  const Place& place_;
  std::vector<Problem>& problems_;
  std::vector<Level> levels_;
  int64_t nodes_ = 0;
  int64_t ignored_ = 0;
  bool stopped_ = false;
};

// yaml-cpp's words in ours, where a person would not know what to look for.
std::string InWords(const std::string& said) {
  if (said == "illegal flow end") return "a ] or } that closes nothing, or closes the other kind of bracket";
  if (said == "end of map not found" || said == "end of sequence not found")
    return "this line is indented as none above it that it could belong to";
  if (said == "illegal map value") return "a second colon in a line; a text that has one stands in quotes";
  return said;
}

}  // namespace

std::string Place::ToString() const {
  if (override) return "override '" + source + "'";
  return line > 0 ? source + ":" + std::to_string(line) : source;
}

Node::~Node() = default;

const Node* Node::Find(std::string_view key) const {
  for (const auto& [name, node] : members) {
    if (name == key) return &node;
  }
  return nullptr;
}

Node* Node::Find(std::string_view key) {
  return const_cast<Node*>(static_cast<const Node*>(this)->Find(key));
}

std::string Node::Describe() const {
  switch (kind) {
    case Kind::kNull:
      return "nothing";
    case Kind::kList:
      return "a list";
    case Kind::kMap:
      return "a group of keys";
    case Kind::kScalar:
      break;
  }
  const std::string shown = text.size() > 60 ? text.substr(0, 57) + "..." : text;
  return TypeOf(*this) == ScalarType::kText ? "text '" + shown + "'" : shown;
}

ScalarType TypeOf(const Node& scalar) {
  if (scalar.quoted) return ScalarType::kText;
  if (scalar.text == "true" || scalar.text == "false") return ScalarType::kBool;
  if (LooksLikeInt(scalar.text)) return ScalarType::kInt;
  double value = 0;
  return ParseFloat(scalar.text, value) ? ScalarType::kFloat : ScalarType::kText;
}

Node ParseYaml(std::string_view text, const Place& place, std::vector<Problem>& problems) {
  Node empty;
  empty.kind = Node::Kind::kMap;
  empty.place = place;
  if (static_cast<int64_t>(text.size()) > kMaxYamlBytes) {
    problems.push_back({place, "has " + std::to_string(text.size()) + " bytes; a config has at most " +
                                   std::to_string(kMaxYamlBytes)});
    return empty;
  }
  TreeBuilder builder(place, problems);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) return place.override ? Node{} : empty;  // a.b=
    TreeBuilder second(place, problems);
    if (parser.HandleNextDocument(second))
      problems.push_back({place, "holds more than one YAML document (---); a config is one"});
  } catch (const YAML::Exception& e) {
    Place at = place;
    if (!place.override && e.mark.line >= 0) at.line = e.mark.line + 1;
    const TreeBuilder::Bracket open = builder.OpenBracket();
    if (open.opens != 0 && e.msg.find("flow not found") != std::string::npos) {
      // It is noticed lines below, where something does not fit.
      problems.push_back(
          {open.place,
           std::string("not valid YAML: the ") + open.opens + " that is opened here is not closed" +
               (at.line > open.place.line ? " (noticed in line " + std::to_string(at.line) + ")" : "") +
               "; write " + (open.opens == '[' ? "]" : "}") + " at its end, and a comma between two values"});
      return empty;
    }
    problems.push_back({at, "not valid YAML: " + InWords(e.msg)});
    return empty;
  } catch (const std::exception& e) {
    problems.push_back({place, std::string("cannot be parsed: ") + e.what()});
    return empty;
  }
  if (builder.root.kind == Node::Kind::kNull && !place.override) return empty;
  return std::move(builder.root);
}

void MergeInto(Node& base, Node over) {
  if (base.kind != Node::Kind::kMap || over.kind != Node::Kind::kMap) {
    base = std::move(over);
    return;
  }
  for (auto& [key, value] : over.members) {
    if (value.kind == Node::Kind::kNull) {
      std::erase_if(base.members, [&key = key](const auto& member) { return member.first == key; });
    } else if (Node* old = base.Find(key)) {
      MergeInto(*old, std::move(value));
    } else {
      base.members.emplace_back(key, std::move(value));
    }
  }
}

bool SetAt(Node& root, std::string_view path, Node value, std::string& why) {
  Node* at = &root;
  const Place place = value.place;
  while (true) {
    const size_t dot = path.find('.');
    const std::string key(path.substr(0, dot));
    const bool last = dot == std::string_view::npos;
    if (key.empty()) {
      why = "expected names with single points between them";
      return false;
    }
    if (at->kind == Node::Kind::kList) {
      int64_t index = 0;
      if (!ParseInt(key, index) || index < 0 || index >= static_cast<int64_t>(at->items.size())) {
        why = "the list has " + std::to_string(at->items.size()) +
              " items; expected a number from 0 in place of '" + key + "'";
        return false;
      }
      at = &at->items[static_cast<size_t>(index)];
    } else {
      if (at->kind == Node::Kind::kNull) at->kind = Node::Kind::kMap;
      if (at->kind != Node::Kind::kMap) {
        why = "'" + key + "' would be a key of " + at->Describe() + ", which has none";
        return false;
      }
      if (last && value.kind == Node::Kind::kNull) {
        std::erase_if(at->members, [&](const auto& member) { return member.first == key; });
        return true;
      }
      if (at->Find(key) == nullptr) {
        Node fresh;
        fresh.place = place;
        at->members.emplace_back(key, std::move(fresh));
      }
      at = at->Find(key);
    }
    if (last) {
      *at = std::move(value);
      return true;
    }
    path.remove_prefix(dot + 1);
  }
}

nlohmann::json ToJson(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kNull:
      return nullptr;
    case Node::Kind::kList: {
      nlohmann::json list = nlohmann::json::array();
      for (const Node& item : node.items) list.push_back(ToJson(item));
      return list;
    }
    case Node::Kind::kMap: {
      nlohmann::json map = nlohmann::json::object();
      for (const auto& [key, value] : node.members) map[key] = ToJson(value);
      return map;
    }
    case Node::Kind::kScalar:
      break;
  }
  int64_t whole = 0;
  double number = 0;
  switch (TypeOf(node)) {
    case ScalarType::kBool:
      return node.text == "true";
    case ScalarType::kInt:
      if (ParseInt(node.text, whole)) return whole;
      return node.text;
    case ScalarType::kFloat:
      ParseFloat(node.text, number);
      return number;
    case ScalarType::kText:
      break;
  }
  return node.text;
}

}  // namespace tidepool::config
