#include "workers/device/held_tokens.h"

#include <algorithm>

namespace tidepool::workers {

namespace {

// So that what is said again fits into messages.
constexpr int64_t kTokensJoined = 1024;

bool MayBeCut(const TokenRecord& tokens) {
  return tokens.kind == sample::SegmentKind::kTokens && tokens.routing.empty();
}

}  // namespace

void HeldTokens::Begin(const SampleId& tid, int32_t att, GroupId gid, const std::vector<int32_t>& generated) {
  Attempt& a = attempts_[{tid, att}];
  const auto continues = [&] {
    if (a.tokens != static_cast<int64_t>(generated.size())) return false;
    auto at = generated.begin();
    for (const up::ChunkDelta& d : a.deltas) {
      if (!std::equal(d.tokens.ids.begin(), d.tokens.ids.end(), at)) return false;
      at += static_cast<int64_t>(d.tokens.ids.size());
    }
    return at == generated.end();
  };
  // What another worker made of it, or a later command undid, is not here.
  if (!continues())
    a = Attempt{gid, generated.empty() && !tid.is_eval(), static_cast<int64_t>(generated.size()), {}};
  a.gid = gid;
  if (!a.deltas.empty()) a.deltas.back().ended = false;  // only the last chunk's end is one of the attempt's
}

void HeldTokens::Say(up::ChunkDelta& delta) {
  const auto it = attempts_.find({delta.tid, delta.att});
  if (it == attempts_.end()) return;
  Attempt& a = it->second;
  delta.from = a.tokens;
  a.tokens += delta.tokens.size();
  if (kept_ && a.whole) {
    up::ChunkDelta* last = a.deltas.empty() ? nullptr : &a.deltas.back();
    if (last != nullptr && last->tokens.size() < kTokensJoined && MayBeCut(last->tokens) &&
        MayBeCut(delta.tokens)) {
      last->tokens.Append(delta.tokens);
      last->ended = delta.ended;
      last->end = delta.end;
      last->why = delta.why;
    } else {
      a.deltas.push_back(delta);
    }
  } else if (delta.ended) {
    attempts_.erase(it);
  }
}

void HeldTokens::Forget(GroupId gid) {
  std::erase_if(attempts_, [&](const auto& item) { return item.second.gid == gid; });
}

std::vector<scheduler::event::OfferedChunk> HeldTokens::Offered(SlotId slot) const {
  std::vector<scheduler::event::OfferedChunk> out;
  for (const auto& [key, a] : attempts_) {
    if (!kept_ || !a.whole) continue;
    scheduler::event::OfferedChunk offered{slot, key.first, key.second, a.tokens, {}, {}};
    for (const up::ChunkDelta& d : a.deltas) {
      for (const auto& [version, count] : d.tokens.versions) {
        if (!offered.oldest.valid() || version < offered.oldest) offered.oldest = version;
        if (offered.newest < version) offered.newest = version;
      }
    }
    out.push_back(offered);
  }
  return out;
}

std::vector<std::pair<SampleId, int32_t>> HeldTokens::TakePartial() {
  std::vector<std::pair<SampleId, int32_t>> out;
  for (const auto& [key, a] : attempts_) {
    if (!kept_ || !a.whole) out.push_back(key);
  }
  for (const auto& key : out) attempts_.erase(key);
  return out;
}

std::vector<up::ChunkDelta> HeldTokens::From(const SampleId& tid, int32_t att, int64_t from) const {
  std::vector<up::ChunkDelta> out;
  const auto it = attempts_.find({tid, att});
  if (it == attempts_.end()) return out;
  for (const up::ChunkDelta& d : it->second.deltas) {
    if (d.from >= from) {
      out.push_back(d);
    } else if (MayBeCut(d.tokens) && d.from + d.tokens.size() >= from) {  // equal: its end may be missing
      out.push_back({d.tid, d.att, d.tokens.Tail(from - d.from), d.ended, d.end, d.why, from});
    }
  }
  return out;
}

}  // namespace tidepool::workers
