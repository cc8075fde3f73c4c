#include "core/policy/player.h"

#include <algorithm>
#include <utility>

#include "core/base/rng.h"
#include "core/policy/distribution.h"

namespace tidepool::policy {

Player::Player(const PolicySpec& spec, const model::Weights& weights, EnvironmentHost& host, uint64_t seed)
    : spec_(spec), network_(spec, weights), host_(host), seed_(seed) {}

Status Player::Add(FragmentRequest request) {
  const auto n = static_cast<int64_t>(request.starts.size());
  if (n < 1 || request.steps < 1 || request.steps > (int64_t{1} << 26) / n)
    return InvalidArgument("fragment " + ToString(request.tid) + ": no steps or instances, or too many");
  if (request.episode && n != 1)
    return InvalidArgument("fragment " + ToString(request.tid) + ": an episode is played by one instance");
  for (const Running& r : running_) {
    if (r.request.tid == request.tid && r.request.att == request.att)
      return AlreadyExists("fragment " + ToString(request.tid) + " is being played");
  }
  Running r;
  r.session = next_session_++;
  r.uid = SampleUid(request.tid);
  r.fragment.instances = n;
  r.fragment.observation_size = spec_.observation_size;
  r.fragment.action_size = spec_.action_size();
  r.request = std::move(request);
  running_.push_back(std::move(r));
  return OkStatus();
}

void Player::Forget(Running& r) {
  if (r.open)
    (void)host_.Close(r.session);  // its states are not wanted; a host that is gone has forgotten it already
}

bool Player::Cancel(const SampleId& tid, int32_t att) {
  const auto it = std::ranges::find_if(
      running_, [&](const Running& r) { return r.request.tid == tid && r.request.att == att; });
  if (it == running_.end()) return false;
  Forget(*it);
  running_.erase(it);
  return true;
}

std::vector<std::pair<SampleId, int32_t>> Player::Drain() {
  std::vector<std::pair<SampleId, int32_t>> out;
  for (Running& r : running_) {
    out.emplace_back(r.request.tid, r.request.att);
    Forget(r);
  }
  running_.clear();
  return out;
}

void Player::Lose(const Status& why, std::vector<PlayedFragment>& out) {
  for (Running& r : running_) out.push_back({r.request.tid, r.request.att, why, {}});
  running_.clear();
}

Status Player::Finish(Running& r) {
  Fragment& f = r.fragment;
  if (!spec_.squashed) {
    std::vector<float> heads, last;
    network_.Forward(
        std::span(f.observations).subspan(static_cast<size_t>(f.steps * f.instances * f.observation_size)),
        heads, last);
    f.values.insert(f.values.end(), last.begin(), last.end());
  }
  TP_ASSIGN_OR_RETURN(f.ends, host_.Close(r.session));
  r.open = false;
  return OkStatus();
}

std::vector<PlayedFragment> Player::Step(PlayerStats* stats) {
  std::vector<PlayedFragment> out;
  const auto lost = [](const Status& s) {
    return s.code() == StatusCode::kUnavailable || s.code() == StatusCode::kDeadlineExceeded;
  };
  for (size_t i = 0; i < running_.size();) {
    Running& r = running_[i];
    if (!r.open) {
      auto first = host_.Open(r.session, r.request.starts);
      const bool sized = first.ok() && first->size() == static_cast<size_t>(r.fragment.instances *
                                                                            r.fragment.observation_size);
      if (!sized) {
        const Status why =
            first.ok() ? InvalidArgument("the environment's observations have another size than the policy's")
                       : first.status();
        if (lost(why)) {
          Lose(why, out);
          return out;
        }
        out.push_back({r.request.tid, r.request.att, why, {}});
        running_.erase(running_.begin() + static_cast<int64_t>(i));
        continue;
      }
      r.open = true;
      r.fragment.observations = std::move(*first);
    }
    ++i;
  }
  if (running_.empty()) return out;

  // One forward for the newest observations of all.
  std::vector<float> observations, heads, values;
  for (const Running& r : running_) {
    const auto row = static_cast<size_t>(r.fragment.instances * r.fragment.observation_size);
    observations.insert(observations.end(), r.fragment.observations.end() - static_cast<int64_t>(row),
                        r.fragment.observations.end());
  }
  network_.Forward(observations, heads, values);
  const std::span<const float> log_std = network_.log_std();
  const auto width = static_cast<size_t>(spec_.head_size()), step = static_cast<size_t>(spec_.action_size());
  std::vector<EnvironmentHost::Action> actions;
  size_t at = 0;
  for (Running& r : running_) {
    Fragment& f = r.fragment;
    EnvironmentHost::Action& a = actions.emplace_back();
    a.session = r.session;
    a.actions.resize(static_cast<size_t>(f.instances) * step);
    for (int64_t i = 0; i < f.instances; ++i, ++at) {
      const std::span<const float> head = std::span(heads).subspan(at * width, width);
      const std::span<float> action = std::span(a.actions).subspan(static_cast<size_t>(i) * step, step);
      const auto position = static_cast<uint32_t>(f.steps * f.instances + i);
      double logp = 0;
      if (r.request.uniform) {
        logp = SampleUniformly(spec_, seed_, r.uid, position, action);
      } else {
        Sample(spec_, head, log_std, seed_, r.uid, position, r.request.greedy, action);
        logp = Evaluate(spec_, head, log_std, action).logp;
      }
      f.log_probs.push_back(static_cast<float>(logp));
      if (!spec_.squashed) f.values.push_back(values[at]);
    }
    f.actions.insert(f.actions.end(), a.actions.begin(), a.actions.end());
  }

  auto moved = host_.Step(actions);
  if (moved.ok() && moved->size() != running_.size())
    moved = Unavailable("the environment answered for other sessions than it was asked about");
  if (!moved.ok()) {
    Lose(lost(moved.status()) ? moved.status() : Unavailable(moved.status().message()), out);
    return out;
  }
  if (stats != nullptr) *stats = {running(), static_cast<int64_t>(at)};
  std::vector<Running> left;
  for (size_t k = 0; k < running_.size(); ++k) {
    Running& r = running_[k];
    Fragment& f = r.fragment;
    if (const Status& broke = (*moved)[k].status; !broke.ok()) {
      out.push_back({r.request.tid, r.request.att, broke, {}});
      Forget(r);
      continue;
    }
    environments::VectorStep& s = (*moved)[k].step;
    const auto n = static_cast<size_t>(f.instances), o = static_cast<size_t>(f.observation_size);
    size_t ended = 0;
    for (const uint8_t flag : s.flags) ended += flag != 0 ? 1 : 0;
    if ((*moved)[k].session != r.session || s.observations.size() != n * o || s.rewards.size() != n ||
        s.flags.size() != n || s.final_observations.size() != ended * o || s.scores.size() != ended) {
      out.push_back(
          {r.request.tid, r.request.att, InvalidArgument("the environment's answer has the wrong size"), {}});
      Forget(r);
      continue;
    }
    f.observations.insert(f.observations.end(), s.observations.begin(), s.observations.end());
    f.rewards.insert(f.rewards.end(), s.rewards.begin(), s.rewards.end());
    f.flags.insert(f.flags.end(), s.flags.begin(), s.flags.end());
    f.scores.insert(f.scores.end(), s.scores.begin(), s.scores.end());
    for (size_t i = 0, e = 0; i < n; ++i) {
      if (s.flags[i] == 0) continue;
      if (s.flags[i] == environments::kTruncated) {
        f.final_observations.insert(f.final_observations.end(),
                                    s.final_observations.begin() + static_cast<int64_t>(e * o),
                                    s.final_observations.begin() + static_cast<int64_t>((e + 1) * o));
      }
      ++e;
    }
    ++f.steps;
    if (f.steps < r.request.steps && !(r.request.episode && ended > 0)) {
      left.push_back(std::move(r));
      continue;
    }
    const Status finished = Finish(r);
    out.push_back({r.request.tid, r.request.att, finished, finished.ok() ? std::move(f) : Fragment{}});
  }
  running_ = std::move(left);
  return out;
}

}  // namespace tidepool::policy
