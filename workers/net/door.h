#pragma once
// What the hub decides about its connections: what has to be said first and by whom, who may say what, what
// waits for a worker and how much of it, how a connection ends. The streams themselves are behind an
// interface: Hub has gRPC's, and calls this class under one lock; the simulated network has queues and
// virtual time. Pure; not thread-safe, apart from Greeting and Heard.

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/base/time.h"
#include "workers/net/attachments.h"
#include "workers/net/auth.h"
#include "workers/net/messages.h"

namespace tidepool::v1 {
class Frame;
}  // namespace tidepool::v1

namespace tidepool::workers {

class Door : public Attachments::Wire {
 public:
  // For a stream to say Hello, so that one which stays silent is not kept for ever.
  static constexpr Duration kHelloDeadline = std::chrono::seconds(5);
  // For a worker that was refused to read what was sent before, and why, and to hang up.
  static constexpr Duration kRefusalDeadline = std::chrono::seconds(2);

  class Streams {
   public:
    virtual ~Streams() = default;
    virtual void Wake(ConnectionId connection) = 0;  // HasUnsent is true now
    // Ends the stream after so long, whatever is on its way then. The caller of Closed may be within it.
    virtual void End(ConnectionId connection, Duration after) = 0;
  };
  // max_queued: messages to one connection; one that is to get more is closed as hung.
  Door(int64_t max_queued, Streams* streams) : max_queued_(max_queued), streams_(streams) {}

  // --- what workers say
  // The first frame of a stream, to the controller of `run_id`, by a caller with the token of `role`. An
  // error ends the stream and is what the worker reads at its end: kInvalidArgument, kFailedPrecondition,
  // kPermissionDenied.
  static StatusOr<up::Hello> Greeting(const std::string& run_id, CallerRole role, const v1::Frame& first);
  // What any other frame brought. An error: the worker is refused for it, and nothing more is heard of it.
  static Status Heard(CallerRole role, const StatusOr<std::vector<FromWorker>>& messages);

  // --- their connections
  ConnectionId Open();
  // Its stream is over. Why: as it was said before, or else `why`.
  std::string Closed(ConnectionId connection, const std::string& why);

  // --- what they are told
  void Send(ConnectionId connection, ToWorker message) override;
  // Said behind what is queued, and nothing after it; then the worker hangs up, or the stream is ended.
  void Refuse(ConnectionId connection, down::Refuse why) override;
  void Close(ConnectionId connection, const std::string& why) override;
  // From Hold to Release what is sent waits, and then leaves in as few frames as it fits.
  void Hold() { ++holds_; }
  void Release();
  [[nodiscard]] bool HasUnsent(ConnectionId connection) const;
  std::deque<ToWorker> TakeUnsent(ConnectionId connection);

 private:
  struct Connection {
    std::deque<ToWorker> queue;
    bool last = false;  // nothing is sent behind what is queued
    std::string why;    // it ends, where that is known
  };

  const int64_t max_queued_;
  Streams* const streams_;
  std::map<ConnectionId, Connection> connections_;
  ConnectionId newest_ = 0;
  int64_t holds_ = 0;
  std::set<ConnectionId> unsent_;  // with something in their queue
};

}  // namespace tidepool::workers
