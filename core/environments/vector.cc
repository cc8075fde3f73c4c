#include "core/environments/vector.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <utility>

#include "core/base/made.h"
#include "core/base/names.h"
#include "core/base/rng.h"
#include "core/environments/control_tasks/control_plugin.h"
#include "core/environments/fenced_room.h"

namespace tidepool::environments {
namespace {

std::string Known() { return Listed(ListVectorEnvironments(), &VectorSpec::name); }

// Episodes are counted in 63 bits, steps far below; a stream of its own for each of the three.
Rng NoiseOf(uint64_t seed, uint64_t index, int64_t episode) {
  return Rng(seed).Fork("environment").Fork(index).Fork(static_cast<uint64_t>(episode));
}

// A number that nobody writes: not a NaN that comes out of arithmetic.
constexpr uint32_t kUnwritten = 0x7fc0dead;

std::string Word(double x) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.6g", x);
  return text;
}
std::string Words(std::span<const double> numbers) { return Listed(numbers, Word); }

}  // namespace

std::string NameOf(const InstanceState& s) {
  const bool evaluation = s.index >= kEvaluationInstances;
  return (evaluation ? "evaluation instance " + std::to_string(s.index - kEvaluationInstances)
                     : "instance " + std::to_string(s.index)) +
         ", step " + std::to_string(s.steps) + " of its episode " + std::to_string(s.episode);
}

// core/base/plugin_check.h.
std::string FaultOf(const ControlPlugin& plugin) { return plugin.make == nullptr ? "has no .make" : ""; }

std::string LabelOf(const VectorSpec& spec) {
  return spec.served ? "environment " + spec.name : "control task " + spec.name + " (" + spec.file + ")";
}

int32_t SeedOfEpisode(uint64_t seed, uint64_t index, int64_t episode) {
  return static_cast<int32_t>(NoiseOf(seed, index, episode).InRange(0, INT32_MAX));
}

StatusOr<std::vector<InstanceState>> StartStates(const VectorOptions& options,
                                                 std::span<const uint64_t> indices, int64_t episode) {
  if (!options.served) {
    TP_ASSIGN_OR_RETURN(const auto set, VectorEnvironment::Create(options, indices, episode));
    return set->states();
  }
  std::vector<InstanceState> states;
  for (const uint64_t index : indices) states.push_back({.index = index, .episode = episode});
  return states;
}

const std::vector<VectorSpec>& ListVectorEnvironments() {
  static const std::vector<VectorSpec> list = [] {
    std::vector<VectorSpec> all;
    for (const auto& [name, make, file] : ControlPlugins()) all.emplace_back(make().spec).name = name;
    return all;
  }();
  return list;
}

namespace {

StatusOr<ControlTask> Choose(const VectorOptions& o) {
  for (const auto& [name, make, file] : ControlPlugins()) {
    if (name != o.name) continue;
    const ControlPlugin plugin = make();
    ControlTask chosen{.spec = plugin.spec, .rules = nullptr};
    chosen.spec.name = name;
    chosen.spec.file = file;
    if (plugin.spec.options.empty() && !o.options.empty())
      return InvalidArgument(o.options.begin()->first + ": " + o.name + " has no options");
    TP_ASSIGN_OR_RETURN(chosen.rules, Made({.label = LabelOf(chosen.spec), .place = "name: "},
                                           [&] { return plugin.make(o.options, chosen.spec); }));
    if (o.max_episode_steps < 0) return InvalidArgument("max_episode_steps: is below 0");
    if (o.max_episode_steps > 0) chosen.spec.max_episode_steps = o.max_episode_steps;
    return chosen;
  }
  return InvalidArgument("name: found '" + o.name + "'; there are " + Known());
}

}  // namespace

StatusOr<VectorSpec> FindVectorEnvironment(const VectorOptions& o) {
  if (o.served) return *o.served;
  TP_ASSIGN_OR_RETURN(ControlTask chosen, Choose(o));
  return chosen.spec;
}

namespace {

// What a call finds, for the last line of a process that ends in the task. Once for all instances, and
// numbers instead of words: more would take as long as a step of it.
struct Stepped {
  uint64_t instances = 0, first = 0;
  int64_t steps = 0, episode = 0;

  [[nodiscard]] LaterWords words() const { return {Write, this}; }
  static void Write(const void* of, LineBuffer& out) {
    const auto& s = *static_cast<const Stepped*>(of);
    if (s.instances == 0) {
      out.Add("no instance");
      return;
    }
    if (s.instances > 1) out.Add("one of ").Add(s.instances).Add(" instances, the first is ");
    const bool evaluation = s.first >= kEvaluationInstances;
    out.Add(evaluation ? "evaluation instance " : "instance ");
    out.Add(evaluation ? s.first - kEvaluationInstances : s.first)
        .Add(", step ")
        .Add(s.steps)
        .Add(" of its episode ")
        .Add(s.episode);
  }
};

}  // namespace

struct VectorEnvironment::Impl {
  VectorSpec spec;
  std::string task;  // its name and file, for messages
  uint64_t seed = 1;
  std::shared_ptr<const Rules> rules;
  std::vector<InstanceState> states;

  // Spare room behind an observation, for words about a task that writes a few numbers too many. Behind that
  // is the fence, where it crashes.
  static constexpr size_t kBeyond = 16;
  FencedRoom room;

  Status Begin(InstanceState& s, int64_t episode) const {
    s.episode = episode;
    s.steps = 0;
    s.score = 0;
    s.state = rules->Start(NoiseOf(seed, s.index, episode).Fork("start"));
    if (rules->Holds(s.state)) return OkStatus();
    return Broke(s, "Start gave this state, but Holds() says that it is none; correct one of them");
  }

