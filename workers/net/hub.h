#pragma once
// The controller's end of the wire: a gRPC server that workers attach to.
//
// Every call needs a token of this job with the right role, checked before anything is read from it.
// What happens on connections is handed to one sink as HubEvents, from gRPC's threads: the sink must
// be quick (put it in a queue). Send and Close may be called from any thread. Messages to a
// connection keep their order.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/comm/rendezvous_table.h"
#include "workers/data/stored_rows.h"
#include "workers/net/attachments.h"
#include "workers/net/auth.h"
#include "workers/net/certificates.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

struct HubOptions {
  std::string bind = "127.0.0.1";    // another than loopback: with an identity alone
  int64_t port = 0;                  // 0: any free one
  std::string advertise;             // host that workers dial; empty: what is bound
  std::optional<Identity> identity;  // all calls are encrypted, and every caller shows a certificate
  std::string run_id;
  std::string build;  // what was built, and the host that it runs on: "tidepool 0.1.0 (abc1234) on host x"
  int64_t max_control_bytes = 4 << 20;
  int64_t max_frame_bytes = 1 << 20;
  int64_t max_queued_messages = 1 << 16;  // to one connection; more: it is closed as hung
  ReadPayload payloads;  // of Rows.Read, on any thread, within some seconds; null: there are none
};

// Rows of a lease for FetchRows, in order, as this rank of its training group gets them; any thread.
using RowsProvider = std::function<StatusOr<std::shared_ptr<const std::vector<BatchRow>>>(
    int64_t lease, StepNumber step, Incarnation inc, int64_t rank)>;

// Where a group meets, for Meet; any thread. kNotFound: it is over; kPermissionDenied: the asker is no
// member.
using MeetingProvider = std::function<StatusOr<std::shared_ptr<comm::RendezvousTable>>(
    const std::string& meeting, Incarnation asker)>;

class Hub : public Attachments::Wire {
 public:
  // kInvalidArgument: bind is not loopback, and there is no identity. kUnavailable: port taken.
  static StatusOr<std::unique_ptr<Hub>> Start(const HubOptions& options, const JobTokens& tokens,
                                              std::function<void(HubEvent)> sink, RowsProvider rows,
                                              MeetingProvider meetings = {});
  // What Start would say of the address just now.
  static Status CanListen(const std::string& bind, int64_t port);
  ~Hub() override;

  [[nodiscard]] std::string address() const;  // that workers dial, "127.0.0.1:40123"
  void Send(ConnectionId connection, ToWorker message) override;
  // Until it goes, what is sent waits, and then leaves as few frames: a worker that is given a hundred chunks
  // at once takes them into one engine step, not into a dozen.
  class Holding {
   public:
    explicit Holding(Hub* hub) : hub_(hub) {}
    ~Holding();
    Holding(const Holding&) = delete;
    Holding& operator=(const Holding&) = delete;

   private:
    Hub* hub_;
  };
  [[nodiscard]] Holding Hold();
  // Makes the certificate of a newcomer at this place anew; an empty request: names the authorities alone. On
  // gRPC's threads, which it may hold for some seconds.
  using Renews = std::function<StatusOr<CertificateRenewal::Certified>(const std::string& signing_request,
                                                                       CallerRole role, int64_t place)>;
  // From now on; before, nobody's is.
  void RenewBy(Renews renews);
  // The worker is told why, then the connection is closed.
  void Refuse(ConnectionId connection, down::Refuse why) override;
  void Close(ConnectionId connection, const std::string& why) override;
  // Ends all calls and the server; returns within a few seconds.
  void Stop();
  [[nodiscard]] int64_t served_row_bytes() const;  // of frames that FetchRows and Rows.Read sent
  [[nodiscard]] int64_t refused_calls() const;     // wrong or no token, wrong role
  // In frames from and to workers, before they are encrypted.
  [[nodiscard]] int64_t received_bytes() const;
  [[nodiscard]] int64_t sent_bytes() const;

 private:
  Hub();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool::workers
