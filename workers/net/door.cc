#include "workers/net/door.h"

#include <utility>

#include "proto/control.pb.h"
#include "workers/net/wire.h"

namespace tidepool::workers {
namespace {

CallerRole RoleOf(scheduler::WorkerKind kind) {
  return kind == scheduler::WorkerKind::kDevice   ? CallerRole::kDevice
         : kind == scheduler::WorkerKind::kReward ? CallerRole::kReward
                                                  : CallerRole::kEnvironment;
}

// A reward worker has verdicts and heartbeats to say, an environment worker what came of actions, and
// verdicts on fragments; neither has anything to say about devices or weights.
Status Allowed(CallerRole role, const FromWorkerBody& body) {
  if (std::holds_alternative<up::Hello>(body)) return InvalidArgument("a second Hello on one connection");
  if (std::holds_alternative<up::Heartbeat>(body) || std::holds_alternative<up::Offer>(body) ||
      std::holds_alternative<up::SeesRun>(body))
    return OkStatus();
  const bool is_grade = std::holds_alternative<up::Graded>(body),
             is_step = std::holds_alternative<up::EnvStepped>(body);
  const bool may = role == CallerRole::kReward        ? is_grade
                   : role == CallerRole::kEnvironment ? is_grade || is_step
                                                      : !is_grade && !is_step;
  if (may) return OkStatus();
  return PermissionDenied(std::string("a ") + Name(role) + " worker may not send this message");
}

}  // namespace

StatusOr<up::Hello> Door::Greeting(const std::string& run_id, CallerRole role, const v1::Frame& first) {
  TP_ASSIGN_OR_RETURN(auto messages, Unpack<FromWorker>(first));
  auto* hello = messages.size() == 1 ? std::get_if<up::Hello>(&messages.front().body) : nullptr;
  if (hello == nullptr) return InvalidArgument("the first message has to be Hello");
  if (hello->run_id != run_id) {
    return FailedPrecondition("this is the controller of run " + run_id + ", and the worker is to join run " +
                              hello->run_id + " (--run-id)");
  }
  if (const CallerRole wanted = RoleOf(hello->kind); role != wanted) {
    return PermissionDenied(std::string("a token for ") + Name(role) + " may not attach a " + Name(wanted) +
                            " worker");
  }
  return std::move(*hello);
}

Status Door::Heard(CallerRole role, const StatusOr<std::vector<FromWorker>>& messages) {
  TP_RETURN_IF_ERROR(messages.status());
  for (const FromWorker& message : *messages) TP_RETURN_IF_ERROR(Allowed(role, message.body));
  return OkStatus();
}

ConnectionId Door::Open() {
  connections_[++newest_];
  return newest_;
}

std::string Door::Closed(ConnectionId id, const std::string& why) {
  const auto it = connections_.find(id);
  std::string said = it == connections_.end() || it->second.why.empty() ? why : it->second.why;
  connections_.erase(id);
  unsent_.erase(id);
  return said;
}

void Door::Send(ConnectionId id, ToWorker message) {
  const auto it = connections_.find(id);
  if (it == connections_.end() || it->second.last) return;  // it has just gone: HubClosed is on its way
  if (static_cast<int64_t>(it->second.queue.size()) >= max_queued_)
    return Close(id, "the worker does not read its commands");
  it->second.queue.push_back(std::move(message));
  unsent_.insert(id);
  if (holds_ == 0) streams_->Wake(id);
}

void Door::Refuse(ConnectionId id, down::Refuse why) {
  const auto it = connections_.find(id);
  if (it == connections_.end() || it->second.last) return;
  it->second.why = why.why;
  it->second.queue.push_back(ToWorker{0, 0, std::move(why)});
  it->second.last = true;
  streams_->Wake(id);
  streams_->End(id, kRefusalDeadline);
}

void Door::Close(ConnectionId id, const std::string& why) {
  const auto it = connections_.find(id);
  if (it == connections_.end()) return;
  if (it->second.why.empty()) it->second.why = why;
  it->second.queue.clear();
  unsent_.erase(id);
  it->second.last = true;
  streams_->End(id, Duration{0});
}

void Door::Release() {
  if (--holds_ > 0) return;
  // Also what was sent before the hold, if nobody has taken it since.
  for (const ConnectionId id : unsent_) streams_->Wake(id);
}

bool Door::HasUnsent(ConnectionId id) const {
  const auto it = connections_.find(id);
  return it != connections_.end() && !it->second.queue.empty() && (holds_ == 0 || it->second.last);
}

std::deque<ToWorker> Door::TakeUnsent(ConnectionId id) {
  if (!HasUnsent(id)) return {};
  unsent_.erase(id);
  return std::exchange(connections_.at(id).queue, {});
}

}  // namespace tidepool::workers
