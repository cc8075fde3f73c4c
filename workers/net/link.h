#pragma once
// A worker's end of the wire: dials the controller, says Hello, keeps one stream, re-attaches.
//
// Commands are handed to the sink in order from the link's thread, those that were sent together
// in one call; the sink must be quick (put them in a queue). Send may be called from any thread. When the
// connection is lost and reattach_grace_s is 0, or the controller refuses, the sink gets LinkClosed and the
// link is over; with a longer grace it dials again (the address is read anew from `control_file`) until the
// grace has run out.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "core/base/status.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

struct LinkClosed {
  std::string why;
};
using LinkEvent = std::variant<ToWorker, LinkClosed>;

struct LinkOptions {
  std::string address;       // host:port of the controller
  std::string token;         // for this worker's role
  std::string control_file;  // RUN/control.json, for a new address after a restart; may be empty
  up::Hello hello;           // run_id, place, kind, ...
  double connect_timeout_s = 30;
  double reattach_grace_s = 0;  // may be raised by SetReattach once the config is known
  int64_t max_control_bytes = 4 << 20;
};

class Link {
 public:
  // Connects and says Hello. kUnavailable: nobody answers in connect_timeout_s. kUnauthenticated,
  // kPermissionDenied, kFailedPrecondition: refused.
  static StatusOr<std::unique_ptr<Link>> Connect(const LinkOptions& options,
                                                 std::function<void(std::vector<LinkEvent>)> sink);
  ~Link();  // closes the stream and joins

  void Send(FromWorkerBody body);
  // What to say when attaching again: the incarnation and the chunks whose tokens are still here.
  void SetReattach(double grace_s, std::function<std::vector<up::Held>()> held);
  [[nodiscard]] double SecondsSinceHeard() const;  // since the last message of the controller

  // Rows of a leased batch.
  StatusOr<std::vector<BatchRow>> FetchRows(int64_t lease, StepNumber step);

 private:
  Link();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool::workers
