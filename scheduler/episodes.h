#pragma once
// Which environment worker plays which turn of which episode.
//
// A turn goes to the worker that played the one before, if it lives, else to the worker with the fewest
// turns. Any worker can play any turn: it is sent all actions of the episode and replays those that it does
// not know. A worker that is lost gives its turns back. A turn is tried again on another worker, at most
// max_retries times, when it fails for reasons of infrastructure or is kept beyond its deadline; who keeps
// one so long is stuck and is to be replaced. An episode that is older than its own deadline is given up.
//
// A worker plays its turns in the order in which it was given them, those that are not wanted any more as
// well. So the time of a turn begins when the one before it is answered, and those behind it only wait. An
// answer can be overtaken (a worker says it when the modelled time of the turn is over) or be lost: the time
// of a turn begins anew when the first answer overtakes it, and no later answer moves it.
//
// A turn that is known to be a replay (of what another worker played, after a failure, of a whole episode)
// has the time of all its turns where that takes time. A worker that holds an episode that is not played
// there any more is told so.
//
// Pure; not thread-safe.

#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "core/base/time.h"
#include "scheduler/commands.h"
#include "scheduler/events.h"

namespace tidepool::scheduler {

struct EpisodeOptions {
  int64_t max_retries = 2;
  Duration reset_timeout{FromSeconds(600)}, step_timeout{FromSeconds(60)}, episode_timeout{FromSeconds(3000)};
  // Workers hold something of a sample from its row on, before its first turn is theirs.
  bool holds_rows = false;
  bool slow_replays = false;  // a replay takes as long as its turns did; else it is computed at once
};

class Episodes {
 public:
  explicit Episodes(const EpisodeOptions& options) : options_(options) {}

  // The turn is to be played; one at a time for each sample.
  void Add(const SampleId& tid, int32_t att, int64_t turn, TimePoint now);
  void Remove(const SampleId& tid);  // the episode is not wanted any more; a late result is refused
  // As Remove, of a sample that the run has done with: where workers hold something of samples that they were
  // given no turn of, all are told.
  void Drop(const SampleId& tid, int32_t att);
  void AddWorker(const WorkerRef& ref);
  void RemoveWorker(WorkerId worker);  // its turns return to the head of the queue
  // The worker died by itself; RemoveWorker is to follow. Its turns are suspects from now on, and a worker is
  // given one suspect at a time. Returns the samples of those that had been suspects before.
  std::vector<SampleId> Blame(WorkerId worker);
  [[nodiscard]] std::vector<command::EnvStep> Assign(TimePoint now);
  // Of attempts that workers still hold and that nobody plays there any more, since the last call.
  [[nodiscard]] std::vector<command::EndEpisode> TakeEnded() { return std::exchange(ended_, {}); }

  enum class Result : uint8_t { kRefused, kFinal, kRetry };
  // kFinal: the outcome stands (ok, data, or infra after all retries).
  Result Done(const event::EnvStepped& e, TimePoint now);
  // Whether this worker was given this turn, and it is still wanted.
  [[nodiscard]] bool Expects(const WorkerRef& worker, const SampleId& tid, int32_t att, int64_t turn) const {
    const auto it = episodes_.find(tid);
    return it != episodes_.end() && it->second.wanted && it->second.att == att && it->second.turn == turn &&
           worker.inc.valid() && it->second.on == worker;
  }

  // Workers that have not answered a turn within its deadline; that turn is charged with it if it is still
  // wanted, and RemoveWorker is to follow.
  struct Stuck {
    WorkerRef worker;
    SampleId tid;
    int64_t turn = 0;
    Duration silent{0};
  };
  [[nodiscard]] std::vector<Stuck> TakeStuck(TimePoint now);
  // Samples whose turn has failed too often by then, or whose episode is over its deadline.
  [[nodiscard]] std::vector<SampleId> GivenUp(TimePoint now) const;
  [[nodiscard]] int64_t waiting() const { return static_cast<int64_t>(busy_); }
  [[nodiscard]] int64_t turns() const { return turns_; }  // asked of workers so far
  [[nodiscard]] int64_t retries() const { return retries_; }
  // The latest deadline of a turn that a worker has; `now` if none has.
  [[nodiscard]] TimePoint Horizon(TimePoint now) const;

 private:
  struct Episode {
    int32_t att = 0;
    int64_t turn = 0, attempt = 0;
    int64_t crashes = 0;  // workers that died with its turn
    bool wanted = false;  // a turn is in the queue or with a worker
    bool over = false;    // its environment said so, and nobody holds it
    WorkerRef on;         // has the turn; inc invalid: it is in the queue
    WorkerRef home;       // played last; inc invalid: nobody
    WorkerId avoid;
    TimePoint begun;
  };
  // A turn that a worker was given and has not answered.
  struct Held {
    SampleId tid;
    int32_t att = 0;
    int64_t turn = 0;
    Duration limit{0};
    TimePoint since;         // its time runs from here
    bool overtaken = false;  // a turn that was given later is answered
    [[nodiscard]] TimePoint Deadline() const;
  };
  struct Worker {
    WorkerRef ref;
    int64_t in_flight = 0, suspects = 0;  // turns that are wanted; of those, suspects
    std::deque<Held> held;                // in the order in which they were given
  };
  // The turn whose deadline is the first of all that run; null while the worker has none that is wanted.
  [[nodiscard]] static const Held* Due(const Worker& w);
  static void Answered(Worker& w, const event::EnvStepped& r, TimePoint now);
  void Release(Episode& e);  // from its worker
  void EndAtHome(const SampleId& tid, const Episode& e);
  [[nodiscard]] Duration LimitOf(const Episode& e, bool elsewhere) const;

  EpisodeOptions options_;
  std::map<SampleId, Episode> episodes_;
  std::deque<SampleId> queue_;
  std::vector<command::EndEpisode> ended_;
  std::map<WorkerId, Worker> workers_;
  int64_t busy_ = 0, turns_ = 0, retries_ = 0;
};

}  // namespace tidepool::scheduler