  [[nodiscard]] Stepped Begins() const {
    if (states.empty()) return {};
    const InstanceState& first = states.front();
    return {states.size(), first.index, first.steps, first.episode};
  }
  [[nodiscard]] Status Broke(const InstanceState& s, const std::string& what) const {
    return DataLoss(task + ": " + what + "; " + NameOf(s) + ", state " + Words(s.state));
  }

  // The numbers that the task writes of a state. Each place holds a pattern before, so that one that is not
  // written, and one beyond the last, is noticed rather than read, or overwritten in other memory.
  Status Observe(const InstanceState& s, float* out) {
    const auto width = static_cast<size_t>(spec.observation_size);
    const std::span<float> seen = room.Take(width + kBeyond);
    if (seen.empty()) return ResourceExhausted("no memory for an observation of " + spec.name);
    std::ranges::fill(seen, std::bit_cast<float>(kUnwritten));
    rules->Observe(s.state, seen.data());
    size_t written = seen.size();
    while (written > 0 && std::bit_cast<uint32_t>(seen[written - 1]) == kUnwritten) --written;
    if (written > width) {
      return Broke(s, "Observe wrote at least " + std::to_string(written) +
                          " numbers where .observation_size is " + std::to_string(width) +
                          "; write as many as that, or raise it");
    }
    for (size_t i = 0; i < width; ++i) {
      if (std::isfinite(seen[i])) continue;
      const bool left_out = std::bit_cast<uint32_t>(seen[i]) == kUnwritten;
      return Broke(s, left_out ? "Observe did not write number " + std::to_string(i) + " of " +
                                     std::to_string(width) + " (.observation_size)"
                               : "Observe gave " + Word(seen[i]) + " as number " + std::to_string(i) +
                                     ", but a policy reads finite numbers alone");
    }
    std::copy_n(seen.begin(), width, out);
    return OkStatus();
  }
  Status Step(std::span<const float> actions, VectorStep& out);
};

VectorEnvironment::VectorEnvironment() : impl_(std::make_unique<Impl>()) {}
VectorEnvironment::~VectorEnvironment() = default;

StatusOr<std::unique_ptr<VectorEnvironment>> VectorEnvironment::Create(const VectorOptions& options,
                                                                       std::span<const uint64_t> indices,
                                                                       int64_t episode) {
  TP_ASSIGN_OR_RETURN(ControlTask task, Choose(options));
  return Of(std::move(task), options.seed, indices, episode);
}

StatusOr<std::unique_ptr<VectorEnvironment>> VectorEnvironment::Of(ControlTask task, uint64_t seed,
                                                                   std::span<const uint64_t> indices,
                                                                   int64_t episode) {
  std::unique_ptr<VectorEnvironment> v(new VectorEnvironment());
  Impl& m = *v->impl_;
  m.spec = std::move(task.spec);
  m.rules = std::move(task.rules);
  m.task = LabelOf(m.spec);
  m.seed = seed;
  TP_RETURN_IF_ERROR(RunningCall(m.task, "the start of its instances").Run(StatusCode::kDataLoss, [&] {
    for (const uint64_t index : indices) {
      InstanceState s;
      s.index = index;
      TP_RETURN_IF_ERROR(m.Begin(s, episode));
      m.states.push_back(s);
    }
    return OkStatus();
  }));
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

StatusOr<std::vector<float>> VectorEnvironment::Observations() const {
  const auto width = static_cast<size_t>(impl_->spec.observation_size);
  std::vector<float> out(impl_->states.size() * width);
  const Stepped begins = impl_->Begins();
  TP_RETURN_IF_ERROR(RunningCall(impl_->task, begins.words()).Run(StatusCode::kDataLoss, [&] {
    for (size_t i = 0; i < impl_->states.size(); ++i)
      TP_RETURN_IF_ERROR(impl_->Observe(impl_->states[i], out.data() + i * width));
    return OkStatus();
  }));
  return out;
}

Status VectorEnvironment::Step(std::span<const float> actions, VectorStep& out) {
  const Stepped begins = impl_->Begins();
  return RunningCall(impl_->task, begins.words()).Run(StatusCode::kDataLoss, [&] {
    return impl_->Step(actions, out);
  });
}

Status VectorEnvironment::Impl::Step(std::span<const float> actions, VectorStep& out) {
  const size_t n = states.size(), width = static_cast<size_t>(spec.observation_size),
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
    InstanceState& s = states[i];
    const MoveResult move =
        rules->Play(s.state, actions.data() + i * step,
                    NoiseOf(seed, s.index, s.episode).Fork("dynamics").Fork(static_cast<uint64_t>(s.steps)));
    if (!std::isfinite(move.reward) || !std::isfinite(static_cast<float>(move.reward)) ||
        !rules->Holds(move.state)) {
      const std::vector<double> action(actions.begin() + static_cast<std::ptrdiff_t>(i * step),
                                       actions.begin() + static_cast<std::ptrdiff_t>((i + 1) * step));
      const bool reward = rules->Holds(move.state);
      return Broke(s, "Play gave " +
                          (reward ? "the reward " + Word(move.reward) : "the state " + Words(move.state)) +
                          " for action " + Words(action) +
                          (reward ? ", but a reward has to be a finite number of 32 bits; correct it"
                                  : ", but Holds() says that this is no state; correct one of them"));
    }
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
      TP_RETURN_IF_ERROR(Observe(s, out.final_observations.data() + out.final_observations.size() - width));
      out.scores.push_back(s.score);
      TP_RETURN_IF_ERROR(Begin(s, s.episode + 1));
    }
    TP_RETURN_IF_ERROR(Observe(s, out.observations.data() + i * width));
  }
  return OkStatus();
}

}  // namespace tidepool::environments
