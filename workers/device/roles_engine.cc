// Slots that are one engine (rollout.mesh.tp): the group of their workers, and what the first of them tells
// the others (core/engine/ranks.h).
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/base/loopback.h"
#include "core/engine/follower.h"
#include "core/observe/log.h"
#include "workers/data/shared_arena.h"
#include "workers/device/roles_work.h"
#include "workers/net/worker_trace.h"

namespace tidepool::workers {
namespace {

constexpr int kEngineRow = 1;          // of the time line (roles_work.cc)
constexpr double kLeastSeconds = 0.1;  // to say something when the time of a grant is over

// What all of them load.
std::string TextOf(const down::Load& c) {
  std::ostringstream text;
  text << c.v.lineage << ' ' << c.v.number << ' ' << c.digest << ' ' << c.alias << ' ' << c.address;
  return text.str();
}
down::Load LoadOf(const std::string& body) {
  down::Load c;
  std::istringstream text(body);
  text >> c.v.lineage >> c.v.number >> c.digest >> c.alias >> c.address;
  return c;
}

}  // namespace

Status RolesWork::JoinEngine(const down::Grant& c) {
  if (engine_ranks_ != nullptr && engine_ranks_->meeting == c.meeting) return OkStatus();
  LeaveEngine();
  const auto operation = Begins("form_engine", observe::kSystemSpan);
  TP_RETURN_IF_ERROR(SharedBlock::MakeFolderOf(shared_folder_));
  TP_ASSIGN_OR_RETURN(auto group, comm::MakeGroup({.rendezvous = link_->MeetingAt(c.meeting),
                                                   .name = "engine",
                                                   .rank = static_cast<int>(c.rank),
                                                   .size = static_cast<int>(c.ranks),
                                                   .host = std::string(BareHost(host_)),
                                                   .shared_folder = shared_folder_,
                                                   .timeout_s = c.timeout_s}));
  observe::Log(LogLevel::kInfo, "group_formed",
               {{"of", "engine"}, {"rank", group->rank()}, {"ranks", group->size()}, {"by", group->by()}});
  if (group->by() != "memory")
    return Unimplemented(
        "the slots of an engine (rollout.mesh.tp) have to share a host's memory, and these have " +
        group->by());
  engine_ranks_ = std::make_unique<EngineRanks>(c.meeting, c.timeout_s, std::move(group));
  return OkStatus();
}

// The first slot asks whether all have their keys and values still, whoever was told to release them and
// whoever holds the role since the last grant; the others answer where they follow it.
Status RolesWork::PrepareRanks(const down::Grant& c) {
  const auto begin = Clock::now();
  TP_RETURN_IF_ERROR(JoinEngine(c));
  const bool kept = roles_->held(Role::kRollout).kv > 0;
  engine_ranks_->kept = engine_ranks_->kept && kept;
  if (engine_ranks_->ranks.leads()) {
    const std::chrono::duration<double> passed = Clock::now() - begin;
    try {
      const double left = std::max(c.timeout_s - passed.count(), kLeastSeconds);
      const bool all = engine_ranks_->ranks.AllKept(engine_ranks_->kept, left);
      if (kept && !all) roles_->Release(Role::kRollout);
    } catch (const model::PeersFailed& e) {
      LeaveEngine();
      return e.status();
    }
    engine_ranks_->kept = true;
  }
  return roles_->PrepareRollout(&engine_ranks_->ranks);
}

// Until it is replaced, a slot that has lost the others must not take itself for a whole engine.
Status RolesWork::EngineWhole() const {
  if (engine_lost_.empty()) return OkStatus();
  return Unavailable("the slots of its engine have lost each other: " + engine_lost_);
}

void RolesWork::LeaveEngine() {
  if (engine_ranks_ == nullptr) return;
  roles_->DropEngine();
  engine_ranks_.reset();
}

// Of slots that are one engine none is of use without the others. The controller is told (DeviceMachine),
// replaces all of them, and has the samples generated elsewhere, or again.
void RolesWork::LoseEngine(const Status& why) {
  observe::Log(LogLevel::kInfo, "engine_lost", {{"text", why.message()}});
  LeaveEngine();
  engine_lost_ = why.message();
  if (engine_lost_.empty()) engine_lost_ = "no reason is known";
}

void RolesWork::Follow() {
  constexpr std::chrono::milliseconds kPatience{20};  // a command waits for as long
  try {
    const auto order = engine_ranks_->ranks.Next(kPatience);
    if (!order) return;
    if (order->kind == engine::Order::kKept) {
      engine_ranks_->ranks.AnswerKept(std::exchange(engine_ranks_->kept, true), engine_ranks_->timeout_s);
      return;
    }
    if (order->kind != engine::Order::kOther) {
      if (!roles_->loaded()) {
        LoseEngine(FailedPrecondition("the first slot computes with weights that this one was never given"));
        return;
      }
      pulse_.Begin("generate");
      const TimePoint begin = TraceNow();
      roles_->follower()->Do(*order);
      if (trace_ && order->kind == engine::Order::kForward)
        trace_->Add(
            {"follow", std::string(observe::kRolloutSpan), kEngineRow, begin, TraceNow() - begin, {}});
      return;
    }
    down::Load load = LoadOf(order->body);
    auto done = LoadHere(load);
    // The first slot trained these weights. This one may not have: it is new.
    if (std::exchange(load.alias, false) && (!done.ok() || done->digest != load.digest))
      done = LoadHere(load);
    const bool right = done.ok() && done->digest == load.digest;
    if (right) roles_->UseVersion(load.v);
    const std::string error = right ? "" : done.ok() ? "it has other weights" : done.status().message();
    (void)engine_ranks_->ranks.Answers(error, config_.cluster.start_timeout_s);
  } catch (const model::PeersFailed& e) {
    LoseEngine(e.status());
  } catch (const c10::Error&) {
    throw;                             // the device has failed, or has no memory
  } catch (const std::exception& e) {  // from tensor math: the first slot hears that this one has left
    LoseEngine(Internal(e.what()));
  }
}

StatusOr<RolesWork::Copied> RolesWork::Load(const down::Load& c) {
  TP_RETURN_IF_ERROR(EngineWhole());
  if (engine_ranks_ == nullptr) return LoadHere(c);
  try {
    return LoadWithRanks(c);
  } catch (const model::PeersFailed& e) {
    LoseEngine(e.status());
    return e.status();
  }
}

// All slots of an engine load at the same time, each its part.
StatusOr<RolesWork::Copied> RolesWork::LoadWithRanks(const down::Load& c) {
  engine_ranks_->ranks.Tell({engine::Order::kOther, TextOf(c)});
  auto done = LoadHere(c);
  const std::vector<std::string> errors = engine_ranks_->ranks.Answers("", config_.cluster.start_timeout_s);
  for (size_t rank = 0; rank < errors.size() && done.ok(); ++rank) {
    if (!errors[rank].empty())
      done = Unavailable("rank " + std::to_string(rank) + " of the engine: " + errors[rank]);
  }
  return done;
}

}  // namespace tidepool::workers
