#include "workers/data/weights_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "core/base/loopback.h"
#include "core/base/thread_annotations.h"
#include "core/base/weight_changes.h"
#include "proto/control.grpc.pb.h"
#include "workers/net/auth.h"
#include "workers/net/listener.h"
#include "workers/net/rpc_status.h"
#include "workers/net/tls.h"

namespace tidepool::workers {
namespace {

// Puts what differs from the base in place of bytes where that is shorter. Where it hardly ever is, it stops
// trying.
class Shortening {
 public:
  Shortening(PublishedBytes& published, int64_t word_bytes) : published_(published), word_bytes_(word_bytes) {
    if (word_bytes_ != 2 && word_bytes_ != 4) published_.base = nullptr;
  }
  void operator()(v1::WeightsFrame& frame) {
    if (!published_.base) return;
    constexpr int64_t kTried = int64_t{32} << 20;
    const std::string& data = frame.data();
    const size_t size = data.size();
    bool shorter = false;
    const bool there =
        published_.base(static_cast<size_t>(frame.offset()), size, [&](std::span<const std::byte> base) {
          shorter = CodeChanges(base, std::as_bytes(std::span(data)), word_bytes_, coded_);
        });
    if (shorter) {
      frame.mutable_data()->swap(coded_);
      frame.set_changed_bytes(static_cast<int64_t>(size));
    }
    whole_ += static_cast<int64_t>(size);
    sent_ += static_cast<int64_t>(data.size());
    if (!there || (whole_ >= kTried && sent_ > whole_ / 4 * 3)) published_.base = nullptr;
  }

 private:
  PublishedBytes& published_;
  const int64_t word_bytes_;
  int64_t whole_ = 0, sent_ = 0;
  std::string coded_;
};

}  // namespace

struct WeightsServer::Impl final : v1::Weights::Service {
  std::string token;
  int64_t most_frame_bytes = 1 << 20;
  PublishedSource source;
  std::unique_ptr<Listener> listener;

  [[nodiscard]] int64_t FrameFor(int64_t total) const {
    constexpr int64_t kFrames = 16, kLeast = int64_t{64} << 10, kWord = 4096;
    return std::min(std::max(total / kFrames / kWord * kWord, kLeast), most_frame_bytes);
  }

