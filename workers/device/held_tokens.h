#pragma once
// What a device worker has said of each attempt, kept until the controller needs it no more: every delta is
// given its offset here, and a controller that has not all of them (one that follows another) is sent them
// again. A token takes 8 to 16 bytes here, plus its routing: deltas are joined, because a delta of one token
// takes 370. The ids of an attempt stay also where nobody asks for deltas again (4 bytes a token), so that
// its next chunk need not bring them along. Owned by the device thread.

#include <map>
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
  // A whole chunk begins behind the tokens `generated` of its attempt. What is here of the attempt stays only
  // if it is just those tokens.
  void Begin(const down::StartChunk& c);
  // Gives the delta its offset, and keeps a copy.
  void Say(up::ChunkDelta& delta);
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
