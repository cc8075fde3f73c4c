#pragma once
// Classic control as pure step functions: state and action in, next state, reward and end out. What is
// observed is the state, where there is no function for it.
// Constants and order of operations are those of Gymnasium 1.x; states in double, observations in float32
// precision where a policy reads them. Time limits are the caller's: a limit truncates, it does not
// terminate. A step from a terminated state is played like any other. Pure; thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>

namespace tidepool::environments {

template <std::size_t kState>
struct Transition {
  std::array<double, kState> state{};
  double reward = 0;
  bool terminated = false;
};

// CartPole-v1: (x, v, th, w), actions 0 left, 1 right. Reward 1 a step, the terminating one included; ends at
// |x| > 2.4 or |th| > 12 degrees. Limit 500 steps (v0: 200), solved at 475 (195). Starts uniform +-0.05.
Transition<4> StepCartPole(const std::array<double, 4>& state, int64_t action);

// Pendulum-v1: (th, w), torque clipped to +-2; observation (cos th, sin th, w). Reward -(th^2 + 0.1 w^2 +
// 0.001 u^2) on the old state, th wrapped to [-pi, pi). Never terminates; limit 200. Starts th uniform +-pi,
// w +-1.
Transition<2> StepPendulum(const std::array<double, 2>& state, double torque);
std::array<double, 3> ObservePendulum(const std::array<double, 2>& state);

// MountainCar-v0: (x, v), actions 0 left, 1 none, 2 right. Reward -1; ends at x >= 0.5 with v >= 0. Limit
// 200. Starts x uniform in [-0.6, -0.4], v 0.
Transition<2> StepMountainCar(const std::array<double, 2>& state, int64_t action);

// Acrobot-v1 ("book" dynamics, one RK4 step of 0.2 s with the torque held): (t1, t2, w1, w2), actions 0, 1, 2
// for torque -1, 0, 1; observation (cos t1, sin t1, cos t2, sin t2, w1, w2). Ends when -cos t1 - cos(t1 + t2)
// > 1, with reward 0, else -1. Limit 500. Starts uniform +-0.1.
Transition<4> StepAcrobot(const std::array<double, 4>& state, int64_t action);
std::array<double, 6> ObserveAcrobot(const std::array<double, 4>& state);

}  // namespace tidepool::environments
