#include "core/engine/prefix_tree.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "core/base/check.h"
#include "core/base/hash.h"

namespace tidepool::engine {

PrefixTree::PrefixTree(BlockPool& pool, int64_t block_tokens)
    : pool_(pool), block_tokens_(block_tokens), nodes_(static_cast<size_t>(pool.total())) {}

uint64_t PrefixTree::KeyOf(int32_t parent, std::span<const int32_t> tokens) const {
  const uint64_t chain = parent < 0 ? static_cast<uint64_t>(RootOf(kOwnWeights) - parent)
                                    : nodes_[static_cast<size_t>(parent)].key;
  return Hash64(std::as_bytes(tokens), Mix64(chain ^ tokens.size()));
}

int32_t PrefixTree::Child(int32_t parent, std::span<const int32_t> tokens) const {
  const auto [begin, end] = by_key_.equal_range(KeyOf(parent, tokens));
  for (auto it = begin; it != end; ++it) {
    const Node& node = nodes_[static_cast<size_t>(it->second)];
    if (node.parent == parent && std::ranges::equal(node.tokens, tokens)) return it->second;
  }
  return -1;
}

PrefixTree::Match PrefixTree::Find(std::span<const int32_t> tokens, int32_t adapter) const {
  Match match;
  const auto n = static_cast<int64_t>(tokens.size());
  int32_t parent = RootOf(adapter);
  int64_t at = 0;
  while (at + block_tokens_ <= n) {
    const int32_t child =
        Child(parent, tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(block_tokens_)));
    if (child < 0) break;
    const bool ends_here = at + block_tokens_ == n;
    if (ends_here && nodes_[static_cast<size_t>(child)].state.empty()) break;
    match.full.push_back(child);
    match.complete = ends_here;
    parent = child;
    at += block_tokens_;
  }
  if (match.complete) return match;
  for (int64_t len = std::min(block_tokens_ - 1, n - at); len > 0; --len) {
    const int32_t child = Child(parent, tokens.subspan(static_cast<size_t>(at), static_cast<size_t>(len)));
    if (child < 0) continue;
    const bool ends_here = at + len == n;
    if (ends_here && nodes_[static_cast<size_t>(child)].state.empty()) continue;
    match.tail = child;
    match.tail_tokens = len;
    match.complete = ends_here;
    break;
  }
  return match;
}

int32_t PrefixTree::Insert(int32_t parent, std::span<const int32_t> tokens, int32_t block,
                           const Owner& owner) {
  const auto count = static_cast<int64_t>(tokens.size());
  TP_CHECK(count > 0 && count <= block_tokens_) << count << " tokens in a block of " << block_tokens_;
  TP_CHECK(parent == RootOf(owner.adapter) ||
           (parent >= 0 && nodes_[static_cast<size_t>(parent)].owner.adapter == owner.adapter &&
            Contains(parent) &&
            static_cast<int64_t>(nodes_[static_cast<size_t>(parent)].tokens.size()) == block_tokens_))
      << "block " << parent << " cannot be a parent";
  if (const int32_t known = Child(parent, tokens); known >= 0) return known;
  Node& node = nodes_[static_cast<size_t>(block)];
  TP_CHECK(!node.present && pool_.refs(block) > 0) << "block " << block;
  node.present = true;
  node.parent = parent;
  node.children = 0;
  node.depth = 0;
  if (parent >= 0) {
    Node& up = nodes_[static_cast<size_t>(parent)];
    ++up.children;
    node.depth = up.depth + 1;
  }
  node.key = KeyOf(parent, tokens);
  node.owner = owner;
  node.tokens.assign(tokens.begin(), tokens.end());
  node.state.clear();
  by_key_.emplace(node.key, block);
  by_group_[{owner.adapter, owner.gid}].insert(block);
  if (owner.tid) by_sample_[{owner.adapter, *owner.tid}].insert(block);
  pool_.SetCached(block, true, node.depth);
  return block;
}

void PrefixTree::SetState(int32_t block, std::span<const std::byte> state) {
  Node& node = nodes_[static_cast<size_t>(block)];
  TP_CHECK(node.present) << "block " << block;
  node.state.assign(state.begin(), state.end());
}

std::span<const std::byte> PrefixTree::state(int32_t block) const {
  return nodes_[static_cast<size_t>(block)].state;
}

