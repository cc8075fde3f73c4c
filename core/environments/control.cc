#include "core/environments/control.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tidepool::environments {
namespace {

constexpr double kPi = std::numbers::pi;

// ((x + pi) mod 2 pi) - pi with the floored mod.
double WrapFloored(double x) {
  const double m = std::fmod(x + kPi, 2 * kPi);
  return (m < 0 ? m + 2 * kPi : m) - kPi;
}

// Turns taken away one by one while x is outside +-pi; far out by one division, so that any number ends.
double WrapByTurns(double x) {
  if (!std::isfinite(x)) return x;
  if (std::fabs(x) > 1e3) x = std::remainder(x, 2 * kPi);
  while (x > kPi) x -= 2 * kPi;
  while (x < -kPi) x += 2 * kPi;
  return x;
}

using Angles = std::array<double, 4>;

// Time derivative of (t1, t2, w1, w2) under torque u.
Angles AcrobotDerivative(const Angles& s, double u) {
  const auto [t1, t2, w1, w2] = s;
  const double d1 = 3.5 + std::cos(t2), d2 = 1.25 + 0.5 * std::cos(t2);
  const double f2 = 4.9 * std::cos(t1 + t2 - kPi / 2);
  const double f1 =
      -0.5 * w2 * w2 * std::sin(t2) - w2 * w1 * std::sin(t2) + 14.7 * std::cos(t1 - kPi / 2) + f2;
  const double a2 = (u + d2 / d1 * f1 - 0.5 * w1 * w1 * std::sin(t2) - f2) / (1.25 - d2 * d2 / d1);
  const double a1 = -(d2 * a2 + f1) / d1;
  return {w1, w2, a1, a2};
}

Angles Along(const Angles& s, const Angles& k, double by) {
  Angles out;
  for (size_t i = 0; i < 4; ++i) out[i] = s[i] + by * k[i];
  return out;
}

}  // namespace

Transition<4> StepCartPole(const std::array<double, 4>& state, int64_t action) {
  constexpr double kGravity = 9.8, kMass = 1.1, kPoleMass = 0.1, kHalfLength = 0.5, kPoleMoment = 0.05,
                   kTau = 0.02;
  const auto [x, v, th, w] = state;
  const double force = action == 1 ? 10.0 : -10.0, c = std::cos(th), s = std::sin(th);
  const double q = (force + kPoleMoment * w * w * s) / kMass;
  const double angular = (kGravity * s - c * q) / (kHalfLength * (4.0 / 3.0 - kPoleMass * c * c / kMass));
  const double linear = q - kPoleMoment * angular * c / kMass;
  Transition<4> out;
  out.state = {x + kTau * v, v + kTau * linear, th + kTau * w, w + kTau * angular};
  out.reward = 1;
  out.terminated = std::fabs(out.state[0]) > 2.4 || std::fabs(out.state[2]) > 12 * 2 * kPi / 360;
  return out;
}

std::array<double, 3> ObservePendulum(const std::array<double, 2>& s) {
  return {std::cos(s[0]), std::sin(s[0]), s[1]};
}

Transition<2> StepPendulum(const std::array<double, 2>& state, double torque) {
  const auto [th, w] = state;
  const double u = std::clamp(torque, -2.0, 2.0), angle = WrapFloored(th);
  Transition<2> out;
  out.reward = -(angle * angle + 0.1 * w * w + 0.001 * u * u);
  const double speed = std::clamp(w + (15 * std::sin(th) + 3 * u) * 0.05, -8.0, 8.0);
  out.state = {th + 0.05 * speed, speed};
  return out;
}

Transition<2> StepMountainCar(const std::array<double, 2>& state, int64_t action) {
  auto [x, v] = state;
  v = std::clamp(v + 0.001 * static_cast<double>(action - 1) - 0.0025 * std::cos(3 * x), -0.07, 0.07);
  x = std::clamp(x + v, -1.2, 0.6);
  if (x == -1.2 && v < 0) v = 0;
  return {.state = {x, v}, .reward = -1, .terminated = x >= 0.5 && v >= 0};
}

std::array<double, 6> ObserveAcrobot(const std::array<double, 4>& s) {
  return {std::cos(s[0]), std::sin(s[0]), std::cos(s[1]), std::sin(s[1]), s[2], s[3]};
}

Transition<4> StepAcrobot(const std::array<double, 4>& state, int64_t action) {
  constexpr double kStep = 0.2;
  const double u = static_cast<double>(action) - 1;
  const Angles k1 = AcrobotDerivative(state, u), k2 = AcrobotDerivative(Along(state, k1, kStep / 2), u);
  const Angles k3 = AcrobotDerivative(Along(state, k2, kStep / 2), u),
               k4 = AcrobotDerivative(Along(state, k3, kStep), u);
  Transition<4> out;
  for (size_t i = 0; i < 4; ++i)
    out.state[i] = state[i] + kStep / 6 * (k1[i] + 2 * k2[i] + 2 * k3[i] + k4[i]);
  out.state = {WrapByTurns(out.state[0]), WrapByTurns(out.state[1]),
               std::clamp(out.state[2], -4 * kPi, 4 * kPi), std::clamp(out.state[3], -9 * kPi, 9 * kPi)};
  out.terminated = -std::cos(out.state[0]) - std::cos(out.state[0] + out.state[1]) > 1;
  out.reward = out.terminated ? 0 : -1;
  return out;
}

}  // namespace tidepool::environments
