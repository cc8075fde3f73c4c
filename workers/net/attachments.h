#pragma once
// The controller's end of all attachments: which process has which worker place, over which connection, and
// the session with it (docs/worker_protocol.md). Used by the controller process and by the simulated network;
// the wire is behind an interface, time is an argument. Pure; not thread-safe.
//
// A connection that ends is not the loss of a worker: its process dials again, and the new connection
// supersedes the old one at once. One that is silent for `lost_after` is closed. A worker is lost when no
// connection has been there for `lost_after`.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "core/base/time.h"
#include "workers/net/messages.h"
#include "workers/net/session.h"

namespace tidepool::workers {

using ConnectionId = int64_t;  // never re-used

struct HubOpened {
  ConnectionId connection = 0;
  up::Hello hello;
  std::string peer;
};
struct HubMessage {
  ConnectionId connection = 0;
  FromWorker message;
};
// A part of a message that is cut into several frames: a sign of life.
struct HubPart {
  ConnectionId connection = 0;
};
struct HubClosed {
  ConnectionId connection = 0;
  std::string why;
};
using HubEvent = std::variant<HubOpened, HubMessage, HubPart, HubClosed>;

struct AttachmentOptions {
  int64_t ctl_epoch = 1;
  int64_t device_places = 0, side_places = 0;  // device places come first
  Duration lost_after{0};
  // A process that is there has so long to say what it holds, from its first connection. Whoever hangs before
  // that keeps its place from others. 0: for ever.
  Duration offer_within{0};
};

class Attachments {
 public:
  // Messages to one connection keep their order; those to one that has ended are dropped.
  class Wire {
   public:
    virtual ~Wire() = default;
    virtual void Send(ConnectionId connection, ToWorker message) = 0;
    virtual void Refuse(ConnectionId connection, down::Refuse why) = 0;
    virtual void Close(ConnectionId connection, const std::string& why) = 0;
  };
  // A process is there and has said all that it holds. Answered by Welcome or Refuse.
  struct Arrived {
    int64_t place = 0;
    up::Hello hello;
    up::Offer offer;  // its frames as one
  };
  // Of a process that was welcomed; each once, in order.
  struct Message {
    int64_t place = 0;
    Incarnation inc;
    FromWorkerBody body;
  };
  // Of every process that arrived and was not refused or fenced since.
  struct Lost {
    int64_t place = 0;
    Incarnation inc;  // invalid: the answer to its arrival had not come yet
    std::string why;
  };
  // A worker has seen a controller of a later epoch: this one may do nothing more.
  struct Superseded {
    int64_t ctl_epoch = 0;
  };
  using Event = std::variant<Arrived, Message, Lost, Superseded>;
  // What the controller had taken of sessions at a moment, of those that are not acknowledged that far.
  using Snapshot = std::map<std::pair<int64_t, uint64_t>, int64_t>;  // (place, process)

  Attachments(const AttachmentOptions& options, Wire* wire) : options_(options), wire_(wire) {}

  std::vector<Event> On(HubEvent event, TimePoint now);
  std::vector<Event> Tick(TimePoint now);

  // The answer to the arrival of `process`. False: the place has it no more, and nobody is told.
  bool Welcome(int64_t place, uint64_t process, down::Welcome welcome);
  bool Refuse(int64_t place, uint64_t process, const std::string& why);
  // Each command once, in order, also over a new connection. Nothing if the place has no welcomed process.
  // One that leaves kMostKept commands lie is lost at the next Tick.
  static constexpr size_t kMostKept = 1 << 16;
  void Send(int64_t place, ToWorkerBody body);
  // The process of the place is fenced: told so, or refused when it comes again. False: there was none.
  bool Fence(int64_t place, const std::string& why);
  // To every connected worker that was told nothing since the last call: it may serve on; what it said is
  // durable up to the last Acknowledge. Called twice in RenewalSeconds, nobody waits for longer than that.
  void Renew();

  // Adds to `taken` what was taken since the last call, which is little beside all that are attached: the
  // caller says it once more for every turn of its loop.
  void Taken(Snapshot& taken);
  // What had been taken then has effects that are durable, or none. Workers hear it with what they are told
  // next; one that waits for the acknowledgement of many is told at once.
  static constexpr int64_t kMostUntold = 1 << 9;
  void Acknowledge(const Snapshot& durable);

  // What the process of the place said of itself; null: there is none.
  [[nodiscard]] const up::Hello* HelloAt(int64_t place) const;
  [[nodiscard]] std::vector<int64_t> Welcomed() const;  // places

 private:
  struct Place {
    up::Hello hello;
    ConnectionId connection = 0;  // 0: none
    TimePoint came;               // when the process took the place
    TimePoint gone;               // when the last one ended
    TimePoint heard;              // over the current one
    Session<ToWorker> session;
    up::Offer offer;
    bool offered = false;
    bool hung = false;         // it does not take what it is sent
    bool told = false;         // something, since the last Renew
    int64_t told_durable = 0;  // the last acknowledgement
    Incarnation inc;           // valid: welcomed
  };
  void Opened(HubOpened& e, TimePoint now, std::vector<Event>& out);
  void Said(HubMessage& e, TimePoint now, std::vector<Event>& out);
  void Release(int64_t place, const std::string& why, std::vector<Event>& out);
  bool Collect(Place& place, up::Offer& frame);
  void Unbind(Place& place, TimePoint now);
  void Flush(Place& place);
  void Say(Place& place, ToWorker message);
  void SayRenewal(Place& place);
  std::map<int64_t, Place>::iterator Of(ConnectionId connection);

  AttachmentOptions options_;
  Wire* wire_;
  std::map<int64_t, Place> places_;
  std::map<ConnectionId, int64_t> place_of_;  // the current connection of each
  std::set<int64_t> said_;                    // places of which something was taken since Taken
};

}  // namespace tidepool::workers
