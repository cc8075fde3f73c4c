#pragma once
// Tokens that are found in the text before it is split into words, such as <|im_end|>.
//
// At each place the longest token that starts there is taken, from left to right without overlap.
// Tokens with `normalized: false` are looked for in the text as it is; then what is left is
// normalised, and the others are looked for in that. Immutable; thread-safe.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool::text {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // only where no word character (\w) is next to it
  bool lstrip = false;       // takes the white space before it as well
  bool rstrip = false;       // and after it
  bool normalized = false;
  bool special = false;
};

// A stretch of text: a token, or text to be split further (id -1).
struct Segment {
  std::string_view text;
  int32_t id = -1;
};

class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  // requires non-empty contents
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);
  [[nodiscard]] bool empty() const { return tokens_.empty(); }
  // Appends the segments of `text` (valid UTF-8), none of them empty.
  void Find(std::string_view text, std::vector<Segment>* segments) const;

 private:
  struct Node {  // of a trie over bytes; children of a node are a sorted run of edges_
    uint32_t first_edge = 0;
    uint32_t edges = 0;
    int32_t token = -1;  // index into tokens_
  };
  struct Edge {
    unsigned char byte = 0;
    uint32_t node = 0;
  };
  // Index of the longest token at `at`, or -1.
  [[nodiscard]] int32_t LongestAt(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  uint32_t root_child_[256] = {};  // 0: no token starts with that byte
};

}  // namespace tidepool::text
