#pragma once
// Episodes of a job: which game a sample plays, how long a turn takes, and the games that are under way in a
// worker process. An episode is named by its sample; all that has happened in it follows from the actions, so
// a worker that does not know it replays them.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "core/base/config.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/base/thread_annotations.h"
#include "core/environments/text_game.h"

namespace tidepool::environments {

// How long a call may take; over soon after `stop` as well.
struct PlayLimit {
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  std::stop_token stop = {};
  bool waits_for_room = true;  // false: kResourceExhausted at once where no more games may be open now
};

// What a game says to a reset or a step, and a name of the state that the policy acts in then.
struct Told {
  TextStep step;
  uint64_t state = 0;  // hash; meaningless when the episode is over
};

// One episode under way, in this process or elsewhere. Of one thread at a time.
// kDataLoss: it broke its own rules, and would again. kUnavailable: it is lost, through no fault of its own.
// kDeadlineExceeded: it did not answer. Other errors: it failed. After any of them it is of no more use.
class Playing {
 public:
  virtual ~Playing() = default;
  virtual StatusOr<Told> Step(const std::string& action, const PlayLimit& limit) = 0;
};
struct Begun {
  std::unique_ptr<Playing> game;
  Told first;
};

// Where the games of a job are that are not compiled in. Thread-safe.
class GameService {
 public:
  virtual ~GameService() = default;
  // A fresh game with its first words; waits for the service where that is not there. `replay`: that many
  // actions will be played in it once more. Errors of Playing; kAborted: that cannot be done.
  virtual StatusOr<Begun> Begin(int64_t seed, bool held_out, int64_t replay, const PlayLimit& limit) = 0;
  // A game that was lost may be begun again and its actions played once more. Of a service that has begun
  // one.
  [[nodiscard]] virtual bool replays() const = 0;
  [[nodiscard]] virtual int64_t max_turns() const = 0;
};

// The training games in the order in which a job goes through them, as rows of a data set. Immutable; any
// thread.
class EpisodeSource {
 public:
  // kInvalidArgument, kNotFound: the environment or its options are wrong ("environment.KEY: ...").
  // `service`: that plays the games of a job whose environment is one; null: nobody begins games here.
  static StatusOr<EpisodeSource> Create(const JobConfig& config,
                                        std::shared_ptr<GameService> service = nullptr);

  [[nodiscard]] int64_t size() const { return size_; }
  [[nodiscard]] int64_t held_out_size() const { return held_out_; }
  // The game of a sample (all samples of a group play the same one), of an evaluation question, or of a
  // group's row. requires that the environment is compiled in
  [[nodiscard]] std::unique_ptr<TextGame> Game(const SampleId& tid) const;
  // The same, begun, where it is played. What a game throws is thrown.
  [[nodiscard]] StatusOr<Begun> Begin(const SampleId& tid, int64_t replay, const PlayLimit& limit) const;
  // The environment is a service, whose games are begun by environment workers alone.
  [[nodiscard]] bool is_service() const { return environment_ == nullptr; }
  [[nodiscard]] bool replays() const { return service_ == nullptr || service_->replays(); }
  // As the environment is asked for it: "training game 512", "held-out game 7".
  [[nodiscard]] std::string NameOf(const SampleId& tid) const;
  [[nodiscard]] int64_t max_turns() const {
    return service_ == nullptr ? max_turns_ : std::min(max_turns_, service_->max_turns());
  }
  [[nodiscard]] const std::string& label() const { return label_; }  // LabelOf, of the environment
  // Names environment, options, sizes and seed; a run may only be resumed with the same. Hex.
  [[nodiscard]] const std::string& identity() const { return identity_; }