namespace {
template <typename K>
void EraseFrom(std::map<K, std::set<int32_t>>& index, const std::type_identity_t<K>& key, int32_t block) {
  const auto it = index.find(key);
  if (it == index.end()) return;
  it->second.erase(block);
  if (it->second.empty()) index.erase(it);
}
}  // namespace

void PrefixTree::EraseKey(int32_t block) {
  const auto [begin, end] = by_key_.equal_range(nodes_[static_cast<size_t>(block)].key);
  const auto it = std::find_if(begin, end, [&](const auto& entry) { return entry.second == block; });
  if (it != end) by_key_.erase(it);
}

void PrefixTree::Remove(int32_t block) {
  Node& node = nodes_[static_cast<size_t>(block)];
  TP_CHECK(node.present && node.children == 0)
      << "block " << block << " has " << node.children << " children";
  if (node.parent >= 0) --nodes_[static_cast<size_t>(node.parent)].children;
  EraseKey(block);
  const Owner& owner = node.owner;
  EraseFrom(by_group_, {owner.adapter, owner.gid}, block);
  if (owner.tid) EraseFrom(by_sample_, {owner.adapter, *owner.tid}, block);
  node = Node{};
  pool_.SetCached(block, false);
}

void PrefixTree::ForgetBlocks(const std::set<int32_t>& kept) {
  std::vector<int32_t> blocks(kept.begin(), kept.end());  // Remove() takes them out of `kept`
  // Deepest first, so that a parent has lost its children when its turn comes.
  std::ranges::sort(blocks, [&](int32_t a, int32_t b) {
    return std::pair(-nodes_[static_cast<size_t>(a)].depth, a) <
           std::pair(-nodes_[static_cast<size_t>(b)].depth, b);
  });
  for (const int32_t block : blocks) {
    if (pool_.refs(block) == 0 && IsLeaf(block)) Remove(block);
  }
}

std::vector<PrefixTree::Chain> PrefixTree::Chains(int32_t adapter) const {
  std::vector<Chain> chains;
  for (const auto& [key, blocks] : by_sample_) {
    if (key.first != adapter) continue;
    const auto deepest =
        std::ranges::max_element(blocks, {}, [&](int32_t b) { return nodes_[static_cast<size_t>(b)].depth; });
    Chain chain{.tid = key.second,
                .gid = nodes_[static_cast<size_t>(*deepest)].owner.gid,
                .blocks = {},
                .tokens = {}};
    for (int32_t b = *deepest; b >= 0; b = nodes_[static_cast<size_t>(b)].parent) chain.blocks.push_back(b);
    std::ranges::reverse(chain.blocks);
    for (const int32_t b : chain.blocks) {
      const std::vector<int32_t>& tokens = nodes_[static_cast<size_t>(b)].tokens;
      chain.tokens.insert(chain.tokens.end(), tokens.begin(), tokens.end());
    }
    chains.push_back(std::move(chain));
  }
  return chains;
}

void PrefixTree::Forget(const SampleId& tid, int32_t adapter) {
  const auto it = by_sample_.find({adapter, tid});
  if (it != by_sample_.end()) ForgetBlocks(it->second);
}

void PrefixTree::ForgetGroup(GroupId gid, int32_t adapter) {
  const auto it = by_group_.find({adapter, gid});
  if (it != by_group_.end()) ForgetBlocks(it->second);
}

void PrefixTree::Clear() {
  for (size_t b = 0; b < nodes_.size(); ++b) {
    if (!nodes_[b].present) continue;
    nodes_[b] = Node{};
    pool_.SetCached(static_cast<int32_t>(b), false);
  }
  by_key_.clear();
  by_sample_.clear();
  by_group_.clear();
}

void PrefixTree::Clear(int32_t adapter) {
  const auto of = [adapter](const auto& entry) { return entry.first.first == adapter; };
  std::erase_if(by_sample_, of);
  std::erase_if(by_group_, of);
  for (size_t b = 0; b < nodes_.size(); ++b) {
    if (!nodes_[b].present || nodes_[b].owner.adapter != adapter) continue;
    EraseKey(static_cast<int32_t>(b));
    nodes_[b] = Node{};
    pool_.SetCached(static_cast<int32_t>(b), false);
  }
}

}  // namespace tidepool::engine
