#include "core/observe/pool_history.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/base/real_file_system.h"
#include "core/storage/journal.h"
#include "core/storage/run_directory.h"

namespace tidepool::observe {
namespace {

class Reader {
 public:
  void Take(const JournalEntry& e) {
    const double own = static_cast<double>(e.mono_ns) * 1e-9;
    if (e.ctl_epoch != epoch_) {  // another controller, whose clock begins anew
      if (epoch_ != 0) Cut();
      offset_ = now_;
      epoch_ = e.ctl_epoch;
    }
    now_ = std::max(now_, offset_ + own);
    std::visit([this](const auto& r) { On(r); }, e.record);
  }

  PoolHistory Finish() {
    Cut();
    std::ranges::sort(history_.lanes.spans, {}, &ReadSpan::start_s);
    history_.end_s = now_;
    for (const int64_t slot : seen_) history_.lanes.workers[slot] = "slot " + std::to_string(slot);
    return std::move(history_);
  }

 private:
  struct Lane {
    std::string category, name;
    double since = 0;
    Role role = Role::kNone;
  };

  struct Move {  // a transaction that is under way
    std::vector<int64_t> slots;
    std::pair<Role, Role> roles;  // of the first slot
    double begun = 0, released = 0;
  };

  void Put(int64_t slot, const std::string& category, const std::string& name) {
    seen_.insert(slot);
    Lane& lane = lanes_[slot];
    if (lane.category == category && lane.name == name) return;
    Close(slot, lane);
    lane.category = category;
    lane.name = name;
    lane.since = now_;
  }
  void Close(int64_t slot, const Lane& lane) {
    if (lane.category.empty() || now_ <= lane.since) return;
    history_.lanes.Add({slot, 0, lane.name, lane.category, lane.since, now_ - lane.since});
  }
  void Cut() {
    for (auto& [slot, lane] : lanes_) {
      Close(slot, lane);
      lane = {};
    }
    training_.clear();
    moving_.clear();
  }
  // What a slot does when it is in no transaction.
  void Rest(int64_t slot) {
    const Role role = lanes_[slot].role;
    if (role == Role::kActor && training_.contains(slot))
      Put(slot, "train", "optimizer step");
    else if (role == Role::kActor)
      Put(slot, "actor", "training role, between steps");
    else if (role == Role::kRollout)
      Put(slot, "rollout", "generates");
  }

  void On(const record::TransitionBegin& r) {
    if (r.slots.empty()) return;
    Move& move = moving_[r.t];
    move = {{}, {r.slots.front().from, r.slots.front().to}, now_, now_};
    for (const record::SlotPlan& s : r.slots) {
      move.slots.push_back(s.slot.value);
      Put(s.slot.value, "moving", std::string(Name(s.from)) + " to " + Name(s.to));
    }
  }
  void On(const record::Grant& r) {
    lanes_[r.slot.value].role = r.role;
    seen_.insert(r.slot.value);
    const bool moves = std::ranges::any_of(
        moving_, [&](const auto& m) { return std::ranges::count(m.second.slots, r.slot.value) > 0; });
    if (!moves) Rest(r.slot.value);
  }
  void End(TransitionId t) {
    const auto it = moving_.find(t);
    if (it == moving_.end()) return;
    const std::vector<int64_t> slots = std::move(it->second.slots);
    moving_.erase(it);
    for (const int64_t slot : slots) Rest(slot);
  }
  void On(const record::TransitionCommit& r) {
    if (const auto it = moving_.find(r.t); it != moving_.end()) it->second.released = now_;
  }
  void On(const record::TransitionDone& r) {
    ++history_.moves;
    if (const auto it = moving_.find(r.t); it != moving_.end()) {
      MoveTimes& times = history_.times[it->second.roles];
      times.release_s.push_back(it->second.released - it->second.begun);
      times.grant_s.push_back(now_ - it->second.released);
    }
    End(r.t);
  }
  void On(const record::TransitionRolledBack& r) {
    if (const auto it = moving_.find(r.t); it != moving_.end())
      ++history_.times[it->second.roles].rolled_back;
    for (const record::SlotPlan& s : r.slots) lanes_[s.slot.value].role = s.to;
    End(r.t);
  }
  void On(const record::StepBegin& r) {
    for (const record::SlotPlan& s : r.members) {
      training_.insert(s.slot.value);
      Rest(s.slot.value);
    }
  }
  void EndStep() {
    const std::set<int64_t> slots = std::move(training_);
    training_.clear();
    for (const int64_t slot : slots) {
      if (lanes_[slot].category == "train") Rest(slot);
    }
  }
  void On(const record::StepCommit& r) {
    history_.steps.push_back(now_);
    committed_ = r.step.value;
    EndStep();
  }
  void On(const record::Restore& r) {
    history_.restores.push_back({now_, committed_, r.step.value, r.ckpt});
    committed_ = r.step.value;
  }
  void On(const record::StepAbort&) { EndStep(); }
  void On(const record::Fault& r) { ++history_.faults[r.kind]; }
  void Lost(int64_t slot, const std::string& why) {
    lanes_[slot].role = Role::kNone;
    training_.erase(slot);
    Put(slot, "lost", why);
  }
  void On(const record::SlotLost& r) { Lost(r.slot.value, r.why); }
  void On(const record::Quarantine& r) { Lost(r.slot.value, "quarantined: " + r.why); }
  template <typename T>
  void On(const T&) {}

  PoolHistory history_;
  std::map<int64_t, Lane> lanes_;
  std::map<TransitionId, Move> moving_;
  std::set<int64_t> training_, seen_;
  int64_t committed_ = 0;  // step
  double now_ = 0, offset_ = 0;
  uint32_t epoch_ = 0;
};

}  // namespace

PoolHistory PoolHistoryOf(const std::vector<JournalEntry>& journal) {
  Reader reader;
  for (const JournalEntry& e : journal) reader.Take(e);
  return reader.Finish();
}

StatusOr<PoolHistory> ReadPoolHistory(const std::string& run_dir) {
  RealFileSystem fs;
  Reader reader;
  const auto scanned =
      storage::ScanJournal(fs, storage::RunPaths(run_dir).journal(), "", Lsn{0}, [&](JournalEntry&& e) {
        reader.Take(e);
        return OkStatus();
      });
  if (!scanned.ok()) return scanned.status();
  return reader.Finish();
}

struct PoolFollower::Followed {
  storage::JournalTail tail;
  Reader reader;
};

PoolFollower::PoolFollower(FileSystem& fs, const std::string& run_dir)
    : fs_(fs), journal_(storage::RunPaths(run_dir).journal()) {}
PoolFollower::~PoolFollower() = default;

StatusOr<PoolHistory> PoolFollower::Read() {
  const auto poll = [&] {
    if (followed_ == nullptr)
      followed_ = std::make_unique<Followed>(Followed{storage::JournalTail(fs_, journal_, Lsn{0}), {}});
    return followed_->tail.Poll([&](JournalEntry&& e) {
      followed_->reader.Take(e);
      return OkStatus();
    });
  };
  Status polled = poll();
  if (polled.code() == StatusCode::kAborted) {
    followed_.reset();
    polled = poll();
  }
  TP_RETURN_IF_ERROR(polled);
  return Reader(followed_->reader).Finish();
}

}  // namespace tidepool::observe