 private:
  [[nodiscard]] int64_t IndexOf(const SampleId& tid) const;
  std::shared_ptr<const TextEnvironment> environment_;  // null: a service
  std::shared_ptr<GameService> service_;
  int64_t size_ = 0, held_out_ = 0, max_turns_ = 0;
  bool shuffle_ = true;
  uint64_t seed_ = 0;
  std::string identity_, label_;
};

// Seconds that turn `turn` of this sample takes: log-normal, drawn from (seed, tid, turn) alone.
double TurnLatency(const EnvironmentLatency& latency, uint64_t seed, const SampleId& tid, int64_t turn);

// Hash chain over what an episode has said: what a replay has to arrive at again, to the bit. `reward`: of
// the episode so far, the step that said `observation` included; 0 of the first words.
uint64_t ExtendHistory(uint64_t history, const std::string& observation, double reward);

// Hash of TextGame::State().
uint64_t StateHash(const TextGame& game);

// What came of playing all of `actions`.
struct Played {
  std::string observation;  // after the last action; of no actions: the first one
  double reward = 0;        // of the episode so far
  bool done = false, solved = false;
  bool conversation = false;  // of the observation: TextStep
  int64_t turns = 0;
  uint64_t history = 0;  // ExtendHistory over all before `observation`
  uint64_t state = 0;    // StateHash; 0 when the episode is over
};

// Games under way, at most `capacity`: beyond it the least recently used is given up, if it can be replayed
// or nobody has said anything in it, or nobody has for longer than an episode may take. Where none can be, a
// new one waits for room. Thread-safe.
class EpisodeHost {
 public:
  explicit EpisodeHost(EpisodeSource source, size_t capacity = 4096,
                       std::chrono::duration<double> episode = std::chrono::hours(24))
      : source_(std::move(source)),
        capacity_(capacity),
        longest_(std::chrono::duration_cast<Clock::duration>(episode)) {}

  // `actions`: all of the episode so far. What was played before goes on where its actions are the first of
  // these, else the game begins anew; a game that is lost is begun again and its actions are replayed.
  // Actions after the end are left out. Errors of Playing; kDataLoss: the game broke its own rules (an empty
  // observation, a reward that is not finite); kAborted: it would have to be replayed, and cannot be.
  StatusOr<Played> Play(const SampleId& tid, int32_t att, const std::vector<std::string>& actions,
                        const PlayLimit& limit = {});
  // Nobody plays this attempt any more: its game ends, unless a thread is in it.
  void Forget(const SampleId& tid, int32_t att);
  [[nodiscard]] int64_t replayed() const;  // actions that were played once more

 private:
  using Clock = std::chrono::steady_clock;
  struct Live {
    int32_t att = 0;
    std::unique_ptr<Playing> game;
    std::vector<std::string> actions;
    Played state;
    Clock::time_point used;
  };
  // Counts as one of the games that are there while it holds one.
  class Place {
   public:
    explicit Place(EpisodeHost& host) : host_(host) {}
    ~Place() {
      const MutexLock lock(host_.mu_);
      host_.GiveUp(*this);
      host_.room_.NotifyAll();
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

   private:
    friend class EpisodeHost;
    EpisodeHost& host_;
    bool held_ = false;
  };
  void Hold(Place& place) TP_REQUIRES(mu_) { played_ += std::exchange(place.held_, true) ? 0 : 1; }
  void GiveUp(Place& place) TP_REQUIRES(mu_) { played_ -= std::exchange(place.held_, false) ? 1 : 0; }
  StatusOr<Played> PlayOnce(const SampleId& tid, int32_t att, const std::vector<std::string>& actions,
                            const PlayLimit& limit, Place& place);
  Status Step(Live& live, const std::string& action, const PlayLimit& limit) const;
  // The game that goes on with `actions`, in `place` until it is kept again. No game: none does.
  Live Take(const SampleId& tid, int32_t att, const std::vector<std::string>& actions, Place& place);
  void Keep(const SampleId& tid, Live live, Place& place);
  Status MakeRoom(const PlayLimit& limit, Place& place);
  [[nodiscard]] bool MayGo(const Live& live) const;
  void GiveUpIdle();  // what nobody has begun to play since a while, for a service that has no room

  const EpisodeSource source_;
  const size_t capacity_;
  const Clock::duration longest_;
  mutable Mutex mu_;
  Condition room_;
  std::map<SampleId, Live> live_ TP_GUARDED_BY(mu_);
  size_t played_ TP_GUARDED_BY(mu_) = 0;  // games that are taken out of live_
  int64_t replayed_ TP_GUARDED_BY(mu_) = 0;
};

}  // namespace tidepool::environments
