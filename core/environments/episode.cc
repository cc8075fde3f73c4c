#include "core/environments/episode.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <exception>
#include <utility>

#include "core/base/hash.h"
#include "core/base/rng.h"
#include "core/base/running_call.h"

namespace tidepool::environments {

namespace {

// A game that is played in this process.
class PlayedHere : public Playing {
 public:
  explicit PlayedHere(std::unique_ptr<TextGame> game) : game_(std::move(game)) {}
  StatusOr<Told> Step(const std::string& action, const PlayLimit& /*limit*/) override {
    Told told{.step = game_->Step(action)};
    if (!told.step.done) told.state = StateHash(*game_);
    return told;
  }

 private:
  const std::unique_ptr<TextGame> game_;
};

}  // namespace

StatusOr<EpisodeSource> EpisodeSource::Create(const JobConfig& config, std::shared_ptr<GameService> service) {
  const EnvironmentConfig& e = *config.environment();
  EpisodeSource source;
  if (e.is_service()) {
    source.label_ = "environment " + e.name;
    source.max_turns_ = INT64_MAX;
    source.service_ = std::move(service);
  } else {
    auto made = MakeTextEnvironment(e.name, e.options, config.seed);
    if (!made.ok()) return Status(made.status().code(), "environment." + made.status().message());
    source.environment_ = std::move(made).value();
    source.label_ = LabelOf(*FindTextEnvironment(e.name));
    auto turns = MaxTurns(e.name, *source.environment_);
    if (!turns.ok()) return Status(turns.status().code(), "environment." + turns.status().message());
    source.max_turns_ = *turns;
  }
  source.size_ = e.size;
  source.held_out_ = e.held_out;
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

StatusOr<Begun> EpisodeSource::Begin(const SampleId& tid, int64_t replay, const PlayLimit& limit) const {
  if (is_service()) {
    if (service_ == nullptr)
      return FailedPrecondition(label_ + ": its games are begun by environment workers alone");
    // The last bit keeps what is held out apart from what is trained on.
    constexpr uint64_t kSeeds = uint64_t{1} << 30;
    const uint64_t drawn = Mix64(seed_ ^ Mix64(static_cast<uint64_t>(IndexOf(tid)))) % kSeeds;
    return service_->Begin(static_cast<int64_t>(drawn << 1U | (tid.is_eval() ? 1U : 0U)), tid.is_eval(),
                           replay, limit);
  }
  std::unique_ptr<TextGame> game = Game(tid);
  Told first{.step = {.observation = game->Reset()}};
  first.state = StateHash(*game);
  return Begun{std::make_unique<PlayedHere>(std::move(game)), std::move(first)};
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

uint64_t ExtendHistory(uint64_t history, const std::string& observation, double reward) {
  return Hash64(observation, Mix64(Mix64(history + 1) ^ std::bit_cast<uint64_t>(reward)));
}

uint64_t StateHash(const TextGame& game) { return Hash64(game.State()); }

int64_t EpisodeHost::replayed() const {
  const MutexLock lock(mu_);
  return replayed_;
}

Status EpisodeHost::Step(Live& live, const std::string& action, const PlayLimit& limit) const {
  TP_ASSIGN_OR_RETURN(const Told told, live.game->Step(action, limit));
  const TextStep& step = told.step;
  Played& s = live.state;
  ++s.turns;
  if (!std::isfinite(step.reward))
    return DataLoss(source_.label() + ": Step gave the reward " + std::to_string(step.reward) + " in turn " +
                    std::to_string(s.turns) + ", but a reward has to be a finite number");
  s.history = ExtendHistory(s.history, s.observation, s.reward);
  s.observation = step.observation;
  s.conversation = step.conversation;
  s.reward += step.reward;
  s.solved = step.done && step.solved;
  s.done = step.done || s.turns >= source_.max_turns();
  s.state = s.done ? 0 : told.state;
  if (!s.done && s.observation.empty())
    return DataLoss(source_.label() + ": Step gave no text for the policy to read in turn " +
                    std::to_string(s.turns) + ", and the game is not over");
  live.actions.push_back(action);
  return OkStatus();
}

StatusOr<Played> EpisodeHost::Play(const SampleId& tid, int32_t att, const std::vector<std::string>& actions,
                                   const PlayLimit& limit) {
  const std::string on = "turn " + std::to_string(actions.size()) + " of sample " + ToString(tid);
  const RunningCall call(source_.label(), on);
  // What dies at every replay is not tried for ever.
  constexpr int kTries = 3;
  for (int tries = 1;; ++tries) {
    Place place(*this);
    auto played = PlayOnce(tid, att, actions, limit, place);
    const bool again = played.status().code() == StatusCode::kUnavailable && tries < kTries &&
                       Clock::now() < limit.deadline && !limit.stop.stop_requested();
    if (!again) return played;
  }
}

StatusOr<Played> EpisodeHost::PlayOnce(const SampleId& tid, int32_t att,
                                       const std::vector<std::string>& actions, const PlayLimit& limit,
                                       Place& place) try {
  Live live = Take(tid, att, actions, place);
  if (live.game == nullptr) {
    const int64_t replay = std::max<int64_t>(0, static_cast<int64_t>(actions.size()) - 1);
    TP_RETURN_IF_ERROR(MakeRoom(limit, place));
    auto made = source_.Begin(tid, replay, limit);
    if (made.status().code() == StatusCode::kResourceExhausted) GiveUpIdle();
    TP_ASSIGN_OR_RETURN(Begun begun, std::move(made));
    live.game = std::move(begun.game);
    live.state.observation = std::move(begun.first.step.observation);
    live.state.conversation = begun.first.step.conversation;
    live.state.state = begun.first.state;
    if (live.state.observation.empty())
      return DataLoss(source_.label() + ": Reset gave no text for the policy to read");
    if (begun.first.step.done || begun.first.step.reward != 0)
      return DataLoss(source_.label() + ": Reset " +
                      (begun.first.step.done ? std::string("ended the episode")
                                             : "gave the reward " + std::to_string(begun.first.step.reward)) +
                      ", and nothing has been done in it yet");
    const MutexLock lock(mu_);
    replayed_ += replay;
  }
  live.att = att;
  while (live.actions.size() < actions.size() && !live.state.done)
    TP_RETURN_IF_ERROR(Step(live, actions[live.actions.size()], limit));
  Played played = live.state;
  if (!played.done) Keep(tid, std::move(live), place);
  return played;
} catch (const std::exception& e) {  // a game's: the same actions would throw again
  return DataLoss(source_.label() + " threw an exception after " + std::to_string(actions.size()) +
                  " actions: " + e.what());
} catch (...) {
  return DataLoss(source_.label() + " threw something that is no std::exception after " +
                  std::to_string(actions.size()) + " actions");
}

EpisodeHost::Live EpisodeHost::Take(const SampleId& tid, int32_t att, const std::vector<std::string>& actions,
                                    Place& place) {
  Live live, gone;
  const MutexLock lock(mu_);
  auto it = live_.find(tid);
  // Its group's prompt was the first word of a game that is as this one at its beginning.
  if (it == live_.end() && !tid.is_eval()) it = live_.find({tid.ordinal, tid.issue, SampleId::kRowSample});
  if (it == live_.end()) return live;
  const bool goes_on = (it->first != tid || it->second.att == att) &&
                       it->second.actions.size() <= actions.size() &&
                       std::equal(it->second.actions.begin(), it->second.actions.end(), actions.begin());
  (goes_on ? live : gone) = std::move(it->second);
  live_.erase(it);
  if (goes_on) Hold(place);
  return live;
}

void EpisodeHost::Keep(const SampleId& tid, Live live, Place& place) {
  Live before;
  const MutexLock lock(mu_);
  GiveUp(place);
  live.used = Clock::now();
  Live& kept = live_[tid];
  before = std::exchange(kept, std::move(live));
  room_.NotifyAll();
}

void EpisodeHost::Forget(const SampleId& tid, int32_t att) {
  Live gone;  // ends when nobody waits for the lock
  const MutexLock lock(mu_);
  const auto it = live_.find(tid);
  if (it == live_.end() || it->second.att != att) return;
  gone = std::move(it->second);
  live_.erase(it);
  room_.NotifyAll();
}

void EpisodeHost::GiveUpIdle() {
  constexpr std::chrono::seconds kSoon{5};
  std::vector<Live> gone;  // they end when nobody waits for the lock
  const MutexLock lock(mu_);
  const auto now = Clock::now();
  for (auto it = live_.begin(); it != live_.end();) {
    const bool idle = now - it->second.used > (it->second.actions.empty() ? kSoon : longest_);
    if (idle) gone.push_back(std::move(it->second));
    it = idle ? live_.erase(it) : std::next(it);
  }
}

bool EpisodeHost::MayGo(const Live& live) const {
  return source_.replays() || live.actions.empty() || Clock::now() - live.used > longest_;
}

Status EpisodeHost::MakeRoom(const PlayLimit& limit, Place& place) {
  std::vector<Live> gone;  // they end when nobody waits for the lock
  const MutexLock lock(mu_);
  while (live_.size() + played_ >= capacity_) {
    auto oldest = live_.end();
    for (auto it = live_.begin(); it != live_.end(); ++it) {
      if (MayGo(it->second) && (oldest == live_.end() || it->second.used < oldest->second.used)) oldest = it;
    }
    if (oldest != live_.end()) {
      gone.push_back(std::move(oldest->second));
      live_.erase(oldest);
      continue;
    }
    const auto left = limit.deadline - Clock::now();
    if (left <= Clock::duration(0) || limit.stop.stop_requested() || !limit.waits_for_room)
      return ResourceExhausted(source_.label() + ": the " + std::to_string(capacity_) +
                               " episodes that may be open at once are all in play; raise "
                               "environment.instances");
    room_.WaitFor(mu_, limit.stop, std::min<Clock::duration>(left, std::chrono::seconds(1)));
  }
  Hold(place);
  return OkStatus();
}

}  // namespace tidepool::environments
