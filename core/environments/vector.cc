#include "core/environments/vector.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/names.h"
#include "core/base/rng.h"
#include "core/environments/control_tasks/control_plugin.h"

namespace tidepool::environments {
namespace {

std::string Known() { return Listed(ListVectorEnvironments(), &VectorSpec::name); }

// Episodes are counted in 63 bits, steps far below; a stream of its own for each of the three.
Rng NoiseOf(uint64_t seed, uint64_t index, int64_t episode) {
  return Rng(seed).Fork("environment").Fork(index).Fork(static_cast<uint64_t>(episode));
}

}  // namespace

// core/base/plugin_check.h.
std::string FaultOf(const ControlPlugin& plugin) { return plugin.make == nullptr ? "has no .make" : ""; }

const std::vector<VectorSpec>& ListVectorEnvironments() {
  static const std::vector<VectorSpec> list = [] {
    std::vector<VectorSpec> all;
    for (const auto& [name, make, file] : ControlPlugins()) all.emplace_back(make().spec).name = name;
    return all;
  }();
  return list;
}

namespace {

struct Chosen {
  VectorSpec spec;
  std::unique_ptr<Rules> rules;
};
StatusOr<Chosen> Choose(const VectorOptions& o) {
  for (const auto& [name, make, file] : ControlPlugins()) {
    if (name != o.name) continue;
    const ControlPlugin plugin = make();
    Chosen chosen{.spec = plugin.spec, .rules = nullptr};
    chosen.spec.name = name;
    if (!plugin.takes_options && !o.options.empty())
      return InvalidArgument(o.options.begin()->first + ": " + o.name + " has no options");
    TP_ASSIGN_OR_RETURN(chosen.rules, plugin.make(o.options, chosen.spec));
    if (o.max_episode_steps < 0) return InvalidArgument("max_episode_steps: is below 0");
    if (o.max_episode_steps > 0) chosen.spec.max_episode_steps = o.max_episode_steps;
    return chosen;
  }
  return InvalidArgument("name: found '" + o.name + "'; there are " + Known());
}

}  // namespace

StatusOr<VectorSpec> FindVectorEnvironment(const VectorOptions& o) {
  TP_ASSIGN_OR_RETURN(Chosen chosen, Choose(o));
  return chosen.spec;
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
  TP_ASSIGN_OR_RETURN(Chosen chosen, Choose(options));
  v->impl_->spec = std::move(chosen.spec);
  v->impl_->rules = std::move(chosen.rules);
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
