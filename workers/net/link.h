#pragma once
// A worker's end of the wire: dials the controller, says Hello, keeps one stream, dials again.
//
// Commands are handed to the sink once each and in order, those that came together in one call, by gRPC's
// threads, which all links of the process share, and perhaps before Connect has returned: the sink must be
// quick (put them in a queue) and not use the link. Send may be called from any thread. A connection that
// breaks or falls silent is made again (the address is read anew from `control_file`), and the session goes
// on over it. LinkClosed ends the link: the controller refuses this process, or none answered within the
// patience.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "core/base/status.h"
#include "core/comm/rendezvous.h"
#include "workers/data/stored_rows.h"
#include "workers/net/certificates.h"
#include "workers/net/messages.h"
#include "workers/net/worker_session.h"

namespace tidepool::workers {

struct LinkClosed {
  std::string why;
  int exit_code = 3;  // of the process, which ends (exit_code.h)
};
using LinkEvent = std::variant<Command, LinkClosed>;

struct LinkOptions {
  std::string address;       // host:port of the controller
  Credentials credentials;   // for this worker's role
  std::string control_file;  // RUN/control.json, for a new address after a restart; may be empty
  up::Hello hello;           // run_id, place, kind, ...
  std::string build;         // as HubOptions has it
  double connect_timeout_s = 30;
};

class Link {
 public:
  // Connects and says Hello; until somebody answers the address is read anew as later. kUnavailable: nobody
  // does in connect_timeout_s. kUnauthenticated, kPermissionDenied, kFailedPrecondition: refused, or
  // whoever listens there is of another run.
  static StatusOr<std::unique_ptr<Link>> Connect(const LinkOptions& options,
                                                 std::function<void(std::vector<LinkEvent>)> sink);
  ~Link();  // closes the stream and joins

  // Heartbeats go over the connection that is there, or not at all. All else arrives once and in order, if it
  // is said after Begin of the newest epoch, else not at all.
  void Send(FromWorkerBody body);
  // What was done for earlier controllers is dropped.
  void Begin(int64_t ctl_epoch);
  // patience_s: for a new connection.
  void SetPermit(double permit_s, double patience_s);
  [[nodiscard]] int64_t ctl_epoch() const;  // the newest that it has heard of
  [[nodiscard]] bool MayServe() const;      // WorkerSession::MayServe, now

  // Where the training group that a command names meets. It asks over the connection that is there, and waits
  // for another one where that broke.  requires that the link outlives it
  [[nodiscard]] std::unique_ptr<comm::Rendezvous> MeetingAt(const std::string& meeting);
  // The list of a leased batch, and payloads of its rows.
  static constexpr std::chrono::seconds kListPatience{120};
  StatusOr<std::vector<BatchRow>> FetchRows(int64_t lease, StepNumber step, int64_t rank);
  StatusOr<PayloadsRead> FetchPayloads(int64_t lease, StepNumber step, int64_t rank, const Enqs& which,
                                       const std::function<bool()>& go_on);

 private:
  Link();
  struct Impl;
  class Meeting;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool::workers
