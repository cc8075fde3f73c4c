#pragma once
// Tokens that a device worker keeps until the controller has them durably, so that a controller that comes
// back finds them here (cluster.reattach_grace_s). Any thread.

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "workers/net/messages.h"

namespace tidepool::workers {

class HeldTokens {
 public:
  void SetOn(bool on) { on_ = on; }  // before anything else; off: nothing is kept
  // A chunk of the sample begins behind its first `generated` tokens.
  void Begin(const SampleId& tid, int32_t att, GroupId gid, int64_t generated);
  void Append(const up::ChunkDelta& delta);
  void Forget(GroupId gid);  // its samples are done
  // Those in the engine whose whole record is here.
  [[nodiscard]] std::vector<up::Held> All() const;

 private:
  struct Sample {
    GroupId gid;
    int64_t from = 0;  // tokens that came with the first chunk seen here: 0 means the record is whole
    int64_t att = 0;
    TokenRecord tokens;
    bool running = false;
  };
  bool on_ = false;
  mutable std::mutex mu_;
  std::map<std::pair<SampleId, int32_t>, Sample> samples_;
};

}  // namespace tidepool::workers
