#pragma once
// One stream to an environment that is a service (proto/environment.proto), and what is asked on it: one
// thing at a time. Of one thread, and gRPC's own.

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/base/status.h"
#include "core/base/thread_annotations.h"
#include "core/environments/episode.h"
#include "core/text/unicode.h"
#include "workers/net/bounded_text.h"
#include "workers/net/rpc_status.h"

namespace tidepool::workers {

// Of one answer. What a policy could read is far below it.
inline constexpr int kMostAnswerBytes = 4 << 20;
// Whoever waits for something that another thread does looks at its own end so often.
inline constexpr std::chrono::milliseconds kLooksEvery{200};
// A service that answers at all answers Describe in less.
inline constexpr std::chrono::seconds kDescribeTakes{5};
inline constexpr const char* kNoEnvironment = "a server that has no tidepool.v1.Environment answers there";

inline std::string SecondsTaken(std::chrono::steady_clock::duration d) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", std::chrono::duration<double>(d).count());
  return text;
}

inline Status FromService(const grpc::Status& status) {
  const Status plain = FromGrpc(status);
  return {plain.code(), Clean(plain.message())};
}

// It owns itself until gRPC is done with it.
template <typename Request, typename Reply>
class ServiceStream final : public grpc::ClientBidiReactor<Request, Reply> {
  using Clock = std::chrono::steady_clock;
  using PlayLimit = environments::PlayLimit;

 public:
  // `play(context, reactor)` is the stub's method for such a stream.
  template <typename Play>
  static std::shared_ptr<ServiceStream> Open(Play play, const std::string& token) {
    std::shared_ptr<ServiceStream> stream(new ServiceStream());
    {
      const MutexLock lock(stream->mu_);
      stream->self_ = stream;
    }
    if (!token.empty()) AddToken(&stream->context_, token);
    play(&stream->context_, stream.get());
    stream->AddHold();
    stream->StartRead(&stream->reply_);
    stream->StartCall();
    return stream;
  }

  // Errors of Answer.
  Status Ask(Request request, const PlayLimit& limit) {
    const MutexLock lock(mu_);
    // An answer may be here before gRPC says that what was asked is on its way, and that takes one thing at a
    // time.
    Await(limit, [this]() TP_REQUIRES(mu_) { return !writing_ || released_; });
    if (released_ || writing_) return EndOf(limit);
    asked_ = request.step();
    request_ = std::move(request);
    writing_ = true;
    this->StartWrite(&request_);
    return OkStatus();
  }

  // To what was asked. kDeadlineExceeded: there is none by then, and it is over with the stream.
  // kUnavailable: the stream or the service is lost. kDataLoss: what came is no answer to this.
  StatusOr<Reply> Answer(const PlayLimit& limit) {
    const MutexLock lock(mu_);
    Await(limit, [this]() TP_REQUIRES(mu_) { return answer_.has_value() || done_; });
    if (!answer_) return EndOf(limit);
    Reply reply = std::move(*answer_);
    answer_.reset();
    return reply;
  }

  // No more is asked: the instance is given back.
  void Close() {
    context_.TryCancel();
    Release();
  }

 private:
  ServiceStream() = default;

  template <typename Done>
  void Await(const PlayLimit& limit, Done done) TP_REQUIRES(mu_) {
    while (!done()) {
      const auto left = limit.deadline - Clock::now();
      if (left <= Clock::duration(0) || limit.stop.stop_requested()) return;
      (void)wake_.WaitFor(mu_, std::min<Clock::duration>(left, kLooksEvery), done);
    }
  }

  // Why there is no answer.
  Status EndOf(const PlayLimit& limit) TP_REQUIRES(mu_) {
    if (!broken_.empty()) return DataLoss(broken_);
    while (released_ && !done_) {  // its status is on the way
      if (!wake_.WaitFor(mu_, kDescribeTakes, [this]() TP_REQUIRES(mu_) { return done_; })) break;
    }
    if (!done_) {
      if (limit.stop.stop_requested()) return Unavailable("this worker ends");
      return DeadlineExceeded("no answer");
    }
    if (status_.ok()) return Internal("it ended the stream without an answer");
    const Status status = FromService(status_);
    if (status.code() == StatusCode::kResourceExhausted &&
        status.message().find("message larger than max") != std::string::npos)
      return DataLoss("it said more than the " + std::to_string(kMostAnswerBytes >> 20) +
                      " MiB that one answer may have");
    if (status.code() == StatusCode::kInvalidArgument) return DataLoss(status.message());
    if (status.code() == StatusCode::kUnimplemented) return Unavailable(kNoEnvironment);
    if (status.code() == StatusCode::kCancelled)
      return Unavailable("the stream was ended: " + status.message());
    return status;
  }

  void OnReadDone(bool ok) override {
    bool more = false;
    {
      const MutexLock lock(mu_);
      if (ok && asked_ < 0) {
        broken_ = "it answered without being asked (step " + std::to_string(reply_.step()) + ")";
      } else if (ok && reply_.step() != asked_) {
        broken_ = "it answered step " + std::to_string(reply_.step()) + " where step " +
                  std::to_string(asked_) + " was asked";
      } else if (ok) {
        answer_ = std::move(reply_);
        asked_ = -1;
        more = true;
      }
      wake_.NotifyAll();
    }
    if (more) return this->StartRead(&reply_);
    if (ok) context_.TryCancel();
    Release();
  }
  void OnWriteDone(bool /*ok*/) override {  // where it is not, the read fails too
    const MutexLock lock(mu_);
    writing_ = false;
    wake_.NotifyAll();
  }
  void OnDone(const grpc::Status& status) override {
    std::shared_ptr<ServiceStream> self;
    const MutexLock lock(mu_);
    status_ = status;
    done_ = true;
    self = std::move(self_);
    wake_.NotifyAll();
  }
  void Release() {
    {
      const MutexLock lock(mu_);
      if (std::exchange(released_, true)) return;
    }
    this->RemoveHold();  // OnDone may follow at once
  }

  grpc::ClientContext context_;  // waits: who asks has a deadline, and cancels
  Request request_;
  Reply reply_;
  Mutex mu_;
  Condition wake_;
  int64_t asked_ TP_GUARDED_BY(mu_) = -1;  // step; -1: nothing
  std::optional<Reply> answer_ TP_GUARDED_BY(mu_);
  std::string broken_ TP_GUARDED_BY(mu_);
  bool writing_ TP_GUARDED_BY(mu_) = false;
  bool released_ TP_GUARDED_BY(mu_) = false, done_ TP_GUARDED_BY(mu_) = false;
  grpc::Status status_ TP_GUARDED_BY(mu_);
  std::shared_ptr<ServiceStream> self_ TP_GUARDED_BY(mu_);
};

}  // namespace tidepool::workers
