#pragma once
// What a device worker has said of each attempt, kept until the controller needs it no more: every delta is
// given its offset here, and a controller that has not all of them (one that follows another) is sent them
// again. A token takes 8 to 16 bytes here, plus its routing: deltas are joined, because a delta of one token
// takes 370. Owned by the device thread.

#include <map>
#include <utility>
#include <vector>

#include "workers/net/messages.h"

namespace tidepool::workers {

class HeldTokens {
 public:
  // Whether tokens are kept; offsets are named in any case. Before anything else.
  void SetKept(bool kept) { kept_ = kept; }
  void Clear() { attempts_.clear(); }
  // A chunk begins behind the tokens `generated` of its attempt. What is here of the attempt stays only if it
  // is just those tokens.
  void Begin(const SampleId& tid, int32_t att, GroupId gid, const std::vector<int32_t>& generated);
  // Gives the delta its offset, and keeps a copy.
  void Say(up::ChunkDelta& delta);
  void Drop(const SampleId& tid, int32_t att) { attempts_.erase({tid, att}); }
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
    bool whole = true;                   // the first delta here is that of the first token
    int64_t tokens = 0;                  // of the attempt so far
    std::vector<up::ChunkDelta> deltas;  // joined, but for tokens with routing, which cannot be cut
  };
  bool kept_ = false;
  std::map<std::pair<SampleId, int32_t>, Attempt> attempts_;
};

}  // namespace tidepool::workers
