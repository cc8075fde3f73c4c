#include "workers/device/held_tokens.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace tidepool::workers {

namespace {

using scheduler::event::ChunkEnd;

// So that what is said again fits into messages.
constexpr int64_t kTokensJoined = 1024;

constexpr int64_t kIdleIds = int64_t{16} << 20;

// A chunk that ended so may be followed by another one of its attempt.
bool MayGoOn(ChunkEnd end) { return !scheduler::event::LosesWork(end); }

bool MayBeCut(const TokenRecord& tokens) {
  return tokens.kind == sample::SegmentKind::kTokens && tokens.routing.empty();
}

}  // namespace

void HeldTokens::SetIdle(Attempt& a, bool idle) {
  idle_ -= std::exchange(a.counted, idle && !Keeps(a) ? Size(a) : 0);
  idle_ += a.counted;
  a.idle_since = a.counted > 0 ? ++chunks_ : 0;
}

void HeldTokens::Erase(Attempts::iterator it) {
  SetIdle(it->second, false);
  attempts_.erase(it);
}

bool HeldTokens::Complete(down::StartChunk& c) {
  if (c.have == 0) return true;
  Attempt& a = attempts_[{c.tid, c.att}];
  const auto n = static_cast<size_t>(c.have);
  const auto same = [&] {  // what ends at one place of a token log is one attempt, so places are compared
    return c.before.valid() ? a.newest == c.before && a.ids.size() == n
                            : sample::HashOfIds(a.prompt, a.ids, n) == c.have_hash;
  };
  if (c.have > 0 && n <= a.ids.size() && same()) {
    if (c.before.valid()) c.routing_bytes = a.routing_bytes;
    c.prompt = a.prompt;
    c.generated.insert(c.generated.begin(), a.ids.begin(), a.ids.begin() + c.have);
    c.have = 0;
    return true;
  }
  Absent(c);
  return false;
}

void HeldTokens::Absent(const down::StartChunk& c) {
  Attempt& a = attempts_[{c.tid, c.att}];
  SetIdle(a, false);
  a = Attempt{
      .gid = c.gid, .whole = false, .tokens = c.have + static_cast<int64_t>(c.generated.size()) + c.unread};
}

void HeldTokens::Begin(const down::StartChunk& c) {
  const auto [it, fresh] = attempts_.try_emplace({c.tid, c.att});
  Attempt& a = it->second;
  SetIdle(a, false);
  // What another worker made of it, or a later command undid, is not here.
  if (fresh || a.tokens != static_cast<int64_t>(a.ids.size()) || a.ids != c.generated || a.prompt != c.prompt)
    a = Attempt{.gid = c.gid,
                .whole = c.generated.empty() && !c.tid.is_eval(),
                .tokens = static_cast<int64_t>(c.generated.size()),
                .ids = c.generated};
  // Half of it in the log and half of it not: no later controller is offered that.
  if (a.logs != c.logs && a.tokens > 0) {
    a.whole = false;
    a.deltas.clear();
  }
  a.prompt = c.prompt;
  a.gid = c.gid;
  a.logs = c.logs;
  a.stores = c.stores;
  a.newest = c.before;
  a.max_new_tokens = c.max_new_tokens;
  a.routing_bytes = c.routing_bytes;
  if (!a.deltas.empty()) a.deltas.back().ended = false;  // only the last chunk's end is one of the attempt's
}

void HeldTokens::Number(up::ChunkDelta& delta) {
  const auto it = attempts_.find({delta.tid, delta.att});
  if (it == attempts_.end()) return;
  Attempt& a = it->second;
  delta.from = a.tokens;
  a.tokens += delta.tokens.size();
  a.routing_bytes += static_cast<int64_t>(delta.tokens.routing.size());
  a.ids.insert(a.ids.end(), delta.tokens.ids.begin(), delta.tokens.ids.end());
}

void HeldTokens::Undo(const up::ChunkDelta& delta) {
  const auto it = attempts_.find({delta.tid, delta.att});
  if (it == attempts_.end()) return;
  Attempt& a = it->second;
  a.tokens = delta.from;
  a.routing_bytes -= static_cast<int64_t>(delta.tokens.routing.size());
  a.ids.resize(a.ids.size() - delta.tokens.ids.size());
}

std::optional<storage::TokenPlace> HeldTokens::LogsAfter(const SampleId& tid, int32_t att) const {
  const auto it = attempts_.find({tid, att});
  if (it == attempts_.end() || !it->second.logs) return std::nullopt;
  return it->second.newest;
}

std::optional<HeldTokens::Finished> HeldTokens::FinishedBy(const up::ChunkDelta& delta) const {
  const auto it = attempts_.find({delta.tid, delta.att});
  if (it == attempts_.end() || !delta.ended) return std::nullopt;
  const Attempt& a = it->second;
  const bool all = delta.end == ChunkEnd::kChunkLimit && a.tokens >= a.max_new_tokens;
  if (!a.stores || !a.newest.valid() || (!up::EndsSample(delta.end) && !all)) return std::nullopt;
  return Finished{delta.tid, delta.att, up::FinishOf(delta.end), a.prompt, a.newest, {}};
}

void HeldTokens::Keep(const up::ChunkDelta& delta) {
  const auto it = attempts_.find({delta.tid, delta.att});
  if (it == attempts_.end()) return;
  Attempt& a = it->second;
  if (delta.logged.valid()) a.newest = delta.logged;
  if (Keeps(a)) {
    up::ChunkDelta* last = a.deltas.empty() ? nullptr : &a.deltas.back();
    const auto one_file = [&] {  // who takes them has to know each file that they are in
      return delta.tokens.size() == 0 || last->tokens.size() == 0 || last->logged.file == delta.logged.file;
    };
    if (last != nullptr && last->tokens.size() < kTokensJoined && MayBeCut(last->tokens) &&
        MayBeCut(delta.tokens) && one_file()) {
      last->tokens.Append(delta.tokens);
      if (delta.logged.valid()) last->logged = delta.logged;
      last->ended = delta.ended;
      last->end = delta.end;
      last->why = delta.why;
    } else {
      a.deltas.push_back(delta);
    }
  } else if (delta.ended && !MayGoOn(delta.end)) {
    Erase(it);
  } else if (delta.ended) {
    SetIdle(a, true);
    while (idle_ > kIdleIds) {  // the controller sends them again where it has to
      const auto oldest = std::ranges::min_element(attempts_, {}, [&](const auto& item) {
        const Attempt& at = item.second;
        return at.counted > 0 ? at.idle_since : std::numeric_limits<int64_t>::max();
      });
      Erase(oldest);
    }
  }
}

void HeldTokens::Drop(const SampleId& tid, int32_t att) {
  if (const auto it = attempts_.find({tid, att}); it != attempts_.end()) Erase(it);
}

void HeldTokens::Forget(GroupId gid) {
  for (auto it = attempts_.begin(); it != attempts_.end();) {
    const auto next = std::next(it);
    if (it->second.gid == gid) Erase(it);
    it = next;
  }
}

std::vector<scheduler::event::OfferedChunk> HeldTokens::Offered(SlotId slot) const {
  std::vector<scheduler::event::OfferedChunk> out;
  for (const auto& [key, a] : attempts_) {
    if (!Keeps(a)) continue;
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
    if (!Keeps(a)) out.push_back(key);
  }
  for (const auto& [tid, att] : out) Drop(tid, att);
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
      out.push_back({d.tid, d.att, d.tokens.Tail(from - d.from), d.ended, d.end, d.why, from, d.logged});
    }
  }
  return out;
}

}  // namespace tidepool::workers
