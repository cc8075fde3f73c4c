#include "core/engine/kv_blocks.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/check.h"

namespace tidepool::engine {
namespace {

std::span<const int32_t> Slice(const std::vector<int32_t>& tokens, int64_t begin, int64_t count) {
  return std::span<const int32_t>(tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
}

}  // namespace

KvBlocks::KvBlocks(int64_t blocks, int64_t block_tokens, CopySlots copy)
    : block_tokens_(block_tokens),
      copy_(std::move(copy)),
      pool_(blocks, [this](int32_t block) { tree_.Remove(block); }),
      tree_(pool_, block_tokens) {}

void KvBlocks::FindLeader(const Sequence& s, const std::vector<Sequence*>& running, int64_t matched,
                          Sequence** leader, int64_t* follow_tokens) const {
  *leader = nullptr;
  *follow_tokens = matched;
  for (Sequence* other : running) {
    if (other == &s || other->adapter != s.adapter || other->leader != nullptr ||
        other->computed >= other->prompt_tokens)
      continue;
    const int64_t most = std::min(s.size(), other->prompt_tokens);
    const auto end = std::mismatch(s.tokens.begin(), s.tokens.begin() + most, other->tokens.begin()).first;
    const int64_t common = end - s.tokens.begin();
    const bool whole = common == s.prompt_tokens && common == other->prompt_tokens;
    // Short of a whole prompt the last token is fed by the request itself, for its logits.
    const int64_t until = whole ? common : std::min(common, s.size() - 1) / block_tokens_ * block_tokens_;
    if (until > *follow_tokens) {
      *leader = other;
      *follow_tokens = until;
    }
  }
}

void KvBlocks::Keep(const KeptMap::key_type& of, Kept kept) {
  kept.order = ++kept_order_;
  if (const auto it = kept_.find(of); it != kept_.end()) Drop(it);
  kept_.emplace(of, std::move(kept));
}

KvBlocks::KeptMap::iterator KvBlocks::Drop(KeptMap::iterator it) {
  for (const int32_t block : it->second.blocks) pool_.Unref(block);
  return kept_.erase(it);
}

bool KvBlocks::MakeRoom(int64_t need, const KeptMap::key_type& but) {
  while (need > pool_.Available()) {
    auto oldest = kept_.end();
    for (auto it = kept_.begin(); it != kept_.end(); ++it) {
      if (it->first != but && (oldest == kept_.end() || it->second.order < oldest->second.order)) oldest = it;
    }
    if (oldest == kept_.end()) return false;
    Drop(oldest);
  }
  return true;
}

// The next chunk of a sample whose KV is of older weights goes on with it.
bool KvBlocks::PlaceKept(Sequence& s) {
  const auto it = kept_.find({s.adapter, s.tid});
  Kept& kept = it->second;
  const int64_t computed = std::min(static_cast<int64_t>(kept.tokens.size()), s.size() - 1);
  const int64_t need =
      std::max<int64_t>(0, BlocksFor(s.chunk_end - 1) - static_cast<int64_t>(kept.blocks.size()));
  if (!MakeRoom(need, {s.adapter, s.tid})) return false;
  pool_.Promise(need);
  s.promised = need;
  s.blocks = std::move(kept.blocks);
  s.computed = computed;
  s.prompt_blocks_shared = 0;
  s.sample_state.clear();
  s.stale = true;
  kept_.erase(it);
  return true;
}

void KvBlocks::TurnStale(const std::vector<Sequence*>& running, int32_t adapter) {
  for (PrefixTree::Chain& chain : tree_.Chains(adapter)) {
    const bool placed = std::ranges::any_of(running, [&](const Sequence* s) { return s->tid == chain.tid; });
    if (placed) continue;
    for (const int32_t block : chain.blocks) pool_.Ref(block);
    Keep({adapter, chain.tid},
         {.gid = chain.gid, .blocks = std::move(chain.blocks), .tokens = std::move(chain.tokens)});
  }
  tree_.Clear(adapter);
  for (Sequence* s : running) {
    TP_CHECK(s->leader == nullptr && s->computed >= s->prompt_tokens && !s->tail_lent) << ToString(s->tid);
    s->stale = true;
    s->prompt_blocks_shared = 0;
    s->sample_state.clear();
  }
}

void KvBlocks::Forget(const SampleId& tid, int32_t adapter) {
  tree_.Forget(tid, adapter);
  if (const auto it = kept_.find({adapter, tid}); it != kept_.end()) Drop(it);
}

void KvBlocks::ForgetGroup(GroupId gid, int32_t adapter) {
  tree_.ForgetGroup(gid, adapter);
  for (auto it = kept_.begin(); it != kept_.end();)
    it = it->first.first == adapter && it->second.gid == gid ? Drop(it) : std::next(it);
}

void KvBlocks::Clear() {
  while (!kept_.empty()) Drop(kept_.begin());
  tree_.Clear();
}

void KvBlocks::Clear(int32_t adapter) {
  for (auto it = kept_.begin(); it != kept_.end();)
    it = it->first.first == adapter ? Drop(it) : std::next(it);
  tree_.Clear(adapter);
}

bool KvBlocks::Place(Sequence& s, const std::vector<Sequence*>& running) {
  TP_CHECK(s.blocks.empty() && s.promised == 0 && s.leader == nullptr) << ToString(s.tid) << " is placed";
  if (const auto it = kept_.find({s.adapter, s.tid}); it != kept_.end()) {
    const std::vector<int32_t>& tokens = it->second.tokens;
    const auto n = static_cast<ptrdiff_t>(std::min(tokens.size(), s.tokens.size()));
    if (tokens.size() <= s.tokens.size() && std::equal(tokens.begin(), tokens.begin() + n, s.tokens.begin()))
      return PlaceKept(s);
    Drop(it);  // of another attempt
  }
  const int64_t total = BlocksFor(s.chunk_end - 1);
  PrefixTree::Match match = tree_.Find(s.tokens, s.adapter);

  Sequence* leader = nullptr;
  int64_t follow_tokens = 0;
  FindLeader(s, running, match.tokens(block_tokens_), &leader, &follow_tokens);
  if (leader != nullptr) {
    const int64_t need = total - follow_tokens / block_tokens_;
    if (!MakeRoom(need, {s.adapter, s.tid})) return false;
    pool_.Promise(need);
    s.promised = need;
    s.leader = leader;
    s.follow_tokens = follow_tokens;
    return true;
  }

  // Blocks that are cached now stop being evictable once they are held.
  const auto idle = [&](int32_t block) { return pool_.refs(block) == 0 ? 1 : 0; };
  int64_t woken = 0;
  for (const int32_t block : match.full) woken += idle(block);
  const bool take = match.tail >= 0 && idle(match.tail) == 1 && tree_.owner(match.tail).tid == s.tid;
  const int64_t need = total - static_cast<int64_t>(match.full.size()) - (take ? 1 : 0);
  if (!MakeRoom(need + woken + (take ? 1 : 0), {s.adapter, s.tid})) return false;
  if (match.tail >= 0 && !take && need + woken + idle(match.tail) > pool_.Available()) {
    match.tail = -1;  // no room to hold the original while it is copied: compute these tokens again
    match.tail_tokens = 0;
    match.complete = false;
  }

  for (const int32_t block : match.full) pool_.Ref(block);
  if (match.tail >= 0) pool_.Ref(match.tail);
  pool_.Promise(need);
  s.promised = need;
  s.blocks = match.full;
  s.computed = match.tokens(block_tokens_);
  s.prompt_blocks_shared = std::min(static_cast<int64_t>(match.full.size()), s.prompt_tokens / block_tokens_);
  s.sample_state.clear();
  if (match.complete) {
    const auto state = tree_.state(match.last());
    s.sample_state.assign(state.begin(), state.end());
  }
  if (match.tail >= 0 && take) {
    tree_.Remove(match.tail);
    s.blocks.push_back(match.tail);
  } else if (match.tail >= 0) {
    Cover(s, s.computed);
    copy_(match.tail * block_tokens_, s.blocks.back() * block_tokens_, match.tail_tokens);
    pool_.Unref(match.tail);
  }
  return true;
}

bool KvBlocks::Attach(Sequence& s, const std::vector<Sequence*>& running) {
  TP_CHECK(s.leader != nullptr) << ToString(s.tid) << " follows nobody";
  pool_.Withdraw(s.promised);
  s.promised = 0;
  s.leader = nullptr;
  s.follow_tokens = 0;
  return Place(s, running);
}

void KvBlocks::Cover(Sequence& s, int64_t tokens) {
  while (static_cast<int64_t>(s.blocks.size()) * block_tokens_ < tokens) {
    TP_CHECK(s.promised > 0) << ToString(s.tid) << " has no promise left at " << tokens << " tokens";
    s.blocks.push_back(pool_.AllocatePromised());
    --s.promised;
  }
}

void KvBlocks::Exchange(int32_t node, int32_t& mine) {
  if (node == mine) return;
  pool_.Ref(node);
  pool_.Unref(mine);
  mine = node;
}

void KvBlocks::Publish(Sequence& s, int64_t before, std::span<const std::byte> prompt_state) {
  if (s.stale) return;
  const auto parent = [&](int64_t i) {
    return i == 0 ? PrefixTree::RootOf(s.adapter) : s.blocks[static_cast<size_t>(i - 1)];
  };
  const PrefixTree::Owner owner{.gid = s.gid, .tid = std::nullopt, .adapter = s.adapter};
  const int64_t known = std::min(s.computed, s.prompt_tokens);
  for (; (s.prompt_blocks_shared + 1) * block_tokens_ <= known; ++s.prompt_blocks_shared) {
    const int64_t i = s.prompt_blocks_shared;
    int32_t& mine = s.blocks[static_cast<size_t>(i)];
    const int32_t node =
        tree_.Insert(parent(i), Slice(s.tokens, i * block_tokens_, block_tokens_), mine, owner);
    Exchange(node, mine);
  }
  if (before >= s.prompt_tokens || s.computed < s.prompt_tokens) return;
  const int64_t tail_tokens = s.prompt_tokens % block_tokens_;
  const int64_t last = (s.prompt_tokens - 1) / block_tokens_;
  if (tail_tokens == 0) {
    tree_.SetState(s.blocks[static_cast<size_t>(last)], prompt_state);
    return;
  }
  const int32_t mine = s.blocks[static_cast<size_t>(last)];
  const int32_t node =
      tree_.Insert(parent(last), Slice(s.tokens, last * block_tokens_, tail_tokens), mine, owner);
  s.tail_lent = node == mine;
  tree_.SetState(node, prompt_state);
}

void KvBlocks::SettleTail(Sequence& s) {
  if (!s.tail_lent) return;
  s.tail_lent = false;
  const int64_t place = (s.prompt_tokens - 1) / block_tokens_;
  int32_t& mine = s.blocks[static_cast<size_t>(place)];
  if (pool_.Available() == 0) {
    tree_.Remove(mine);
    return;
  }
  const int32_t copy = pool_.Allocate();
  copy_(mine * block_tokens_, copy * block_tokens_,
        std::min(block_tokens_, s.computed - place * block_tokens_));
  pool_.Unref(mine);
  mine = copy;
}

void KvBlocks::Release(Sequence& s, bool keep) {
  TP_CHECK(!s.tail_lent) << ToString(s.tid);
  if (s.stale && keep) {
    // Blocks beyond what is computed are given back below, as are those of a request that ends.
    const auto covered = static_cast<size_t>(BlocksFor(s.computed));
    Kept kept{.gid = s.gid,
              .blocks = {s.blocks.begin(), s.blocks.begin() + static_cast<ptrdiff_t>(covered)},
              .tokens = {s.tokens.begin(), s.tokens.begin() + static_cast<ptrdiff_t>(s.computed)}};
    s.blocks.erase(s.blocks.begin(), s.blocks.begin() + static_cast<ptrdiff_t>(covered));
    Keep({s.adapter, s.tid}, std::move(kept));
  } else if (keep && s.computed >= s.prompt_tokens) {
    const PrefixTree::Owner owner{.gid = s.gid, .tid = s.tid, .adapter = s.adapter};
    int32_t parent = s.prompt_blocks_shared == 0 ? PrefixTree::RootOf(s.adapter)
                                                 : s.blocks[static_cast<size_t>(s.prompt_blocks_shared - 1)];
    for (int64_t i = s.prompt_blocks_shared; i * block_tokens_ < s.computed; ++i) {
      const int64_t count = std::min(block_tokens_, s.computed - i * block_tokens_);
      int32_t& mine = s.blocks[static_cast<size_t>(i)];
      if (!tree_.Contains(mine)) {  // else found in the tree when this chunk began
        Exchange(tree_.Insert(parent, Slice(s.tokens, i * block_tokens_, count), mine, owner), mine);
      }
      parent = mine;
    }
  }
  for (const int32_t block : s.blocks) pool_.Unref(block);
  pool_.Withdraw(s.promised);
  s.blocks.clear();
  s.computed = 0;
  s.promised = 0;
  s.prompt_blocks_shared = 0;
  s.stale = false;
  s.leader = nullptr;
  s.follow_tokens = 0;
  s.sample_state.clear();
}

}  // namespace tidepool::engine
