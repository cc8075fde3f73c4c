#pragma once
// Frozen lake as a transition table equal to Gymnasium's. Pure; thread-safe.

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace tidepool::environments {

// One possible outcome of action `action` in state `state`.
struct Outcome {
  int64_t state = 0, action = 0, next = 0;
  double reward = 0;
  bool terminated = false;
  double probability = 0;
};
// Ordered by (state, action, next, reward, terminated); equal outcomes are one entry; the probabilities of a
// (state, action) sum to 1.
using TransitionTable = std::vector<Outcome>;
// Outcomes in any order, equal ones perhaps more than once, as such a table.
TransitionTable Merged(TransitionTable outcomes);

// S start, F ice, H hole, G goal, row by row; empty: no such map.
std::string_view FrozenLakeTiles(std::string_view map);

// FrozenLake-v1: actions 0 left, 1 down, 2 right, 3 up; states row by row. slippery: the intended direction
// with success_rate, each perpendicular one with (1 - success_rate)/2. Walls keep the place; holes and the
// goal absorb (terminated, reward 0); reward 1 on reaching the goal. map: "4x4" (limit 100 steps) or "8x8"
// (200). kUnimplemented: another map; kInvalidArgument: a success rate outside [0, 1].
StatusOr<TransitionTable> FrozenLake(std::string_view map, bool slippery, double success_rate);

}  // namespace tidepool::environments
