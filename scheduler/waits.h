#pragma once
// Every wait of the controller, with its deadline: who is waited for, in what, since when. What the
// watchdog names when nothing moves any more. Pure; not thread-safe.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "core/base/time.h"
#include "core/base/words.h"

namespace tidepool::scheduler {

enum class WaitKind : uint8_t {
  kState,
  kTrain,
  kPublish,
  kRecoveryCopy,
  kCheckpoint,
  kVerify,
  kFinal,
  kTransition,
  kPull,
  kLoad,
  kRow,
  kPayload,
  kGroup,
  kAbort,
  kEngine,
};
constexpr auto WordsOf(WaitKind) {
  return std::to_array<const char*>({"state", "train", "publish", "recovery_copy", "checkpoint",
                                     "verify_checkpoint", "save_final", "transition", "pull", "load", "row",
                                     "payload", "form_group", "abort_step", "engine_lost"});
}

class Waits {
 public:
  struct Key {
    WaitKind kind;
    int64_t id = 0;  // slot, worker, ordinal ...: unique inside a kind
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Wait {
    WorkerRef who;  // invalid: the controller's own storage
    TimePoint since, deadline;
    std::string what;
  };

  void Begin(const Key& key, Wait wait) { waits_[key] = std::move(wait); }
  void End(const Key& key) { waits_.erase(key); }
  // What is waited for shows signs of life: the deadline moves, never back. No effect where nothing is waited
  // for.
  void Extend(const Key& key, TimePoint deadline) {
    const auto it = waits_.find(key);
    if (it != waits_.end() && it->second.deadline < deadline) it->second.deadline = deadline;
  }
  // What this worker is waited for has not begun: it has all of its time from now on.
  void BeginAnew(const WorkerRef& who, TimePoint now);
  [[nodiscard]] bool Has(const Key& key) const { return waits_.contains(key); }
  [[nodiscard]] const Wait* Find(const Key& key) const;
  // Those whose deadline has passed; they stay until ended.
  [[nodiscard]] std::vector<Key> Expired(TimePoint now) const;
  // The latest deadline of all waits; `now` if there is none.
  [[nodiscard]] TimePoint Horizon(TimePoint now) const;
  // "op=train waiting_for=device-0/inc1 for_s=31.2; ...", oldest first, at most `n`.
  using NameOf = std::function<std::string(const WorkerRef&)>;
  [[nodiscard]] std::string Describe(TimePoint now, const NameOf& name_of, int64_t n = 4) const;
  [[nodiscard]] bool empty() const { return waits_.empty(); }
  [[nodiscard]] const std::map<Key, Wait>& all() const { return waits_; }

 private:
  std::map<Key, Wait> waits_;
};

// Armed while work remains. Anything that moves a run on is progress; heartbeats alone are not.
class Watchdog {
 public:
  explicit Watchdog(Duration limit) : limit_(limit) {}
  void Progress(TimePoint now) { last_ = now; }
  // Nothing has moved for the limit and no wait is still inside its own (longer) deadline.
  [[nodiscard]] bool Stalled(const Waits& waits, TimePoint now) const;
  [[nodiscard]] TimePoint last() const { return last_; }

 private:
  Duration limit_;
  TimePoint last_;
};

}  // namespace tidepool::scheduler
