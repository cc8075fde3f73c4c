#include "core/config/extending.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/config/schema.h"
#include "core/config/yaml_tree.h"

namespace tidepool::config {
namespace {

// A null, which SetAt would not keep. One that is read without quotes is no text.
constexpr const char* kTakenAway = "null";

// A comment is one line.
std::string OneLine(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  std::ranges::replace(text, '\r', ' ');
  return text;
}

std::string Flow(const Node& node) {
  std::string out;
  switch (node.kind) {
    case Node::Kind::kNull:
      return "null";
    case Node::Kind::kScalar:
      if (!node.quoted && node.text == kTakenAway) return node.text;
      return node.quoted || TypeOf(node) == ScalarType::kText ? TextAsYaml(node.text) : node.text;
    case Node::Kind::kList:
      for (const Node& item : node.items) out += (out.empty() ? "" : ", ") + Flow(item);
      return "[" + out + "]";
    case Node::Kind::kMap:
      for (const auto& [key, value] : node.members)
        out += (out.empty() ? "" : ", ") + TextAsYaml(key) + ": " + Flow(value);
      return "{" + out + "}";
  }
  return out;
}

void Write(const Node& map, const std::string& path, const std::string& indent,
           const std::map<std::string, std::string>& comments, std::string& out) {
  for (const auto& [key, value] : map.members) {
    const std::string full = path.empty() ? key : path + "." + key;
    const auto comment = comments.find(full);
    std::string line = indent + TextAsYaml(key) + ":";
    const bool opens = value.kind == Node::Kind::kMap && !value.members.empty() && comment == comments.end();
    if (!opens) line += " " + Flow(value);
    if (comment != comments.end() && !comment->second.empty()) line += "  # " + OneLine(comment->second);
    out += line + "\n";
    if (opens) Write(value, full, indent + "  ", comments, out);
  }
}

}  // namespace

StatusOr<std::string> ExtendingYaml(const Extension& extension) {
  Node root;
  root.kind = Node::Kind::kMap;
  std::map<std::string, std::string> comments;
  for (const Extension::Value& v : extension.values) {
    std::vector<Problem> problems;
    Node value = ParseYaml(v.value, {.source = v.key, .override = true}, problems);
    if (!problems.empty()) return InvalidArgument(v.key + ": " + problems.front().text);
    // To say in a file that an inherited key goes, too.
    if (value.kind == Node::Kind::kNull) {
      value.kind = Node::Kind::kScalar;
      // a.b= is the empty text
      value.quoted = v.value.find_first_not_of(' ') == std::string::npos;
      value.text = value.quoted ? "" : kTakenAway;
    }
    std::string why;
    if (!SetAt(root, v.key, std::move(value), why)) return InvalidArgument(v.key + ": " + why);
    comments[v.key] = v.comment;
  }
  std::string out;
  for (const std::string& line : extension.head) out += "# " + OneLine(line) + "\n";
  out += "extends: " + TextAsYaml(extension.extends) + "\n";
  Write(root, "", "", comments, out);
  return out;
}

}  // namespace tidepool::config
