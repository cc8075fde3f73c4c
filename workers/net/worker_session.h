#pragma once
// A worker's end of its attachment: what Hello says, which commands are new, what still has to be said, and
// when to dial again (docs/worker_protocol.md). Used by Link and by the simulated network. Pure; not
// thread-safe.

#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/rng.h"
#include "core/base/status.h"
#include "core/base/time.h"
#include "workers/net/messages.h"
#include "workers/net/session.h"

namespace tidepool::workers {

// A command, or the beginning of a controller epoch (down::Attached), as the worker's own thread takes it.
struct Command {
  int64_t ctl_epoch = 0;
  ToWorkerBody body;
};

class WorkerSession {
 public:
  // process: random, of this process alone. patience: how long it dials before it gives up.
  WorkerSession(uint64_t process, Duration patience) : process_(process), patience_(patience) {}

  void SetPermit(double permit_s, double patience_s) {
    permit_s_ = permit_s;
    patience_ = FromSeconds(patience_s);
  }
  // A connection is made: adds who says it, and where the session stands, to what the process says of itself.
  [[nodiscard]] up::Hello Greet(up::Hello hello, TimePoint now);

  // nullopt: nothing for the worker to do. kUnavailable: this connection is of no use, another has to be
  // made. kFailedPrecondition: refused; the process has to end.
  StatusOr<std::optional<Command>> Receive(ToWorker message, TimePoint now);
  // What one frame brought: adds to `commands` what the worker has to do, also what came before an error.
  Status Heard(StatusOr<std::vector<ToWorker>> messages, TimePoint now, std::vector<Command>& commands);
  // The connection that was greeted last is dead: nothing was heard over it for SilenceSeconds.
  [[nodiscard]] bool Silent(TimePoint now) const;
  // So many results wait for the controller's disk; more are not made.
  static constexpr size_t kMostKept = 1 << 12;
  // True while the permit runs and fewer than kMostKept results wait for acknowledgement. Otherwise the
  // worker stops generating: the controller may have given it up, or does not take its results.
  [[nodiscard]] bool MayServe(TimePoint now) const;
  // Called after the worker has discarded its work of earlier epochs. Messages that were sent before are
  // discarded.
  void Begin(int64_t ctl_epoch) { begun_ = ctl_epoch == ctl_epoch_; }
  void Send(FromWorkerBody body);
  // For the connection, in order; empty before Attached has come.
  std::vector<FromWorker> TakeUnsent();

  // The connection has ended with `end`, or could not be made. How long to wait before the next; nullopt:
  // there is none, because the controller refuses this process, or did not answer within the patience.
  std::optional<Duration> Disconnected(const Status& end, TimePoint now, Rng& rng);

  // Nothing was heard for the patience: a connection that is on its way comes too late.
  [[nodiscard]] bool GivesUp(TimePoint now) const { return lost_ && now - *lost_ >= patience_; }

  [[nodiscard]] int64_t ctl_epoch() const { return ctl_epoch_; }
  [[nodiscard]] Incarnation inc() const { return inc_; }
  [[nodiscard]] size_t unacknowledged() const { return session_.unacknowledged(); }

 private:
  const uint64_t process_;
  Duration patience_;
  Session<FromWorker> session_;
  std::optional<FromWorker> beat_;  // the newest heartbeat; not of the session, lost with its connection
  int64_t ctl_epoch_ = 0;
  Incarnation inc_;
  bool attached_ = false;  // the current connection is
  TimePoint greeted_, attached_at_, heard_;
  double permit_s_ = 5;
  bool begun_ = false;
  std::optional<TimePoint> lost_;  // since when nothing is heard
  int64_t dials_ = 0;              // since a connection lasted for a permit
};

}  // namespace tidepool::workers
