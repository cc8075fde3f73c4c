#pragma once
// What a device worker has said of each attempt, kept until the controller needs it no more: every delta is
// given its offset here, and a controller that has not all of them (one that follows another) is sent them
// again. A token takes 8 to 16 bytes here, plus its routing, and 4 where it is in the token log: deltas are
// joined, because a delta of one token takes 370. The ids of an attempt stay also where nobody asks for
// deltas again (4 bytes a token), so that its next chunk need not bring them along. Owned by the device
// thread.

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "workers/net/messages.h"

namespace tidepool::workers {

class HeldTokens {
 public:
  // Whether deltas are kept; offsets are named in any case. Before anything else.
  void SetKept(bool kept) { kept_ = kept; }
  void Clear() {
    attempts_.clear();
    idle_ = 0;
  }
  // Puts prompt and tokens of the command, which are here, in their places. False: they are not here, or are
  // others; the attempt is known then, and nothing of it.
  bool Complete(down::StartChunk& c);
  // The chunk ends before it has begun, with the attempt as long as its command says and nothing of it here.
  void Absent(const down::StartChunk& c);
  // A whole chunk begins behind the tokens `generated` of its attempt. What is here of the attempt stays only
  // if it is just those tokens.
  void Begin(const down::StartChunk& c);
  // Gives the delta its offset.
  void Number(up::ChunkDelta& delta);
  // Of the attempt; null: it is not known here.
  [[nodiscard]] const std::vector<int32_t>* PromptOf(const SampleId& tid, int32_t att) const {
    const auto it = attempts_.find({tid, att});
    const bool known = it != attempts_.end() && Size(it->second) > 0;
    return known ? &it->second.prompt : nullptr;
  }
  // The numbered delta, the newest of its attempt, is not said: its tokens are none.
  void Undo(const up::ChunkDelta& delta);
  // Where the newest tokens of an attempt are that goes into the token log; it has none yet: not valid.
  [[nodiscard]] std::optional<storage::TokenPlace> LogsAfter(const SampleId& tid, int32_t att) const;
  // The delta is being said as it is now: keeps a copy.
  void Keep(const up::ChunkDelta& delta);
  void Say(up::ChunkDelta& delta) {
    Number(delta);
    Keep(delta);
  }
  // A logged attempt that has come to an end of its own.
  struct Finished {
    SampleId tid;
    int32_t att = 0;
    sample::Finish finish = sample::Finish::kEos;
    std::vector<int32_t> prompt;
    storage::TokenPlace newest;
    // Of its segments, where several workers have made them; empty: all of it is in this worker's log.
    std::vector<sample::Segment> outline;
  };
  [[nodiscard]] std::optional<Finished> FinishedBy(const up::ChunkDelta& delta) const;
  void Drop(const SampleId& tid, int32_t att);
  void Forget(GroupId gid);  // its samples are done
  // Attempts that are here from their first token on; not those of evaluations, which begin again.
  [[nodiscard]] std::vector<scheduler::event::OfferedChunk> Offered(SlotId slot) const;
  // Takes out the attempts that cannot be offered, as no controller but the one that gave them knows what
  // goes before: they are to be ended.
  std::vector<std::pair<SampleId, int32_t>> TakePartial();
  // The tokens from `from` on, in order, and how the last chunk ended.
  [[nodiscard]] std::vector<up::ChunkDelta> From(const SampleId& tid, int32_t att, int64_t from) const;

 private:
  struct Attempt {
    GroupId gid;
    bool whole = true;                 // the first delta here is that of the first token
    int64_t tokens = 0;                // of the attempt so far
    std::vector<int32_t> prompt, ids;  // ids: of all `tokens`; none where they are not known here
    bool logs = false;                 // its tokens go into the token log
    bool stores = false;               // and its payload is written here when it has ended
    storage::TokenPlace newest;        // there
    int64_t max_new_tokens = 0;        // of the sample
    int64_t routing_bytes = 0;
    int64_t counted = 0;     // its part of idle_; 0: a chunk of it is under way, or it has to be kept
    int64_t idle_since = 0;  // chunks that had ended by then
    std::vector<up::ChunkDelta> deltas;  // joined, but for tokens with routing, which cannot be cut
  };
  using Attempts = std::map<std::pair<SampleId, int32_t>, Attempt>;
  [[nodiscard]] bool Keeps(const Attempt& a) const { return kept_ && a.whole; }
  static int64_t Size(const Attempt& a) { return static_cast<int64_t>(a.prompt.size() + a.ids.size()); }
  void SetIdle(Attempt& a, bool idle);
  void Erase(Attempts::iterator it);

  bool kept_ = false;
  Attempts attempts_;
  int64_t idle_ = 0, chunks_ = 0;  // ids of attempts that nobody works on and need not be kept; chunks ended
};

}  // namespace tidepool::workers
