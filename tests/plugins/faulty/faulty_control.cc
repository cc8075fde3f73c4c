// A control task that does something wrong, from the fourth step of an episode on.
#include <errno.h>

#include <string_view>

#include "core/environments/control_tasks/control_plugin.h"
#include "tests/plugins/faulty/faults.h"

namespace tidepool::environments {
namespace {

class FaultyControl : public Rules {
 public:
  FaultyControl(std::string in, std::string how) : in_(std::move(in)), how_(std::move(how)) {}
  std::array<double, 4> Start(Rng /*rng*/) const override {
    if (in_ == "Start") DoWrong(how_);
    return {};
  }
  MoveResult Play(const std::array<double, 4>& state, const float* /*action*/, Rng /*rng*/) const override {
    if (in_ == "Play" && state[0] > 3) DoWrong(how_);
    // Not in the worker that plays: where an episode is played again to be drawn.
    if (in_ == "Replay" && std::string_view(program_invocation_short_name) == "tidepool") DoWrong(how_);
    return {.state = {state[0] + 1}, .reward = 1};
  }
  void Observe(const std::array<double, 4>& state, float* out) const override {
    if (in_ == "Observe" && state[0] > 3) {
      DoWrong(how_);
      for (int64_t i = 0; how_ == "flood" && i < 100'000; ++i) out[i] = 1;
    }
    out[0] = static_cast<float>(state[0]);
  }

 private:
  std::string in_, how_;
};

std::string Text(const ControlOptions& options, const std::string& key) {
  const auto it = options.find(key);
  return it == options.end() ? "" : it->second;
}

}  // namespace

TP_PLUGIN(Control, faulty_control) {
  return {.spec = {.reference = "nothing",
                   .continuous = false,
                   .observation_size = 1,
                   .actions = 2,
                   .max_episode_steps = 20,
                   .solved_return = 20,
                   .reward = "1 a step",
                   .options = "in: a function; how: what it does wrong"},
          .make = [](const ControlOptions& options, VectorSpec&) {
            if (Text(options, "in") == "make") DoWrong(Text(options, "how"));
            return MakeRules<FaultyControl>(Text(options, "in"), Text(options, "how"));
          }};
}

}  // namespace tidepool::environments
