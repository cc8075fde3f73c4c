#pragma once
// Finds KV that was computed before: a tree of blocks over token ids.
//
// A node is one block of the pool that holds the KV of some tokens behind its parent's: exactly
// block_tokens of them, or fewer (a tail, which never has children). It is found by a hash chain over
// (parent, token ids) and then compared token by token, so a collision cannot lend wrong KV. Each adapter
// (request.h) has a root of its own, and all that stands behind it belongs to one version of its weights: a
// new version clears it. KV of a running request is in
// the tree from the moment a prompt block is full; a request that ends leaves its own blocks behind
// only where a later chunk may need them. Nodes are protected by references of the pool; a node
// without any is evictable. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "core/base/own_weights.h"
#include "core/engine/block_pool.h"

namespace tidepool::engine {

class PrefixTree {
 public:
  // In the place of a parent's block, which is >= 0.
  static constexpr int32_t RootOf(int32_t adapter) { return kOwnWeights - 1 - (adapter - kOwnWeights); }

  // Whom a node is kept for: a group's prompt, or the tokens of one of its samples.
  struct Owner {
    GroupId gid;
    std::optional<SampleId> tid;  // empty: the prompt
    int32_t adapter = kOwnWeights;
  };

  // The longest known prefix of some tokens.
  struct Match {
    std::vector<int32_t> full;  // blocks, each block_tokens tokens
    int32_t tail = -1;          // block of a node with the next tail_tokens tokens; -1: none
    int64_t tail_tokens = 0;
    bool complete = false;  // all tokens are covered, and state() of the last node is there
    [[nodiscard]] int64_t tokens(int64_t block_tokens) const {
      return static_cast<int64_t>(full.size()) * block_tokens + tail_tokens;
    }
    [[nodiscard]] int32_t last() const { return tail >= 0 ? tail : full.empty() ? -1 : full.back(); }
  };

  PrefixTree(BlockPool& pool, int64_t block_tokens);

  // Covers at most tokens.size() - 1 tokens (the last one must be fed to get logits), unless the state
  // behind the last one is known. Takes no references.
  [[nodiscard]] Match Find(std::span<const int32_t> tokens, int32_t adapter = kOwnWeights) const;

  // Puts `block` (refs > 0) behind `parent`, a block or the root of the owner's adapter. Returns the node's
  // block: `block`, or that of an equal node that was there before (then nothing changed).
  // requires 1..block_tokens tokens and a full parent.
  int32_t Insert(int32_t parent, std::span<const int32_t> tokens, int32_t block, const Owner& owner);

  // Final hidden state (bytes) behind the last token of a node: what the LM head needs for the token
  // after a prompt, so that siblings that come later compute no row at all. Empty: unknown.
  void SetState(int32_t block, std::span<const std::byte> state);
  [[nodiscard]] std::span<const std::byte> state(int32_t block) const;

  [[nodiscard]] bool Contains(int32_t block) const { return nodes_[static_cast<size_t>(block)].present; }
  [[nodiscard]] const Owner& owner(int32_t block) const { return nodes_[static_cast<size_t>(block)].owner; }
  [[nodiscard]] bool IsLeaf(int32_t block) const { return nodes_[static_cast<size_t>(block)].children == 0; }
  // Takes a node out; its block is freed if nobody holds it. requires IsLeaf(block).
  void Remove(int32_t block);

  // What is kept for each sample of an adapter: its blocks from the root on, the prompt's included, and their
  // tokens.
  struct Chain {
    SampleId tid;
    GroupId gid;
    std::vector<int32_t> blocks;
    std::vector<int32_t> tokens;
  };
  [[nodiscard]] std::vector<Chain> Chains(int32_t adapter = kOwnWeights) const;

  // Takes out every node that is kept for this sample (or for this group and its samples), that nobody
  // holds and nothing stands behind.
  void Forget(const SampleId& tid, int32_t adapter = kOwnWeights);
  void ForgetGroup(GroupId gid, int32_t adapter = kOwnWeights);
  // Takes out all nodes, or those of an adapter; blocks that requests hold stay theirs.
  void Clear();
  void Clear(int32_t adapter);

 private:
  struct Node {
    bool present = false;
    int32_t parent = -1;
    int32_t children = 0;
    int32_t depth = 0;
    uint64_t key = 0;
    Owner owner;
    std::vector<int32_t> tokens;
    std::vector<std::byte> state;
  };
  [[nodiscard]] uint64_t KeyOf(int32_t parent, std::span<const int32_t> tokens) const;
  [[nodiscard]] int32_t Child(int32_t parent, std::span<const int32_t> tokens) const;  // -1: none
  void EraseKey(int32_t block);                                                        // from by_key_
  void ForgetBlocks(const std::set<int32_t>& kept);

  BlockPool& pool_;
  const int64_t block_tokens_;
  std::vector<Node> nodes_;                                              // by block
  std::unordered_multimap<uint64_t, int32_t> by_key_;                    // only looked up, never walked
  std::map<std::pair<int32_t, SampleId>, std::set<int32_t>> by_sample_;  // by the adapter, too
  std::map<std::pair<int32_t, GroupId>, std::set<int32_t>> by_group_;
};

}  // namespace tidepool::engine
