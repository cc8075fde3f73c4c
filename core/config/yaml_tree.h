#pragma once
// A YAML text as a small tree in which every value knows where it was written.
//
// Bounded on purpose, because a config may come from anywhere: at most 1 MB, 64 levels, 100 000
// nodes, one document; anchors, aliases and tags are refused, as are duplicate keys and keys that
// are no plain text. yaml-cpp's exceptions stop here. Plain data and pure functions.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tidepool::config {

// Where a value was written.
struct Place {
  std::string source;  // path of the file as the user gave it, or the text of an override
  int64_t line = 0;    // from 1; 0: an override, or a whole file
  bool override = false;
  // "configs/x.yaml:7", "override 'a.b=c'"
  [[nodiscard]] std::string ToString() const;
};

// One complaint about a config.
struct Problem {
  Place place;
  std::string text;  // "key: what was found; what to do"
};

struct Node {
  Node() = default;
  Node(const Node&) = default;
  Node(Node&&) = default;
  Node& operator=(const Node&) = default;
  Node& operator=(Node&&) = default;
  ~Node();  // not here: clang 14 would need it within the pair of the members

  enum class Kind { kNull, kScalar, kList, kMap };
  Kind kind = Kind::kNull;
  std::string text;     // of a scalar
  bool quoted = false;  // a scalar in quotes (or a block) is text whatever it looks like
  std::vector<Node> items;
  std::vector<std::pair<std::string, Node>> members;  // in the order of the file; keys are unique
  Place place;

  [[nodiscard]] const Node* Find(std::string_view key) const;  // null if there is none
  [[nodiscard]] Node* Find(std::string_view key);
  // "text 'abc'", "a list", "12": how a message names it.
  [[nodiscard]] std::string Describe() const;
};

inline constexpr int64_t kMaxYamlBytes = 1 << 20;
inline constexpr int64_t kMaxYamlDepth = 64;
inline constexpr int64_t kMaxYamlNodes = 100'000;

// Complaints are appended to `problems`; the tree is usable only if there were none. An empty text
// is an empty map. An override's place has `override` set and keeps line 0.
Node ParseYaml(std::string_view text, const Place& place, std::vector<Problem>& problems);

// `over` on top of `base`: maps are merged key by key, everything else is replaced. A null value
// takes an inherited key away, as if it had never been written.
void MergeInto(Node& base, Node over);

// Sets "a.b.c" (numbers index lists: reward.functions.0.weight) to a value. False, with `why`, if
// the path does not exist in the shape of the tree (an index beyond a list, a key of a scalar).
bool SetAt(Node& root, std::string_view path, Node value, std::string& why);

// Scalars take their YAML 1.2 core type: null, true/false, integers, floats, else text.
nlohmann::json ToJson(const Node& node);
// What a plain scalar is.
enum class ScalarType { kBool, kInt, kFloat, kText };
ScalarType TypeOf(const Node& scalar);

}  // namespace tidepool::config
