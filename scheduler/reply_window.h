#pragma once
// Idempotency of calls: the same (client, incarnation, request) has one effect and one reply.
//
// A client numbers its requests from 1 upwards. The window keeps the last `capacity` replies of each
// client's newest incarnation; an older incarnation is fenced, an older request than the window holds is
// refused rather than executed again. Pure; not thread-safe.

#include <cstdint>
#include <map>
#include <string>

#include "core/base/ids.h"

namespace tidepool::scheduler {

class ReplyWindow {
 public:
  enum class Verdict : uint8_t {
    kExecute,    // new: execute it, then call Finish
    kRunning,    // the first one is still being executed: wait for it, do not execute
    kRepeat,     // answer with `reply`
    kFenced,     // from an older life of the client
    kForgotten,  // so old that its reply is gone: refuse
  };

  explicit ReplyWindow(int64_t capacity = 4096) : capacity_(capacity) {}

  // requires request > 0. `reply` is valid until the next call of a member.
  Verdict Begin(const std::string& client, Incarnation inc, uint64_t request, const std::string** reply);
  // The reply of a request for which Begin said kExecute. Ignored if the client has been replaced since.
  void Finish(const std::string& client, Incarnation inc, uint64_t request, std::string reply);

 private:
  struct Client {
    Incarnation inc;
    uint64_t forgotten = 0;  // requests up to this one are no longer known
    struct Reply {
      bool done = false;
      std::string bytes;
    };
    std::map<uint64_t, Reply> replies;
  };
  int64_t capacity_;
  std::map<std::string, Client> clients_;
};

}  // namespace tidepool::scheduler
