#include "core/environments/vector.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/base/names.h"
#include "core/base/rng.h"
#include "core/environments/control.h"
#include "core/environments/toy_text.h"

namespace tidepool::environments {
namespace {

// One step of one instance.
struct MoveResult {
  std::array<double, 4> state{};
  double reward = 0;
  bool terminated = false;
};

// The rules of an environment over states of at most four numbers.
class Rules {
 public:
  virtual ~Rules() = default;
  [[nodiscard]] virtual std::array<double, 4> Start(Rng rng) const = 0;
  [[nodiscard]] virtual MoveResult Play(const std::array<double, 4>& state, const float* action,
                                        Rng rng) const = 0;
  virtual void Observe(const std::array<double, 4>& state, float* out) const = 0;
  // Whether the numbers are a state at all: states come from other processes.
  [[nodiscard]] virtual bool Holds(const std::array<double, 4>& state) const {
    return std::ranges::all_of(state, [](double x) { return std::isfinite(x); });
  }
};

double Between(Rng& rng, double low, double high) { return low + (high - low) * rng.Uniform(); }

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
    for (size_t i = 0; i < kState; ++i) s[i] = Between(rng, low_[i], high_[i]);
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

template <size_t kState>
std::array<double, kState> All(const std::array<double, kState>& state) {
  return state;
}

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

std::string Known() { return Listed(ListVectorEnvironments(), &VectorSpec::name); }

struct GridOptions {
  std::string map = "4x4";
  bool slippery = true;
};
StatusOr<GridOptions> ReadLake(const VectorOptions& o) {
  GridOptions lake;
  for (const auto& [key, value] : o.options) {
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

StatusOr<std::unique_ptr<Rules>> MakeRules(const VectorOptions& o) {
  using CartPole = Control<4, StepCartPole, All<4>>;
  using Pendulum = Control<2, StepPendulum, ObservePendulum, double>;
  using MountainCar = Control<2, StepMountainCar, All<2>>;
  using Acrobot = Control<4, StepAcrobot, ObserveAcrobot>;
  constexpr double kPi = std::numbers::pi;
  if (o.name == "cartpole") return std::unique_ptr<Rules>(new CartPole(-0.05, 0.05));
  if (o.name == "pendulum") return std::unique_ptr<Rules>(new Pendulum({-kPi, -1}, {kPi, 1}));
  if (o.name == "mountain_car") return std::unique_ptr<Rules>(new MountainCar({-0.6, 0}, {-0.4, 0}));
  if (o.name == "acrobot") return std::unique_ptr<Rules>(new Acrobot(-0.1, 0.1));
  TP_ASSIGN_OR_RETURN(const GridOptions lake, ReadLake(o));
  TP_ASSIGN_OR_RETURN(const TransitionTable table, FrozenLake(lake.map, lake.slippery, 1.0 / 3.0));
  return std::unique_ptr<Rules>(new Lake(lake.map == "8x8" ? 64 : 16, table));
}

// Episodes are counted in 63 bits, steps far below; a stream of its own for each of the three.
Rng NoiseOf(uint64_t seed, uint64_t index, int64_t episode) {
  return Rng(seed).Fork("environment").Fork(index).Fork(static_cast<uint64_t>(episode));
}

}  // namespace

const std::vector<VectorSpec>& ListVectorEnvironments() {
  static const std::vector<VectorSpec> list = {
      {.name = "cartpole",
       .reference = "CartPole-v1",
       .continuous = false,
       .observation_size = 4,
       .actions = 2,
       .max_episode_steps = 500,
       .solved_return = 475,
       .reward = "1 a step until the pole falls or the cart leaves"},
      {.name = "pendulum",
       .reference = "Pendulum-v1",
       .continuous = true,
       .observation_size = 3,
       .actions = 1,
       .low = -2,
       .high = 2,
       .max_episode_steps = 200,
       .solved_return = -200,
       .reward = "-(angle^2 + 0.1 speed^2 + 0.001 torque^2) a step"},
      {.name = "mountain_car",
       .reference = "MountainCar-v0",
       .continuous = false,
       .observation_size = 2,
       .actions = 3,
       .max_episode_steps = 200,
       .solved_return = -110,
       .reward = "-1 a step until the flag"},
      {.name = "acrobot",
       .reference = "Acrobot-v1",
       .continuous = false,
       .observation_size = 6,
       .actions = 3,
       .max_episode_steps = 500,
       .solved_return = -100,
       .reward = "-1 a step until the tip is above the line"},
      {.name = "frozen_lake_grid",
       .reference = "FrozenLake-v1",
       .continuous = false,
       .observation_size = 16,
       .actions = 4,
       .max_episode_steps = 100,
       .solved_return = 0.7,
       .reward = "1 at the goal, else 0"},
  };
  return list;
}

StatusOr<VectorSpec> FindVectorEnvironment(const VectorOptions& o) {
  const auto it = std::ranges::find(ListVectorEnvironments(), o.name, &VectorSpec::name);
  if (it == ListVectorEnvironments().end())
    return InvalidArgument("name: found '" + o.name + "'; there are " + Known());
  VectorSpec spec = *it;
  if (spec.name == "frozen_lake_grid") {
    TP_ASSIGN_OR_RETURN(const GridOptions lake, ReadLake(o));
    if (lake.map == "8x8") {
      spec.observation_size = 64;
      spec.max_episode_steps = 200;
    }
    if (!lake.slippery) spec.solved_return = 1;
  } else if (!o.options.empty()) {
    return InvalidArgument(o.options.begin()->first + ": " + spec.name + " has no options");
  }
  if (o.max_episode_steps < 0) return InvalidArgument("max_episode_steps: is below 0");
  if (o.max_episode_steps > 0) spec.max_episode_steps = o.max_episode_steps;
  return spec;
}

struct VectorEnvironment::Impl {
  VectorSpec spec;
  uint64_t seed = 1;
  std::unique_ptr<Rules> rules;
  std::vector<InstanceState> states;

  void Begin(InstanceState& s, int64_t episode) const {
    s.episode = episode;
    s.steps = 0;
    s.score = 0;
    s.state = rules->Start(NoiseOf(seed, s.index, episode).Fork("start"));
  }
};

VectorEnvironment::VectorEnvironment() : impl_(std::make_unique<Impl>()) {}
VectorEnvironment::~VectorEnvironment() = default;

StatusOr<std::unique_ptr<VectorEnvironment>> VectorEnvironment::Create(const VectorOptions& options,
                                                                       std::span<const uint64_t> indices,
                                                                       int64_t episode) {
  std::unique_ptr<VectorEnvironment> v(new VectorEnvironment());
  TP_ASSIGN_OR_RETURN(v->impl_->spec, FindVectorEnvironment(options));
  TP_ASSIGN_OR_RETURN(v->impl_->rules, MakeRules(options));
  v->impl_->seed = options.seed;
  for (const uint64_t index : indices) {
    InstanceState s;
    s.index = index;
    v->impl_->Begin(s, episode);
    v->impl_->states.push_back(s);
  }
  return v;
}

StatusOr<std::unique_ptr<VectorEnvironment>> VectorEnvironment::Resume(const VectorOptions& options,
                                                                       std::vector<InstanceState> states) {
  TP_ASSIGN_OR_RETURN(auto v, Create(options, {}));
  for (const InstanceState& s : states) {
    if (s.steps < 0 || s.steps >= v->impl_->spec.max_episode_steps || s.episode < 0 ||
        !std::isfinite(s.score) || !v->impl_->rules->Holds(s.state)) {
      return InvalidArgument("instance " + std::to_string(s.index) + ": the numbers given are no state of " +
                             options.name);
    }
  }
  v->impl_->states = std::move(states);
  return v;
}

const VectorSpec& VectorEnvironment::spec() const { return impl_->spec; }
const std::vector<InstanceState>& VectorEnvironment::states() const { return impl_->states; }

std::vector<float> VectorEnvironment::Observations() const {
  const auto width = static_cast<size_t>(impl_->spec.observation_size);
  std::vector<float> out(impl_->states.size() * width);
  for (size_t i = 0; i < impl_->states.size(); ++i)
    impl_->rules->Observe(impl_->states[i].state, out.data() + i * width);
  return out;
}

Status VectorEnvironment::Step(std::span<const float> actions, VectorStep& out) {
  const Impl& m = *impl_;
  const VectorSpec& spec = m.spec;
  const size_t n = m.states.size(), width = static_cast<size_t>(spec.observation_size),
               step = static_cast<size_t>(spec.action_size());
  if (actions.size() != n * step) {
    return InvalidArgument(spec.name + ": " + std::to_string(actions.size()) +
                           " numbers for the actions of " + std::to_string(n) + " instances of " +
                           std::to_string(step));
  }
  for (const float a : actions) {
    const bool choice = a >= 0 && a < static_cast<float>(spec.actions) && a == std::floor(a);
    if (!std::isfinite(a) || (!spec.continuous && !choice)) {
      return InvalidArgument(
          spec.name + ": " + std::to_string(a) + " is no action; expected " +
          (spec.continuous ? std::string("a finite number") : "0 to " + std::to_string(spec.actions - 1)));
    }
  }
  out.observations.resize(n * width);
  out.rewards.resize(n);
  out.flags.assign(n, 0);
  out.final_observations.clear();
  out.scores.clear();
  for (size_t i = 0; i < n; ++i) {
    InstanceState& s = impl_->states[i];
    const MoveResult move = m.rules->Play(
        s.state, actions.data() + i * step,
        NoiseOf(m.seed, s.index, s.episode).Fork("dynamics").Fork(static_cast<uint64_t>(s.steps)));
    s.state = move.state;
    ++s.steps;
    s.score += move.reward;
    out.rewards[i] = static_cast<float>(move.reward);
    if (move.terminated) {
      out.flags[i] = kTerminated;
    } else if (s.steps >= spec.max_episode_steps) {
      out.flags[i] = kTruncated;
    }
    if (out.flags[i] != 0) {
      out.final_observations.resize(out.final_observations.size() + width);
      m.rules->Observe(s.state, out.final_observations.data() + out.final_observations.size() - width);
      out.scores.push_back(s.score);
      m.Begin(s, s.episode + 1);
    }
    m.rules->Observe(s.state, out.observations.data() + i * width);
  }
  return OkStatus();
}

}  // namespace tidepool::environments
