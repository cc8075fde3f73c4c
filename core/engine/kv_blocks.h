#pragma once
// Places requests in the KV cache: which blocks they share, copy, are promised, and leave behind.
//
// Rules:
//  - A request is promised every block to the end of its chunk before it starts.
//  - Nothing of one adapter (Sequence::adapter) serves another.
//  - Full blocks that are known are shared. A known tail (partly filled block) is taken over where it is
//    the request's own from an earlier chunk, else copied: no block that others may read is written.
//  - A request that begins like one whose prompt is still being computed follows it (Sequence::leader)
//    as far as both agree: to the end of the prompt where it is the same, else to a full block.
// Bookkeeping only; slots are copied by the function given. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "core/engine/block_pool.h"
#include "core/engine/prefix_tree.h"
#include "core/engine/sequence.h"

namespace tidepool::engine {

class KvBlocks {
 public:
  using CopySlots = std::function<void(int64_t from_slot, int64_t to_slot, int64_t count)>;
  KvBlocks(int64_t blocks, int64_t block_tokens, CopySlots copy);
  KvBlocks(const KvBlocks&) = delete;  // the pool calls back into the tree
  KvBlocks& operator=(const KvBlocks&) = delete;

  [[nodiscard]] int64_t block_tokens() const { return block_tokens_; }
  [[nodiscard]] int64_t BlocksFor(int64_t tokens) const {
    return (tokens + block_tokens_ - 1) / block_tokens_;
  }
  [[nodiscard]] const BlockPool& pool() const { return pool_; }
  [[nodiscard]] PrefixTree& tree() { return tree_; }

  // Places `s` (not placed) beside `running`. False: it does not fit now, nothing changed. True: it holds
  // its shared blocks and promises, or follows a leader. With s.sample_state set no row is needed.
  [[nodiscard]] bool Place(Sequence& s, const std::vector<Sequence*>& running);
  // The leader of `s` has computed what it waited for: places it for good (or behind the next leader).
  [[nodiscard]] bool Attach(Sequence& s, const std::vector<Sequence*>& running);

  // Allocates blocks so that tokens [0, tokens) are covered. requires a promise for each.
  void Cover(Sequence& s, int64_t tokens);

  // s.computed has just grown from `before`: full blocks of the prompt go into the tree, and at the
  // prompt's end its tail, with `prompt_state` (final hidden state of its last token).
  void Publish(Sequence& s, int64_t before, std::span<const std::byte> prompt_state);
  // After the followers of this step attached: a tail that was put into the tree is exchanged for a copy
  // of its own, or taken back where no block is left for one.
  void SettleTail(Sequence& s);

  // Gives back everything. `keep`: computed blocks stay findable for the sample's next chunk.
  void Release(Sequence& s, bool keep);

  // An adapter's weights have changed and KV of before goes on serving the requests that it was made for:
  // those of `running`, all of them of it (none follows a leader, all have their prompt computed) and the
  // next chunks of samples that wait between two. It is theirs alone from now on; the tree has nothing of it,
  // so new requests start with clean KV.
  void TurnStale(const std::vector<Sequence*>& running, int32_t adapter = kOwnWeights);

  void Forget(const SampleId& tid, int32_t adapter = kOwnWeights);
  void ForgetGroup(GroupId gid, int32_t adapter = kOwnWeights);
  void Tick() { pool_.Tick(); }
  // Nothing cached any more, of any or of one adapter. requires that no request is placed, or none of it.
  void Clear();
  void Clear(int32_t adapter);

 private:
  void FindLeader(const Sequence& s, const std::vector<Sequence*>& running, int64_t matched,
                  Sequence** leader, int64_t* follow_tokens) const;
  // Holds `node` in place of `mine`: two requests computed one block at once, and the tree keeps the
  // first. Holding it also keeps it from being evicted before what is put behind it.
  void Exchange(int32_t node, int32_t& mine);

  // KV of older weights between two chunks of its sample. Holds its blocks; the oldest goes where room is
  // needed.
  struct Kept {
    GroupId gid;
    std::vector<int32_t> blocks;
    std::vector<int32_t> tokens;  // that the blocks cover
    uint64_t order = 0;
  };
  using KeptMap = std::map<std::pair<int32_t, SampleId>, Kept>;  // by the adapter, too
  void Keep(const KeptMap::key_type& of, Kept kept);
  KeptMap::iterator Drop(KeptMap::iterator it);  // returns the next
  // Gives up kept KV, oldest first and not that of `but`, until `need` blocks are available. False: they are
  // not.
  bool MakeRoom(int64_t need, const KeptMap::key_type& but);
  bool PlaceKept(Sequence& s);

  const int64_t block_tokens_;
  CopySlots copy_;
  KeptMap kept_;
  uint64_t kept_order_ = 0;
  BlockPool pool_;
  PrefixTree tree_;
};

}  // namespace tidepool::engine
