#include "core/environments/episode.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <utility>

#include "core/base/hash.h"
#include "core/base/rng.h"
#include "core/base/running_call.h"

namespace tidepool::environments {

StatusOr<EpisodeSource> EpisodeSource::Create(const JobConfig& config) {
  const EnvironmentConfig& e = *config.environment();
  auto made = MakeTextEnvironment(e.name, e.options, config.seed);
  if (!made.ok()) return Status(made.status().code(), "environment." + made.status().message());
  EpisodeSource source;
  source.environment_ = std::move(made).value();
  source.label_ = LabelOf(*FindTextEnvironment(e.name));
  source.size_ = e.size;
  source.held_out_ = e.held_out;
  auto turns = MaxTurns(e.name, *source.environment_);
  if (!turns.ok()) return Status(turns.status().code(), "environment." + turns.status().message());
  source.max_turns_ = *turns;
  if (e.max_turns > 0) source.max_turns_ = std::min(source.max_turns_, e.max_turns);
  source.shuffle_ = config.data.shuffle;
  source.seed_ = Mix64(config.seed ^ 0x65706973ULL);
  std::string text = e.name + "\n" + std::to_string(e.size) + "\n" + std::to_string(e.held_out) + "\n" +
                     std::to_string(config.seed) + "\n" + std::to_string(source.max_turns_) + "\n" +
                     (config.data.shuffle ? "1" : "0") + "\n";
  for (const auto& [name, value] : e.options) text += name + "=" + value + "\n";
  source.identity_ = Sha256Hex(text);
  return source;
}

int64_t EpisodeSource::IndexOf(const SampleId& tid) const {
  if (tid.is_eval()) return tid.ordinal;
  const int64_t index = tid.ordinal % size_;
  return shuffle_
             ? PermutedIndex(index, size_, Mix64(seed_ ^ Mix64(static_cast<uint64_t>(tid.ordinal / size_))))
             : index;
}

std::unique_ptr<TextGame> EpisodeSource::Game(const SampleId& tid) const {
  return environment_->Make(tid.is_eval(), IndexOf(tid));
}

std::string EpisodeSource::NameOf(const SampleId& tid) const {
  return (tid.is_eval() ? "held-out game " : "training game ") + std::to_string(IndexOf(tid));
}

double TurnLatency(const EnvironmentLatency& latency, uint64_t seed, const SampleId& tid, int64_t turn) {
  const Rng sample = Rng(seed).Fork("environment latency").Fork(SampleUid(tid));
  double seconds = 0;
  if (latency.median_s > 0) {
    Rng rng = sample.Fork(static_cast<uint64_t>(turn));
    seconds = std::min(latency.max_s, latency.median_s * std::exp(latency.tail * rng.Normal()));
  }
  Rng straggler = sample.Fork("straggler");
  if (latency.straggler_share > 0 && straggler.Uniform() < latency.straggler_share)
    seconds += latency.straggler_s;
  return seconds;
}

uint64_t ExtendHistory(uint64_t history, const std::string& observation) {
  return Hash64(observation, Mix64(history + 1));
}

uint64_t StateHash(const TextGame& game) { return Hash64(game.State()); }

Status EpisodeHost::Step(Live& live, const std::string& action) const {
  const TextStep step = live.game->Step(action);
  Played& s = live.state;
  ++s.turns;
  if (!std::isfinite(step.reward))
    return DataLoss(source_.label() + ": Step gave the reward " + std::to_string(step.reward) + " in turn " +
                    std::to_string(s.turns) + ", but a reward has to be a finite number");
  s.history = ExtendHistory(s.history, s.observation);
  s.observation = step.observation;
  s.reward += step.reward;
  s.solved = step.done && step.solved;
  s.done = step.done || s.turns >= source_.max_turns();
  s.state = s.done ? 0 : StateHash(*live.game);
  if (!s.done && s.observation.empty())
    return DataLoss(source_.label() + ": Step gave no text for the policy to read in turn " +
                    std::to_string(s.turns) + ", and the game is not over");
  live.actions.push_back(action);
  return OkStatus();
}

StatusOr<Played> EpisodeHost::Play(const SampleId& tid, int32_t att,
                                   const std::vector<std::string>& actions) try {
  auto it = live_.find(tid);
  const std::string on = "turn " + std::to_string(actions.size()) + " of sample " + ToString(tid);
  const RunningCall call(source_.label(), on);
  const bool goes_on = it != live_.end() && it->second.att == att &&
                       it->second.actions.size() <= actions.size() &&
                       std::equal(it->second.actions.begin(), it->second.actions.end(), actions.begin());
  if (!goes_on) {
    if (it != live_.end()) live_.erase(it);
    Live live;
    live.att = att;
    live.game = source_.Game(tid);
    live.state.observation = live.game->Reset();
    live.state.state = StateHash(*live.game);
    if (live.state.observation.empty())
      return DataLoss(source_.label() + ": Reset gave no text for the policy to read");
    replayed_ += std::max<int64_t>(0, static_cast<int64_t>(actions.size()) - 1);
    it = live_.emplace(tid, std::move(live)).first;
  }
  Live& live = it->second;
  live.used = ++clock_;
  while (live.actions.size() < actions.size() && !live.state.done) {
    if (Status s = Step(live, actions[live.actions.size()]); !s.ok()) {
      live_.erase(it);
      return s;
    }
  }
  Played played = live.state;
  if (played.done) live_.erase(it);
  Trim();
  return played;
} catch (const std::exception& e) {  // a game's: the same actions would throw again
  live_.erase(tid);
  return DataLoss(source_.label() + " threw an exception after " + std::to_string(actions.size()) +
                  " actions: " + e.what());
} catch (...) {
  live_.erase(tid);
  return DataLoss(source_.label() + " threw something that is no std::exception after " +
                  std::to_string(actions.size()) + " actions");
}

void EpisodeHost::Trim() {
  while (live_.size() > capacity_) {
    live_.erase(std::min_element(live_.begin(), live_.end(),
                                 [](const auto& a, const auto& b) { return a.second.used < b.second.used; }));
  }
}

}  // namespace tidepool::environments
