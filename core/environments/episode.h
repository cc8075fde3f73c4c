#pragma once
// Episodes of a job: which game a sample plays, how long a turn takes, and the games that are under way in a
// worker process. An episode is named by its sample; all that has happened in it follows from the actions, so
// a worker that does not know it replays them.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/environments/text_game.h"

namespace tidepool::environments {

// The training games in the order in which a job goes through them, as rows of a data set. Immutable; any
// thread.
class EpisodeSource {
 public:
  // kInvalidArgument, kNotFound: the environment or its options are wrong ("environment.KEY: ...").
  static StatusOr<EpisodeSource> Create(const JobConfig& config);

  [[nodiscard]] int64_t size() const { return size_; }
  [[nodiscard]] int64_t held_out_size() const { return held_out_; }
  // The game of a sample (all samples of a group play the same one), of an evaluation question, or of a
  // group's row.
  [[nodiscard]] std::unique_ptr<TextGame> Game(const SampleId& tid) const;
  // As the environment is asked for it: "training game 512", "held-out game 7".
  [[nodiscard]] std::string NameOf(const SampleId& tid) const;
  [[nodiscard]] int64_t max_turns() const { return max_turns_; }
  [[nodiscard]] const std::string& label() const { return label_; }  // LabelOf, of the environment
  // Names environment, options, sizes and seed; a run may only be resumed with the same. Hex.
  [[nodiscard]] const std::string& identity() const { return identity_; }

 private:
  [[nodiscard]] int64_t IndexOf(const SampleId& tid) const;
  std::shared_ptr<const TextEnvironment> environment_;
  int64_t size_ = 0, held_out_ = 0, max_turns_ = 0;
  bool shuffle_ = true;
  uint64_t seed_ = 0;
  std::string identity_, label_;
};

// Seconds that turn `turn` of this sample takes: log-normal, drawn from (seed, tid, turn) alone.
double TurnLatency(const EnvironmentLatency& latency, uint64_t seed, const SampleId& tid, int64_t turn);

// Hash chain over the observations of an episode: what a replay has to arrive at again.
uint64_t ExtendHistory(uint64_t history, const std::string& observation);

// Hash of TextGame::State().
uint64_t StateHash(const TextGame& game);

// What came of playing all of `actions`.
struct Played {
  std::string observation;  // after the last action; of no actions: the first one
  double reward = 0;        // of the episode so far
  bool done = false, solved = false;
  int64_t turns = 0;
  uint64_t history = 0;  // of all observations before `observation`
  uint64_t state = 0;    // StateHash; 0 when the episode is over
};

// Games under way, the least recently used beyond `capacity` forgotten. Not thread-safe.
class EpisodeHost {
 public:
  explicit EpisodeHost(EpisodeSource source, size_t capacity = 4096)
      : source_(std::move(source)), capacity_(capacity) {}

  // `actions`: all of the episode so far. What was played before goes on where its actions are the first of
  // these, else the game begins anew. Actions after the end are left out. kDataLoss: the game broke its own
  // rules (an empty observation, a reward that is not finite).
  StatusOr<Played> Play(const SampleId& tid, int32_t att, const std::vector<std::string>& actions);
  [[nodiscard]] int64_t replayed() const { return replayed_; }  // actions that were played once more

 private:
  struct Live {
    int32_t att = 0;
    std::unique_ptr<TextGame> game;
    std::vector<std::string> actions;
    Played state;
    uint64_t used = 0;
  };
  Status Step(Live& live, const std::string& action) const;
  void Trim();

  EpisodeSource source_;
  size_t capacity_;
  std::map<SampleId, Live> live_;
  uint64_t clock_ = 0;
  int64_t replayed_ = 0;
};

}  // namespace tidepool::environments
