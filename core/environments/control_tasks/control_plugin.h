#pragma once
// One control task, as the files of this folder define them (docs/adding_a_control_task.md): rules over a
// state of at most four numbers. core/environments/vector.h plays many instances of it, counts steps and ends
// episodes at the limit.
//
// All that decides the next step is in the state, and every chance is drawn from the Rng that is handed in:
// then the same actions give the same episode on every machine, and a fragment that was lost with its process
// is played again. Rules are immutable; any thread.

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "core/base/plugin.h"
#include "core/base/rng.h"
#include "core/environments/vector.h"

namespace tidepool::environments {

// One step of one instance.
struct MoveResult {
  std::array<double, 4> state{};
  double reward = 0;
  bool terminated = false;
};

class Rules {
 public:
  virtual ~Rules() = default;
  // The first state of an episode.
  [[nodiscard]] virtual std::array<double, 4> Start(Rng rng) const = 0;
  // `action`: VectorSpec::action_size() numbers; a choice is a whole number below VectorSpec::actions.
  [[nodiscard]] virtual MoveResult Play(const std::array<double, 4>& state, const float* action,
                                        Rng rng) const = 0;
  // Writes VectorSpec::observation_size numbers.
  virtual void Observe(const std::array<double, 4>& state, float* out) const = 0;
  // Whether the numbers are a state at all: states come from other processes.
  [[nodiscard]] virtual bool Holds(const std::array<double, 4>& state) const {
    return std::ranges::all_of(state, [](double x) { return std::isfinite(x); });
  }
};

using ControlOptions = std::map<std::string, std::string>;  // of `environment`, as written

struct ControlPlugin {
  VectorSpec spec;  // without options; `name` is the plug-in's
  // Rules under these options; changes in `spec` what they change. kInvalidArgument: "KEY: what; what to do".
  StatusOr<std::unique_ptr<Rules>> (*make)(const ControlOptions& options, VectorSpec& spec) = nullptr;
};

template <typename Own, typename... Arguments>
StatusOr<std::unique_ptr<Rules>> MakeRules(Arguments... arguments) {
  return std::unique_ptr<Rules>(std::make_unique<Own>(arguments...));
}

std::span<const Plugin<ControlPlugin>> ControlPlugins();  // the table that the build writes

// Classic control: `step` moves a state of kState numbers, `observe` says what is seen of it. Numbers of the
// start state are drawn from their ranges.
template <size_t kState, auto step, auto observe, typename Action = int64_t>
class Control : public Rules {
 public:
  using State = std::array<double, kState>;
  Control(const State& low, const State& high) : low_(low), high_(high) {}
  Control(double low, double high) {
    low_.fill(low);
    high_.fill(high);
  }

  std::array<double, 4> Start(Rng rng) const override {
    std::array<double, 4> s{};
    for (size_t i = 0; i < kState; ++i) s[i] = low_[i] + (high_[i] - low_[i]) * rng.Uniform();
    return s;
  }
  MoveResult Play(const std::array<double, 4>& state, const float* action, Rng) const override {
    const auto next = step(Own(state), static_cast<Action>(action[0]));
    MoveResult out{.reward = next.reward, .terminated = next.terminated};
    std::ranges::copy(next.state, out.state.begin());
    return out;
  }
  void Observe(const std::array<double, 4>& state, float* out) const override {
    for (const double x : observe(Own(state))) *out++ = static_cast<float>(x);
  }

 private:
  static State Own(const std::array<double, 4>& state) {
    State own;
    std::copy_n(state.begin(), kState, own.begin());
    return own;
  }
  State low_, high_;
};

// What is seen is the state.
template <size_t kState>
std::array<double, kState> All(const std::array<double, kState>& state) {
  return state;
}

}  // namespace tidepool::environments
