#include "workers/side/served_vectors.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "core/base/hash.h"
#include "core/observe/log.h"
#include "core/policy/fragment.h"
#include "core/policy/spec.h"
#include "scheduler/ledger.h"

namespace tidepool::workers {
namespace {

using environments::InstanceState;
using environments::PlayLimit;
using Clock = std::chrono::steady_clock;

static_assert(std::endian::native == std::endian::little, "numbers travel as they lie in memory");

template <typename T>
std::string BytesOf(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}
template <typename T>
std::vector<T> NumbersOf(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

Clock::time_point After(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// Names a set of states: 128 bits of all that is in them.
std::string NameOfStates(std::span<const InstanceState> states) {
  const std::string bytes = policy::EncodeStates({states.begin(), states.end()});
  return std::to_string(Hash64(bytes, 1)) + "/" + std::to_string(Hash64(bytes, 2));
}

uint64_t DigestOf(std::span<const float> observation, uint64_t before = 0, double reward = 0) {
  const uint64_t seed = before ^ std::bit_cast<uint64_t>(reward + 0.0);  // -0 is 0
  return Hash64(std::as_bytes(observation), seed) | 1;                   // 0: nothing was said
}

// What came of a move, its numbers checked.
struct Said {
  std::vector<float> observations;
  std::vector<double> rewards;
  std::vector<uint8_t> flags;
  std::vector<float> finals;
};

// It would do so again: the fragment's data is invalid.
bool OwnFault(const Status& s) {
  return s.code() == StatusCode::kDataLoss || s.code() == StatusCode::kInvalidArgument;
}

}  // namespace

// --- what is kept ---

KeptInstances::Part KeptInstances::Take(const std::string& states) {
  const MutexLock lock(mu_);
  const auto it = parts_.find(states);
  if (it == parts_.end()) return {};
  Part part = std::move(it->second.second);
  parts_.erase(it);
  return part;
}

void KeptInstances::Put(std::string states, Part part) {
  Part gone;  // ends without the lock
  const MutexLock lock(mu_);
  parts_.insert_or_assign(std::move(states), std::pair(next_++, std::move(part)));
  if (parts_.size() <= most_) return;
  const auto first = std::ranges::min_element(parts_, {}, [](const auto& kept) { return kept.second.first; });
  gone = std::move(first->second.second);
  parts_.erase(first);
}

size_t PartsToKeep(const JobConfig& job) {
  const EnvironmentConfig& e = *job.environment();
  const int64_t sites = e.command.empty() ? static_cast<int64_t>(e.addresses.size()) : e.processes;
  const int64_t lanes = scheduler::LedgerRules{.groups_per_step = job.train.groups_per_step,
                                               .max_lag_versions = job.scheduler.max_lag_versions,
                                               .oversample = job.scheduler.oversample}
                            .capacity();
  return static_cast<size_t>(lanes * sites);
}

// --- the host ---

struct ServedHost::Session {
  struct Part {
    size_t first = 0, count = 0;  // of the session's instances
    KeptInstances::Part held;     // no stream: it is lost
    Status asked;                 // of the step that is under way
  };
  std::vector<InstanceState> states;
  std::vector<int32_t> next_seeds;  // of the episode after the one that is under way
  std::vector<Part> parts;

  [[nodiscard]] std::span<InstanceState> StatesOf(const Part& p) {
    return std::span(states).subspan(p.first, p.count);
  }
};

struct ServedHost::Impl {
  using Part = Session::Part;

  environments::VectorSpec spec;
  uint64_t seed = 1;
  EnvironmentConfig config;
  std::shared_ptr<EnvironmentServices> services;
  std::shared_ptr<KeptInstances> kept;
  std::map<int64_t, Session> sessions;

  [[nodiscard]] int32_t SeedOf(const InstanceState& s, int64_t later = 0) const {
    return environments::SeedOfEpisode(seed, s.index, s.episode + later);
  }
  // All that is tried for one call is over then.
  [[nodiscard]] PlayLimit Whole() const {
    return {.deadline = After(config.start_timeout_s + config.reset_timeout_s + config.step_timeout_s)};
  }
  static PlayLimit Sooner(const PlayLimit& whole, double seconds) {
    return {.deadline = std::min(whole.deadline, After(seconds)), .stop = whole.stop};
  }

  // kDataLoss: what it said breaks the rules. `moved`: those that were asked, in order.
  StatusOr<Said> Read(const VectorStream& stream, const VectorMoved& said, bool step,
                      std::span<InstanceState* const> moved) const {
    const auto width = static_cast<size_t>(spec.observation_size);
    const auto wrong = [&](const std::string& what) { return DataLoss(stream.where() + ": " + what); };
    const auto sized = [&](const char* what, const std::string& bytes, size_t rows, size_t row_bytes) {
      if (bytes.size() == rows * row_bytes) return OkStatus();
      return wrong("its " + std::string(what) + " have " + std::to_string(bytes.size()) +
                   " bytes; expected " + std::to_string(rows * row_bytes) + ", " + std::to_string(row_bytes) +
                   " for each of " + std::to_string(rows));
    };
    const auto finite = [&](auto number, const char* what, const InstanceState& s) {
      if (std::isfinite(static_cast<float>(number))) return OkStatus();
      return wrong("its " + std::string(what) + " is " + std::to_string(number) +
                   ", but a policy takes finite numbers of 32 bits alone; " + environments::NameOf(s));
    };
    TP_RETURN_IF_ERROR(sized("observations", said.observations, moved.size(), width * sizeof(float)));
    Said out{.observations = NumbersOf<float>(said.observations)};
    for (size_t i = 0; i < out.observations.size(); ++i) {
      if (!std::isfinite(out.observations[i]))
        TP_RETURN_IF_ERROR(finite(out.observations[i], "observation", *moved[i / width]));
    }
    if (!step) return out;
    TP_RETURN_IF_ERROR(sized("rewards", said.rewards, moved.size(), sizeof(double)));
    TP_RETURN_IF_ERROR(sized("flags", said.flags, moved.size(), 1));
    out.rewards = NumbersOf<double>(said.rewards);
    out.flags = NumbersOf<uint8_t>(said.flags);
    size_t ended = 0;
    for (size_t i = 0; i < moved.size(); ++i) {
      TP_RETURN_IF_ERROR(finite(out.rewards[i], "reward", *moved[i]));
      if (out.flags[i] > (environments::kTerminated | environments::kTruncated))
        return wrong("a flag is " + std::to_string(out.flags[i]) +
                     "; expected 0, 1 (terminated) or 2 (truncated)");
      ended += out.flags[i] != 0 ? 1 : 0;
    }
    TP_RETURN_IF_ERROR(sized("final_observations", said.final_observations, ended, width * sizeof(float)));
    out.finals = NumbersOf<float>(said.final_observations);
    size_t at = 0;
    for (size_t i = 0; i < moved.size(); ++i) {
      for (size_t k = 0; out.flags[i] != 0 && k < width; ++k, ++at)
        TP_RETURN_IF_ERROR(finite(out.finals[at], "final observation", *moved[i]));
    }
    return out;
  }

  std::string ActionBytes(std::span<const float> actions) const {
    if (spec.continuous) return BytesOf(actions);
    const std::vector<int32_t> choices(actions.begin(), actions.end());
    return BytesOf(std::span<const int32_t>(choices));
  }

  // A reset of some of a part; their rows of its observations are the new ones.
  Status Reset(VectorStream& stream, const std::vector<uint32_t>& rows, std::span<InstanceState> states,
               std::vector<float>& observations, const PlayLimit& limit) const {
    std::vector<int32_t> seeds;
    std::vector<InstanceState*> moved;
    for (const uint32_t row : rows) {
      moved.push_back(&states[row]);
      seeds.push_back(SeedOf(states[row]));
    }
    VectorMove move{
        .reset = true, .which = {}, .seeds = BytesOf(std::span<const int32_t>(seeds)), .actions = {}};
    if (rows.size() != states.size()) move.which = BytesOf(std::span<const uint32_t>(rows));
    TP_RETURN_IF_ERROR(stream.Ask(std::move(move), limit));
    TP_ASSIGN_OR_RETURN(const VectorMoved answer, stream.Answer(limit));
    TP_ASSIGN_OR_RETURN(const Said said, Read(stream, answer, /*step=*/false, moved));
    const auto width = static_cast<size_t>(spec.observation_size);
    for (size_t k = 0; k < rows.size(); ++k) {
      const auto row = std::span(said.observations).subspan(k * width, width);
      std::ranges::copy(row, observations.begin() + static_cast<std::ptrdiff_t>(rows[k] * width));
      moved[k]->digest = DigestOf(row);
    }
    return OkStatus();
  }

  // Fresh instances, brought to where the states say; of a failure the states are as they were.
  Status Begin(Session& s, Part& p, const PlayLimit& whole) const {
    const std::span<InstanceState> states = s.StatesOf(p);
    std::vector<uint64_t> before;
    for (const InstanceState& state : states) before.push_back(state.digest);
    const Status begun = PlayAgain(s, p, before, whole);
    for (size_t i = 0; i < p.count; ++i) {
      if (!begun.ok() && states[i].steps > 0) states[i].digest = before[i];
    }
    return begun;
  }
  // `before`: digests of the states.
  Status PlayAgain(Session& s, Part& p, const std::vector<uint64_t>& before, const PlayLimit& whole) const {
    p.held = {};
    TP_ASSIGN_OR_RETURN(const ServiceDescription described, services->Describe(whole));
    const std::span<InstanceState> states = s.StatesOf(p);
    int64_t lost = 0, longest = 0;
    for (InstanceState& state : states) {
      if (!described.replays && state.steps > 0) {
        state = {.index = state.index, .episode = state.episode + 1};
        ++lost;
      }
      longest = std::max(longest, state.steps);
    }
    if (lost > 0)
      observe::Log(observe::LogLevel::kWarn, "environment_instances_lost",
                   {{"environment", spec.name}, {"instances", lost}, {"why", "pinned; new episodes begin"}});
    TP_ASSIGN_OR_RETURN(auto stream, services->BeginVector(static_cast<int64_t>(p.count), whole));
    const auto width = static_cast<size_t>(spec.observation_size),
               action = static_cast<size_t>(spec.action_size());
    std::vector<float> observations(p.count * width);
    std::vector<uint32_t> rows(p.count);
    for (size_t i = 0; i < p.count; ++i) rows[i] = static_cast<uint32_t>(i);
    TP_RETURN_IF_ERROR(Reset(*stream, rows, states, observations, Sooner(whole, config.reset_timeout_s)));
    for (int64_t t = 0; t < longest; ++t) {
      std::vector<float> actions;
      std::vector<int32_t> seeds;
      std::vector<InstanceState*> moved;
      std::erase_if(rows, [&](uint32_t row) { return states[row].steps <= t; });
      for (const uint32_t row : rows) {
        const auto at = states[row].actions.begin() + static_cast<std::ptrdiff_t>(t * spec.action_size());
        actions.insert(actions.end(), at, at + static_cast<std::ptrdiff_t>(action));
        seeds.push_back(SeedOf(states[row], 1));
        moved.push_back(&states[row]);
      }
      VectorMove move{.reset = false,
                      .which = BytesOf(std::span<const uint32_t>(rows)),
                      .seeds = BytesOf(std::span<const int32_t>(seeds)),
                      .actions = ActionBytes(actions)};
      const PlayLimit limit = Sooner(whole, config.step_timeout_s);
      TP_RETURN_IF_ERROR(stream->Ask(std::move(move), limit));
      TP_ASSIGN_OR_RETURN(const VectorMoved answer, stream->Answer(limit));
      TP_ASSIGN_OR_RETURN(const Said said, Read(*stream, answer, /*step=*/true, moved));
      for (size_t k = 0; k < rows.size(); ++k) {
        if (said.flags[k] != 0)
          return OtherStory(*stream, *moved[k], "ended after " + std::to_string(t + 1) + " steps");
        const auto row = std::span(said.observations).subspan(k * width, width);
        std::ranges::copy(row, observations.begin() + static_cast<std::ptrdiff_t>(rows[k] * width));
        moved[k]->digest = DigestOf(row, moved[k]->digest, said.rewards[k]);
      }
    }
    for (size_t i = 0; i < p.count; ++i) {
      const bool other = states[i].steps > 0 && states[i].digest != before[i];
      if (states[i].steps > 0) states[i].digest = before[i];
      if (other) return OtherStory(*stream, states[i], "said other observations or rewards");
    }
    p.held = {std::move(stream), std::move(observations)};
    return OkStatus();
  }
  static Status OtherStory(const VectorStream& stream, const InstanceState& s, const std::string& what) {
    return DataLoss(stream.where() + ": an episode that was played again from its seed and its actions " +
                    what + "; correct it, or declare loss='pinned' if that is its nature; " +
                    environments::NameOf(s));
  }

  // Tries `what` until it is done, the environment itself is at fault, or that is so often enough. kAborted:
  // it is. kUnavailable: no service will ever play here.
  template <typename What>
  Status Tried(const PlayLimit& whole, int64_t tries, What what) const {
    for (;;) {
      const Status done = what();
      if (done.ok() || OwnFault(done)) return done;
      if (const std::string failed = services->failed(); !failed.empty()) return Unavailable(failed);
      if (--tries <= 0 || Clock::now() >= whole.deadline) return Aborted(done.message());
    }
  }

  // Pinned instances that are lost are lost.
  [[nodiscard]] int64_t TriesAfterLoss() const { return services->replays() ? config.max_retries : 0; }

  VectorMove MoveOf(const Session& s, const Part& p, std::span<const float> actions) const {
    const auto action = static_cast<size_t>(spec.action_size());
    return {.reset = false,
            .which = {},
            .seeds = BytesOf(std::span(s.next_seeds).subspan(p.first, p.count)),
            .actions = ActionBytes(actions.subspan(p.first * action, p.count * action))};
  }

  StatusOr<Said> AnswerOf(Session& s, Part& p, const PlayLimit& limit) const {
    TP_ASSIGN_OR_RETURN(const VectorMoved answer, p.held.stream->Answer(limit));
    std::vector<InstanceState*> moved;
    for (InstanceState& state : s.StatesOf(p)) moved.push_back(&state);
    return Read(*p.held.stream, answer, /*step=*/true, moved);
  }

  // The answer to the step that was asked; where it is lost, from instances that are brought to where these
  // were.
  StatusOr<Said> StepOf(Session& s, Part& p, std::span<const float> actions, const PlayLimit& whole) const {
    StatusOr<Said> said =
        p.asked.ok() ? AnswerOf(s, p, Sooner(whole, config.step_timeout_s)) : StatusOr<Said>(p.asked);
    if (said.ok() || OwnFault(said.status())) return said;
    if (TriesAfterLoss() == 0) return Aborted(said.status().message());
    observe::Log(observe::LogLevel::kWarn, "environment_replay",
                 {{"environment", spec.name}, {"instances", p.count}, {"why", said.status().message()}});
    TP_RETURN_IF_ERROR(Tried(whole, TriesAfterLoss(), [&]() -> Status {
      TP_RETURN_IF_ERROR(Begin(s, p, whole));
      const PlayLimit limit = Sooner(whole, config.step_timeout_s);
      TP_RETURN_IF_ERROR(p.held.stream->Ask(MoveOf(s, p, actions), limit));
      said = AnswerOf(s, p, limit);
      return said.status();
    }));
    return said;
  }

  // Takes what a part said into the session's states and the step that is handed out.
  Status Take(Session& s, Part& p, Said said, std::span<const float> actions, environments::VectorStep& out,
              const PlayLimit& whole) const {
    const auto width = static_cast<size_t>(spec.observation_size),
               action = static_cast<size_t>(spec.action_size());
    const std::span<InstanceState> states = s.StatesOf(p);
    const bool replays = services->replays();
    std::vector<uint32_t> late;  // whose episode this worker ends
    size_t ended = 0;
    for (size_t i = 0; i < p.count; ++i) {
      InstanceState& state = states[i];
      const auto row = std::span<const float>(said.observations).subspan(i * width, width);
      const bool over = said.flags[i] != 0;
      ++state.steps;
      state.score += said.rewards[i];
      uint8_t flag =
          (said.flags[i] & environments::kTerminated) != 0 ? environments::kTerminated : said.flags[i];
      if (flag == 0 && state.steps >= spec.max_episode_steps) {
        flag = environments::kTruncated;
        late.push_back(static_cast<uint32_t>(i));
      }
      out.rewards.push_back(static_cast<float>(said.rewards[i]));
      out.flags.push_back(flag);
      if (flag == 0) {
        state.digest = DigestOf(row, state.digest, said.rewards[i]);
        const auto did = actions.subspan((p.first + i) * action, action);
        if (replays) state.actions.insert(state.actions.end(), did.begin(), did.end());
        continue;
      }
      const auto last = over ? std::span<const float>(said.finals).subspan(ended * width, width) : row;
      ended += over ? 1 : 0;
      out.final_observations.insert(out.final_observations.end(), last.begin(), last.end());
      out.scores.push_back(state.score);
      state = {.index = state.index, .episode = state.episode + 1, .digest = DigestOf(row)};
      s.next_seeds[p.first + i] = SeedOf(state, 1);
    }
    p.held.observations = std::move(said.observations);
    if (late.empty()) return OkStatus();
    const Status reset =
        Reset(*p.held.stream, late, states, p.held.observations, Sooner(whole, config.reset_timeout_s));
    if (reset.ok() || OwnFault(reset)) return reset;
    if (TriesAfterLoss() == 0) return Aborted(reset.message());
    return Tried(whole, TriesAfterLoss(), [&] { return Begin(s, p, whole); });
  }

  Status CheckActions(const Session& s, std::span<const float> actions) const {
    if (actions.size() != s.states.size() * static_cast<size_t>(spec.action_size()))
      return InvalidArgument(spec.name + ": " + std::to_string(actions.size()) + " numbers of actions for " +
                             std::to_string(s.states.size()) + " instances");
    for (const float a : actions) {
      const bool choice = a >= 0 && a < static_cast<float>(spec.actions) && a == std::floor(a);
      if (spec.continuous ? std::isfinite(a) : choice) continue;
      return InvalidArgument(spec.name + ": " + std::to_string(a) + " is no action");
    }
    return OkStatus();
  }
  Status CheckStates(const std::vector<InstanceState>& states) const {
    if (states.empty()) return InvalidArgument(spec.name + ": a session has instances");
    for (const InstanceState& s : states) {
      const auto done = static_cast<size_t>(s.steps * spec.action_size());
      if (s.steps >= 0 && s.steps < spec.max_episode_steps && s.episode >= 0 && std::isfinite(s.score) &&
          (s.actions.size() == done || (s.actions.empty() && s.steps > 0)))
        continue;
      return InvalidArgument("instance " + std::to_string(s.index) + ": the numbers given are no state of " +
                             spec.name);
    }
    return OkStatus();
  }
};

ServedHost::ServedHost(const JobConfig& job, std::shared_ptr<EnvironmentServices> services,
                       std::shared_ptr<KeptInstances> kept)
    : impl_(std::make_unique<Impl>()) {
  impl_->spec = *policy::EnvironmentOfJob(job).served;
  impl_->seed = job.seed;
  impl_->config = *job.environment();
  impl_->services = std::move(services);
  impl_->kept = std::move(kept);
}
ServedHost::~ServedHost() = default;

StatusOr<std::vector<float>> ServedHost::Open(int64_t session, const std::vector<InstanceState>& states) {
  Impl& m = *impl_;
  TP_RETURN_IF_ERROR(m.CheckStates(states));
  const PlayLimit whole = m.Whole();
  Session s{.states = states, .next_seeds = {}, .parts = {}};
  const size_t n = states.size(), parts = std::min(n, static_cast<size_t>(m.services->sites()));
  std::vector<float> first;
  for (size_t k = 0; k < parts; ++k) {
    Session::Part& p = s.parts.emplace_back();
    p.first = k * n / parts;
    p.count = (k + 1) * n / parts - p.first;
    p.held = m.kept->Take(NameOfStates(s.StatesOf(p)));
    if (p.held.stream == nullptr)
      TP_RETURN_IF_ERROR(m.Tried(whole, m.config.max_retries + 1, [&] { return m.Begin(s, p, whole); }));
    first.insert(first.end(), p.held.observations.begin(), p.held.observations.end());
  }
  for (const InstanceState& state : s.states) s.next_seeds.push_back(m.SeedOf(state, 1));
  m.sessions.insert_or_assign(session, std::move(s));
  return first;
}

StatusOr<std::vector<policy::EnvironmentHost::Moved>> ServedHost::Step(const std::vector<Action>& actions) {
  Impl& m = *impl_;
  const PlayLimit whole = m.Whole();
  std::vector<Moved> out(actions.size());
  std::vector<Session*> played(actions.size());
  for (size_t k = 0; k < actions.size(); ++k) {
    const auto it = m.sessions.find(actions[k].session);
    if (it == m.sessions.end())
      return NotFound("environment session " + std::to_string(actions[k].session) + " is not open");
    out[k].session = actions[k].session;
    out[k].status = m.CheckActions(it->second, actions[k].actions);
    if (!out[k].status.ok()) continue;
    played[k] = &it->second;
    for (Session::Part& p : it->second.parts) {
      p.asked = p.held.stream == nullptr ? Unavailable(m.spec.name + ": its instances are lost")
                                         : p.held.stream->Ask(m.MoveOf(it->second, p, actions[k].actions),
                                                              Impl::Sooner(whole, m.config.step_timeout_s));
    }
  }
  for (size_t k = 0; k < actions.size(); ++k) {
    if (played[k] == nullptr) continue;
    environments::VectorStep& step = out[k].step;
    for (Session::Part& p : played[k]->parts) {
      auto said = m.StepOf(*played[k], p, actions[k].actions, whole);
      Status done = said.status();
      if (done.ok()) done = m.Take(*played[k], p, *std::move(said), actions[k].actions, step, whole);
      if (!done.ok()) p.held = {};
      if (!done.ok() && out[k].status.ok()) out[k].status = std::move(done);
      step.observations.insert(step.observations.end(), p.held.observations.begin(),
                               p.held.observations.end());
    }
  }
  return out;
}

StatusOr<std::vector<InstanceState>> ServedHost::Close(int64_t session) {
  Impl& m = *impl_;
  const auto it = m.sessions.find(session);
  if (it == m.sessions.end())
    return NotFound("environment session " + std::to_string(session) + " is not open");
  Session s = std::move(it->second);
  m.sessions.erase(it);
  // An evaluation's instances are played once, and a fragment of which a part is lost is thrown away.
  const bool whole = std::ranges::all_of(s.parts, [](const auto& p) { return p.held.stream != nullptr; });
  if (whole && s.states.front().index < environments::kEvaluationInstances) {
    for (Session::Part& p : s.parts) m.kept->Put(NameOfStates(s.StatesOf(p)), std::move(p.held));
  }
  return std::move(s.states);
}

}  // namespace tidepool::workers
