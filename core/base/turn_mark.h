#pragma once
// What is known of one turn of the policy in an episode, beside its tokens.

#include <cstdint>

namespace tidepool {

struct TurnMark {
  int64_t begin = 0;         // token of the response that the turn begins with
  uint64_t state = 0;        // hash of the state that the policy acts in (environments::TextGame::State)
  double reward_before = 0;  // of all turns before this one
  friend bool operator==(const TurnMark&, const TurnMark&) = default;
};

}  // namespace tidepool
