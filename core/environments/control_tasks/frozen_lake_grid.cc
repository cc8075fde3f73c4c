// Gymnasium's FrozenLake-v1 as a control task: the place is a row of zeros with a one.
#include <vector>

#include "core/environments/control_tasks/control_plugin.h"
#include "core/environments/toy_text.h"

namespace tidepool::environments {
namespace {

class Lake : public Rules {
 public:
  Lake(int64_t places, const TransitionTable& table)
      : places_(places), moves_(static_cast<size_t>(places * 4)) {
    for (const Outcome& o : table) moves_[static_cast<size_t>(o.state * 4 + o.action)].push_back(o);
  }
  std::array<double, 4> Start(Rng) const override { return {}; }
  MoveResult Play(const std::array<double, 4>& state, const float* action, Rng rng) const override {
    const auto& outcomes =
        moves_[static_cast<size_t>(static_cast<int64_t>(state[0]) * 4 + static_cast<int64_t>(action[0]))];
    double u = rng.Uniform();
    const Outcome* taken = &outcomes.back();
    for (const Outcome& o : outcomes) {
      if (u < o.probability) {
        taken = &o;
        break;
      }
      u -= o.probability;
    }
    return {{static_cast<double>(taken->next), 0, 0, 0}, taken->reward, taken->terminated};
  }
  void Observe(const std::array<double, 4>& state, float* out) const override {
    std::fill(out, out + places_, 0.0F);
    out[static_cast<int64_t>(state[0])] = 1.0F;
  }
  bool Holds(const std::array<double, 4>& s) const override {
    return s[0] >= 0 && s[0] < static_cast<double>(places_) && s[0] == std::floor(s[0]);
  }

 private:
  int64_t places_;
  std::vector<std::vector<Outcome>> moves_;
};

struct GridOptions {
  std::string map = "4x4";
  bool slippery = true;
};
StatusOr<GridOptions> ReadLake(const ControlOptions& options) {
  GridOptions lake;
  for (const auto& [key, value] : options) {
    if (key == "map") {
      if (value != "4x4" && value != "8x8")
        return InvalidArgument("map: found '" + value + "'; expected 4x4 or 8x8");
      lake.map = value;
    } else if (key == "slippery") {
      if (value != "true" && value != "false")
        return InvalidArgument("slippery: found '" + value + "'; expected true or false");
      lake.slippery = value == "true";
    } else {
      return InvalidArgument(key + ": frozen_lake_grid has the options map and slippery");
    }
  }
  return lake;
}

StatusOr<std::unique_ptr<Rules>> MakeLake(const ControlOptions& options, VectorSpec& spec) {
  TP_ASSIGN_OR_RETURN(const GridOptions lake, ReadLake(options));
  if (lake.map == "8x8") {
    spec.observation_size = 64;
    spec.max_episode_steps = 200;
  }
  if (!lake.slippery) spec.solved_return = 1;
  TP_ASSIGN_OR_RETURN(const TransitionTable table, FrozenLake(lake.map, lake.slippery, 1.0 / 3.0));
  return MakeRules<Lake>(spec.observation_size, table);
}

}  // namespace

TP_PLUGIN(Control, frozen_lake_grid) {
  return {.spec = {.reference = "FrozenLake-v1",
                   .continuous = false,
                   .observation_size = 16,
                   .actions = 4,
                   .max_episode_steps = 100,
                   .solved_return = 0.7,
                   .reward = "1 at the goal, else 0",
                   .options = "map: 4x4 (default) or 8x8; slippery: true (default) or false"},
          .make = MakeLake};
}

}  // namespace tidepool::environments
