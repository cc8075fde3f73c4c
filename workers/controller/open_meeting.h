#pragma once
// Where processes that are to compute together find each other (core/comm/rendezvous.h): the ranks that
// train, and the slots of each engine. There is one meeting at a time; only its members may ask for it, and
// members of an earlier one hear that theirs is over. A new controller begins with none. Thread-safe.

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/base/thread_annotations.h"
#include "core/comm/rendezvous_table.h"

namespace tidepool::workers {

class OpenMeeting {
 public:
  // meeting: a name that no other group of this run has.
  void Admit(const std::string& meeting, Incarnation member) TP_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    if (meeting == ended_) return;  // a member has left before the last one was told
    if (meeting != meeting_) {
      End("another one was formed");
      meeting_ = meeting;
      table_ = std::make_shared<comm::RendezvousTable>();
    }
    if (std::ranges::find(members_, member) == members_.end()) members_.push_back(member);
  }
  // However it went: of a group that has lost one, nobody waits for the others any more.
  void Left(Incarnation member) TP_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    if (std::ranges::find(members_, member) != members_.end())
      End("incarnation " + std::to_string(member.value) + " is gone");
  }
  // kNotFound: that group is over. kPermissionDenied: `asker` is no member.
  StatusOr<std::shared_ptr<comm::RendezvousTable>> At(const std::string& meeting, Incarnation asker) const
      TP_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    if (table_ == nullptr || meeting != meeting_)
      return NotFound("group " + meeting + " is over, or was never formed by this controller");
    if (std::ranges::find(members_, asker) == members_.end())
      return PermissionDenied("incarnation " + std::to_string(asker.value) + " is not in group " + meeting);
    return table_;
  }

 private:
  void End(const std::string& why) TP_REQUIRES(mu_) {
    if (table_ != nullptr) table_->Close(why);
    table_.reset();
    ended_ = std::exchange(meeting_, "");
    members_.clear();
  }

  mutable Mutex mu_;
  std::string meeting_ TP_GUARDED_BY(mu_), ended_ TP_GUARDED_BY(mu_);
  std::vector<Incarnation> members_ TP_GUARDED_BY(mu_);
  std::shared_ptr<comm::RendezvousTable> table_ TP_GUARDED_BY(mu_);  // null: there is no group
};

// One meeting for each engine of several slots, found by the worker of its first slot. Thread-safe.
class EngineMeetings {
 public:
  void Admit(WorkerId leader, const std::string& meeting, Incarnation member) TP_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    of_[leader].Admit(meeting, member);
  }
  void Left(Incarnation member) TP_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    for (auto& [leader, meeting] : of_) meeting.Left(member);
  }
  // Errors of OpenMeeting::At.
  StatusOr<std::shared_ptr<comm::RendezvousTable>> At(const std::string& meeting, Incarnation asker) const
      TP_EXCLUDES(mu_) {
    const MutexLock lock(mu_);
    for (const auto& [leader, open] : of_) {
      auto there = open.At(meeting, asker);
      if (there.status().code() != StatusCode::kNotFound) return there;
    }
    return NotFound("group " + meeting + " is over, or was never formed by this controller");
  }

 private:
  mutable Mutex mu_;
  std::map<WorkerId, OpenMeeting> of_ TP_GUARDED_BY(mu_);
};

}  // namespace tidepool::workers
