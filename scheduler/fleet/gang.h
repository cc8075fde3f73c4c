#pragma once
// A gang: device slots that hold one role together, as the parts of one model do that is too large for one
// device. It is granted a role, drained and fenced as a whole: a command goes to every member, in order, and
// counts as done when every member has answered; one lost member makes the others useless. A gang of one slot
// is the ordinary case. Pure; not thread-safe.

#include <cstdint>
#include <vector>

#include "core/base/ids.h"

namespace tidepool::scheduler {

class Gang {
 public:
  struct Member {
    SlotId slot;
    WorkerRef worker;       // whose device it is now; inc invalid: nobody's
    bool answered = false;  // the last command
  };

  Gang() = default;
  explicit Gang(const std::vector<SlotId>& slots);  // requires one or more, each once

  void Attach(SlotId slot, const WorkerRef& worker);  // requires a member's slot
  // That member's worker is gone. Returns the live workers of the other members (never the same one), which
  // the gang lets go too.
  std::vector<WorkerRef> Break(SlotId slot);
  // Only that member's worker is gone; the gang holds nothing, so the others stay.
  void Detach(SlotId slot);

  void Ask();  // a command went to all members: each owes an answer
  // Takes the answer of that member. False: it is none of this gang's, or it has answered.
  bool Answer(const WorkerRef& worker, SlotId slot);
  [[nodiscard]] bool Answered() const;  // by all

  // The first member's worker, which speaks for the gang; inc invalid while some member has none.
  [[nodiscard]] WorkerRef leader() const;
  [[nodiscard]] const std::vector<Member>& members() const { return members_; }
  [[nodiscard]] const Member* Find(SlotId slot) const;  // nullptr: no member

 private:
  Member* At(SlotId slot);
  std::vector<Member> members_;
};

}  // namespace tidepool::scheduler
