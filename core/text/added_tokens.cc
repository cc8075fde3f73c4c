#include "core/text/added_tokens.h"

#include <algorithm>
#include <map>

#include "core/base/utf8.h"
#include "core/text/unicode.h"

namespace tidepool::text {
namespace {

bool EndsWithWord(std::string_view text) {
  if (text.empty()) return false;
  return IsWord(DecodeAt(text, CharacterStart(text, text.size() - 1)).value);
}
bool StartsWithWord(std::string_view text) { return !text.empty() && IsWord(DecodeAt(text, 0).value); }

// Where the white space at the end of text[0, end) begins, not before `limit`.
size_t SpaceBefore(std::string_view text, size_t end, size_t limit) {
  while (end > limit) {
    const size_t at = CharacterStart(text, end - 1);
    if (!IsSpace(DecodeAt(text, at).value)) break;
    end = at;
  }
  return std::max(end, limit);
}
size_t SpaceAfter(std::string_view text, size_t at) {
  while (at < text.size()) {
    const CodePoint c = DecodeAt(text, at);
    if (!IsSpace(c.value)) break;
    at += c.bytes;
  }
  return at;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  struct Building {
    std::map<unsigned char, uint32_t> children;
    int32_t token = -1;
  };
  std::vector<Building> trie(1);
  for (size_t i = 0; i < tokens_.size(); ++i) {
    uint32_t node = 0;
    for (const char c : tokens_[i].content) {
      const auto [child, is_new] =
          trie[node].children.try_emplace(static_cast<unsigned char>(c), static_cast<uint32_t>(trie.size()));
      node = child->second;
      if (is_new) trie.emplace_back();
    }
    if (trie[node].token < 0) trie[node].token = static_cast<int32_t>(i);  // the first of equal ones
  }
  for (const Building& building : trie) {
    nodes_.push_back({static_cast<uint32_t>(edges_.size()), static_cast<uint32_t>(building.children.size()),
                      building.token});
    for (const auto& [byte, child] : building.children) edges_.push_back({byte, child});
  }
  for (const auto& [byte, child] : trie[0].children) root_child_[byte] = child;
}

int32_t AddedTokenFinder::LongestAt(std::string_view text, size_t at) const {
  uint32_t node = root_child_[static_cast<unsigned char>(text[at])];
  if (node == 0) return -1;
  int32_t best = nodes_[node].token;
  for (size_t i = at + 1; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const Edge* begin = edges_.data() + nodes_[node].first_edge;
    const Edge* end = begin + nodes_[node].edges;
    const Edge* edge =
        std::lower_bound(begin, end, byte, [](const Edge& e, unsigned char b) { return e.byte < b; });
    if (edge == end || edge->byte != byte) break;
    node = edge->node;
    if (nodes_[node].token >= 0) best = nodes_[node].token;
  }
  return best;
}

void AddedTokenFinder::Find(std::string_view text, std::vector<Segment>* segments) const {
  size_t done = 0;  // everything before it is in `segments`
  for (size_t at = 0; at < text.size();) {
    const int32_t index = LongestAt(text, at);
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    size_t begin = at;
    size_t end = at + token.content.size();
    at = end;
    if (token.single_word && (EndsWithWord(text.substr(0, begin)) || StartsWithWord(text.substr(end))))
      continue;
    if (token.lstrip) begin = std::max(done, SpaceBefore(text, begin, std::min(done, begin)));
    if (token.rstrip) end = SpaceAfter(text, end);
    if (begin >= end) continue;  // white space that the token before has taken
    if (begin > done) segments->push_back({text.substr(done, begin - done), -1});
    segments->push_back({text.substr(begin, end - begin), token.id});
    done = end;
  }
  if (done < text.size()) segments->push_back({text.substr(done), -1});
}

}  // namespace tidepool::text