  grpc::Status Fetch(grpc::ServerContext* context, const v1::FetchWeightsRequest* request,
                     grpc::ServerWriter<v1::WeightsFrame>* writer) override {
    // First: who is admitted is a stranger no more.
    if (const Status s = CheckCertificate(*context, Name(CallerRole::kDevice)); !s.ok()) return ToGrpc(s);
    if (const Status s = listener->Admit(*context, "Fetch", token); !s.ok()) return ToGrpc(s);
    const auto version = [](const v1::Version& v) { return Version{v.lineage(), v.number()}; };
    const v1::WeightsBase& base = request->base();
    auto published = source({.version = version(request->version()),
                             .step = StepNumber{request->state_step() - 1},
                             .from = request->from(),
                             .base = {version(base.version()), base.digest(), base.word_bytes()}});
    if (!published.ok()) return ToGrpc(published.status());
    const bool in_pieces = published->copy != nullptr;
    int64_t total = in_pieces ? published->pieces.total : 0, sent = in_pieces ? request->from() : 0;
    if (sent < 0 || sent > total)
      return ToGrpc(InvalidArgument("Fetch: byte " + std::to_string(sent) + " of " + std::to_string(total)));
    Shortening shorten(*published, base.word_bytes());
    for (const auto& part : published->parts) total += static_cast<int64_t>(part.size());
    // Small weights in several, too, so that coding, the wire and applying go on at the same time.
    const int64_t frame_bytes = FrameFor(total);
    v1::WeightsFrame frame;
    frame.set_digest(published->digest);
    frame.set_total_bytes(total);
    if (in_pieces) {
      frame.set_piece_bytes(published->pieces.piece_bytes);
      frame.mutable_sums()->Add(published->pieces.sums.begin(), published->pieces.sums.end());
    }
    const auto send = [&]() -> Status {
      if (!writer->Write(frame)) return Unavailable("Fetch: the reader went away");
      frame.Clear();
      return OkStatus();
    };
    const auto put = [&](int64_t n, const auto& copy) -> Status {
      frame.set_offset(sent);
      frame.mutable_data()->resize(static_cast<size_t>(n));
      TP_RETURN_IF_ERROR(copy(std::as_writable_bytes(std::span(*frame.mutable_data()))));
      shorten(frame);
      sent += n;
      return send();
    };
    const auto all = [&]() -> Status {
      TP_RETURN_IF_ERROR(send());
      while (in_pieces && sent < total) {
        TP_RETURN_IF_ERROR(put(std::min(frame_bytes, total - sent), [&](std::span<std::byte> out) {
          return published->copy(static_cast<size_t>(sent), out);
        }));
      }
      for (const auto& part : published->parts) {
        const auto size = static_cast<int64_t>(part.size());
        for (int64_t at = 0; at < size; at += frame_bytes) {
          TP_RETURN_IF_ERROR(put(std::min(frame_bytes, size - at), [&](std::span<std::byte> out) {
            part.CopyTo(static_cast<size_t>(at), out);
            return OkStatus();
          }));
        }
      }
      return OkStatus();
    };
    if (const Status s = all(); !s.ok()) return ToGrpc(s);
    return grpc::Status::OK;
  }
};

WeightsServer::WeightsServer() : impl_(std::make_unique<Impl>()) {}
WeightsServer::~WeightsServer() {
  if (impl_->listener != nullptr) impl_->listener->Stop();
}
std::string WeightsServer::address() const { return impl_->listener->address(); }

StatusOr<std::unique_ptr<WeightsServer>> WeightsServer::Start(const std::string& bind,
                                                              const Credentials& credentials,
                                                              int64_t max_frame_bytes,
                                                              PublishedSource source) {
  if (!credentials.identity && !IsLoopback(bind))
    return FailedPrecondition(
        bind +
        " can be reached by others, and no certificates lie beside the token; take the whole folder "
        "RUN/security");
  std::unique_ptr<WeightsServer> server(new WeightsServer());
  server->impl_->token = credentials.token;
  server->impl_->most_frame_bytes =
      std::max<int64_t>(max_frame_bytes - 4096, 4096);  // room for the other fields
  server->impl_->source = std::move(source);
  TP_ASSIGN_OR_RETURN(server->impl_->listener, Listener::Open(bind, 0));
  grpc::ServerBuilder builder;
  builder.RegisterService(server->impl_.get());
  TP_RETURN_IF_ERROR(server->impl_->listener->Serve(builder, ServerSide(credentials.identity)));
  return server;
}

StatusOr<std::shared_ptr<grpc::Channel>> SourceConnection::To(const std::string& address,
                                                              const Credentials& credentials) {
  if (!credentials.identity && !IsLoopback(HostOf(address)))
    return FailedPrecondition(address +
                              " is on another host, and no certificates lie beside the token, so the call "
                              "would not be encrypted; take the whole folder RUN/security");
  std::optional<Identity> identity;
  if (credentials.identity) identity = Newest(*credentials.identity);
  const auto same = [](const Identity& a, const Identity& b) {
    return a.authority == b.authority && a.certificate == b.certificate && a.key == b.key;
  };
  const MutexLock lock(mu_);
  const auto now = std::chrono::steady_clock::now();
  // The source closes one that was idle for longer.
  const bool recent = now - std::exchange(asked_, now) < Listener::kPatience;
  if (recent && channel_ != nullptr && address == address_ && identity.has_value() == identity_.has_value() &&
      (!identity || same(*identity, *identity_)))
    return channel_;
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // workers speak to each other, never through a proxy
  // None that gRPC has kept for somebody else.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto tls = ClientSide(identity, Name(CallerRole::kDevice), &args);
  address_ = address;
  identity_ = std::move(identity);
  channel_ = grpc::CreateCustomChannel(address, tls, args);
  return channel_;
}

void SourceConnection::Forget(const std::shared_ptr<grpc::Channel>& channel) {
  const MutexLock lock(mu_);
  if (channel_ == channel) channel_ = nullptr;
}

namespace {

Status FetchOver(const std::shared_ptr<grpc::Channel>& channel, const std::string& address,
                 const Credentials& credentials, const WantedBytes& wanted, int64_t total,
                 const std::function<Status(uint64_t digest, WeightPieces pieces)>& head,
                 const std::function<Status(const FetchedBytes& bytes)>& take, const std::stop_token& stop) {
  const std::string what = wanted.step.valid() ? "state of step " + std::to_string(wanted.step.value)
                                               : "weights of version " + ToString(wanted.version);
  auto stub = v1::Weights::NewStub(channel);
  grpc::ClientContext context;  // waits: the guard below cancels it when nothing comes
  AddToken(&context, credentials.token);
  v1::FetchWeightsRequest request;
  request.mutable_version()->set_lineage(wanted.version.lineage);
  request.mutable_version()->set_number(wanted.version.number);
  request.set_state_step(wanted.step.value + 1);
  request.set_from(wanted.from);
  if (wanted.base.word_bytes > 0) {
    request.mutable_base()->mutable_version()->set_lineage(wanted.base.version.lineage);
    request.mutable_base()->mutable_version()->set_number(wanted.base.version.number);
    request.mutable_base()->set_digest(wanted.base.digest);
    request.mutable_base()->set_word_bytes(static_cast<int32_t>(wanted.base.word_bytes));
  }
  // How long it takes depends on the network; that bytes come does not.
  constexpr std::chrono::seconds kStalled{30};
  std::atomic<int64_t> reads{0};
  std::atomic<bool> stalled{false};
  // waits: a stop ends its sleep, and cancelling ends the call
  std::jthread guard([&](const std::stop_token& stop) {
    Mutex mu;
    Condition end;
    const MutexLock lock(mu);
    auto since = std::chrono::steady_clock::now();
    for (int64_t seen = 0; !stop.stop_requested();) {
      end.WaitFor(mu, stop, std::chrono::seconds(1));
      const auto now = std::chrono::steady_clock::now();
      if (const int64_t n = reads.load(); n != seen) {
        seen = n;
        since = now;
      } else if (now - since > kStalled && !stop.stop_requested()) {
        stalled = true;
        context.TryCancel();
        return;
      }
    }
  });
  const std::stop_callback called_off(stop, [&] { context.TryCancel(); });
  auto reader = stub->Fetch(&context, request);
  v1::WeightsFrame frame;
  int64_t at = wanted.from;
  Status wrong = OkStatus();
  for (bool first = true; wrong.ok() && reader->Read(&frame); first = false) {
    reads.fetch_add(1);
    const bool changes = frame.changed_bytes() != 0;
    const int64_t n = changes ? frame.changed_bytes() : static_cast<int64_t>(frame.data().size());
    if (first) {
      if (frame.total_bytes() != total) {
        wrong = DataLoss(what + " from " + address + ": " + std::to_string(frame.total_bytes()) +
                         " bytes where " + std::to_string(total) + " are expected");
        break;
      }
      wrong = head(frame.digest(), {.total = total,
                                    .piece_bytes = frame.piece_bytes(),
                                    .sums = {frame.sums().begin(), frame.sums().end()}});
    }
    if (wrong.ok() && n != 0) {
      if (frame.offset() != at || n < 0 || n > total - at || (changes && wanted.base.word_bytes == 0))
        wrong = DataLoss(what + " from " + address + ": another order than expected");
      else
        wrong = take({at, n, std::as_bytes(std::span(frame.data())), changes});
      at += n;
    }
  }
  if (!wrong.ok()) context.TryCancel();
  const Status end = FromGrpc(reader->Finish());
  if (stop.stop_requested()) return {StatusCode::kCancelled, "fetch " + what + ": it was called off"};
  if (!wrong.ok()) return wrong.At("fetch " + what + " from " + address);
  if (stalled)
    return DeadlineExceeded("fetch " + what + " from " + address + ": nothing came for half a minute");
  TP_RETURN_IF_ERROR(end.At("fetch " + what));
  return at == total ? OkStatus() : DataLoss(what + " from " + address + ": cut short");
}

}  // namespace

Status Fetch(SourceConnection& over, const std::string& address, const Credentials& credentials,
             const WantedBytes& wanted, int64_t total,
             const std::function<Status(uint64_t digest, WeightPieces pieces)>& head,
             const std::function<Status(const FetchedBytes& bytes)>& take, const std::stop_token& stop) {
  TP_ASSIGN_OR_RETURN(const auto channel, over.To(address, credentials));
  Status fetched = FetchOver(channel, address, credentials, wanted, total, head, take, stop);
  // A connection that failed waits before it is tried again, and one that is dead without knowing it stays
  // so.
  if (!fetched.ok()) over.Forget(channel);
  return fetched;
}

StatusOr<uint64_t> FetchBytes(const std::string& address, const Credentials& credentials,
                              const WantedBytes& wanted, std::span<const device::ByteStore> parts) {
  int64_t total = 0;
  for (const auto& part : parts) total += static_cast<int64_t>(part.size());
  size_t part = 0, in_part = 0;
  uint64_t digest = 0;
  const auto head = [&](uint64_t said, const WeightPieces&) {
    digest = said;
    return OkStatus();
  };
  const auto take = [&](const FetchedBytes& bytes) {
    std::span<const std::byte> left = bytes.data;
    while (!left.empty()) {
      if (in_part == parts[part].size()) {
        ++part;
        in_part = 0;
        continue;
      }
      const size_t n = std::min(left.size(), parts[part].size() - in_part);
      parts[part].CopyFrom(in_part, left.first(n));
      left = left.subspan(n);
      in_part += n;
    }
    return OkStatus();
  };
  SourceConnection own;
  TP_RETURN_IF_ERROR(Fetch(own, address, credentials, wanted, total, head, take));
  return digest;
}

}  // namespace tidepool::workers
