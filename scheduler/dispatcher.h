#pragma once
// Turns unfinished samples into bounded chunks on rollout engines, each on a slot of a worker.
//
// Order of requests (after Seer's algorithm 2):
//   1. evaluation requests;
//   2. requests whose group would expire at the next version;
//   3. one probe per group, fewest tokens first: a short probe soon tells how long its group's samples are;
//   4. requests that have just ended a chunk: they go on where their KV is, or wait;
//   5. the rest, longest expected first.
// Expected length: while siblings of a group have similar lengths, that of the longest finished sibling
// (none: the longest allowed); else the mean residual life of this run's samples (LengthModel). Every 16th
// decision goes to the group that has been served the smallest share of what it is expected to need, so none
// starves.
//
// Placement: the worker that holds the sample's KV, else the one that holds its group's; but not if that
// worker has 32 chunks more than the one with the fewest, or more than its share and a thirty-second of it.
// Then the worker with the fewest. KV is never copied between workers: elsewhere it is computed again
// (docs/design.md). A group that has no tokens yet begins on the newest weights, even if it has to wait for a
// load. Begun on older weights it would be one version nearer to its expiry.
//
// A worker that is lost gives its chunks back with the tokens that were reported. Not thread-safe.

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "core/base/time.h"
#include "scheduler/flat_table.h"
#include "scheduler/fleet/fleet.h"
#include "scheduler/length_model.h"
#include "scheduler/ordered_ids.h"
#include "scheduler/small_set.h"

namespace tidepool::scheduler {

struct DispatchOptions {
  int64_t chunk_tokens = 256;    // > 0
  int64_t max_concurrent = 256;  // chunks in flight on all workers
  int64_t kv_cache_tokens = 0;   // of one engine; 0: the engine is sized for max_concurrent
  enum class Order : uint8_t { kContext, kArrival } order = Order::kContext;  // kArrival: groups as they came
  // For simulation: the true length of a sample (the oracle order), instead of what siblings tell.
  std::function<int64_t(const SampleId&)> oracle;
  bool reserve =
      true;          // a chunk starts only where its KV fits; false: the cap alone bounds what is in flight
  bool pin = false;  // a sample ends on the version that it began with
  int64_t group_size = 1;  // samples of a group, as their requests lie in memory
};
// rollout.chunk_tokens, or max_new/20 rounded up to a block, within 256 .. 2048.
int64_t ChunkTokens(int64_t configured, int64_t max_new_tokens, int64_t block_tokens);

using ReadyKey = std::tuple<int, int64_t, int64_t, SampleId>;  // class, order, start, tid

struct Request {
  SampleId tid;
  GroupId gid;
  int32_t att = 0;
  int64_t prompt_len = 0, max_new = 0, generated = 0;
  Version only;          // evaluation: may be served by this version only
  Version v_min, v_max;  // of its tokens
  SlotRef on;            // in flight there; its worker's inc invalid: in the buffer
  SlotId home;           // ran there last
  bool probe = false;
  int64_t errors = 0;
  bool taken_back = false;   // from a worker that may still hold a chunk of it
  bool warm = false;         // its chunk has just ended: what it has in its engine's cache is still there
  bool waiting_env = false;  // its environment works; not in the buffer
  int64_t turn = 0;          // turns that are over
  int64_t turn_end = 0;      // `generated` where its turn is cut; 0: at max_new
  // Of a chunk that was adopted from a worker which outlived its controller: how many tokens the worker says
  // it has, and the newest weights of them. A forecast alone; `generated` counts what this controller was
  // sent.
  int64_t offered = 0;
  Version offered_by;
  // Workers that died with a chunk of it, until it has come further than it had then.
  int64_t crashes = 0, crashed_at = 0;
  int length_bin = -1;  // where the length model counts it
  bool ready = false;   // in the buffer, at `key` of its order
  ReadyKey key;
  // Tokens that it has, or will have as soon as they are sent again.
  [[nodiscard]] int64_t foreseen() const { return std::max(generated, offered); }
  // The length at which this turn, or the sample, is cut.
  [[nodiscard]] int64_t limit() const { return turn_end > 0 && turn_end < max_new ? turn_end : max_new; }
};

class Dispatcher {
 public:
  struct Chunk {  // to be sent
    SampleId tid;
    SlotRef on;
    SlotEpoch epoch;
    Version v;
    int64_t tokens = 0;
  };
  // in_sight: the newest weights that an engine will have soon (WeightRoll::InSight); null: any of them the
  // newest there are.
  Dispatcher(const DispatchOptions& options, Fleet& fleet, std::function<Version(SlotId)> in_sight = nullptr)
      : options_(options), fleet_(fleet), in_sight_(std::move(in_sight)), requests_(options.group_size) {}

  // Requests.
  void Add(const Request& r);
  // Withdraws a request; if a chunk of it is in flight, returns who has to be told to cancel it. That
  // chunk keeps its room until it is reported finished.
  std::optional<SlotRef> Remove(const SampleId& tid);
  [[nodiscard]] const Request* Find(const SampleId& tid) const;
  [[nodiscard]] std::vector<SampleId> Requests() const { return requests_.SortedKeys(); }
  // Tokens came. False (refused) if that chunk is not in flight on `from`.
  bool Progress(const SlotRef& from, const SampleId& tid, int32_t att, int64_t tokens, const Version& v);
  // A chunk ended. kGone: it had been withdrawn; its room is free now.
  enum class Ended : uint8_t { kRefused, kGone, kLive };
  Ended ChunkEnded(const SlotRef& from, const SampleId& tid, int32_t att);
  void Requeue(const SampleId& tid);  // back to the buffer after ChunkEnded
  // Multi-turn: a turn is over and its environment works (after ChunkEnded; or Add with waiting_env). The KV
  // stays where it is as long as nobody needs the room.
  void WaitEnv(const SampleId& tid);
  // Back to the buffer with `observation` more tokens (of turn 0: its prompt); its turn is cut after
  // turn_tokens, 0: never.
  void Resume(const SampleId& tid, int64_t observation, int64_t turn_tokens);
  [[nodiscard]] int64_t waiting_env() const { return waiting_env_; }
  void CountError(const SampleId& tid) { ++requests_.at(tid).errors; }
  void LearnLength(const SampleId& tid);  // the sample ended by itself; Remove is to follow
  // From now on these groups' requests come first (they would expire at the next version), and those of
  // `too_late` stay in the buffer (they will: what is trained for that version has been chosen).
  void SetUrgent(const std::set<GroupId>& urgent, const std::set<GroupId>& too_late = {});
  // Tokens that its requests are still expected to need, the most of one; 0: it has none.
  [[nodiscard]] int64_t ExpectedLeft(GroupId gid) const;
  [[nodiscard]] const LengthModel& lengths() const { return lengths_; }
  // Of one request, its order among others apart.
  [[nodiscard]] int64_t ExpectedLeft(const Request& r) const {
    return std::max<int64_t>(1, Expected(r) - r.foreseen());
  }
  // The same for forecasts of time: the larger of what the longest finished sibling and the mean residual
  // life say. Where nothing is known, ExpectedLeft takes the longest allowed; that is right for an order of
  // requests and far too much for a time.
  [[nodiscard]] int64_t LikelyLeft(const Request& r) const;
  // Training chunks in flight with the fewest tokens, at most `n`.
  [[nodiscard]] std::vector<std::tuple<SlotRef, SampleId, int32_t>> Youngest(int64_t n) const;
  // Its requests go back to the buffer while their chunks are still in flight there; what comes of those is
  // refused.
  std::vector<std::pair<SampleId, int32_t>> TakeBack(SlotId slot);
  void SetSlowness(SlotId slot, int64_t slowness);
  void Prefer(const SampleId& tid, SlotId slot) { requests_.at(tid).home = slot; }
  // Pinned samples of a version that wait for a worker.
  [[nodiscard]] int64_t PinnedReady(const Version& v) const;
  // Groups of pinned samples whose version no worker has.
  [[nodiscard]] std::set<GroupId> Orphans() const;
  // Pinned samples need this engine: its own, or waiting ones that no other engine could take.
  [[nodiscard]] bool NeededFor(SlotId slot) const;
  // Chunks in flight are kept below it (KV-pressure admission); the configured limit holds as well.
  void SetCap(int64_t cap) { cap_ = cap; }
  [[nodiscard]] bool HasRequests(GroupId gid) const;
  // No request of the group is left: engines that may hold its KV.
  std::vector<SlotRef> ForgetGroup(GroupId gid);

  // Engines, by slot.
  void AddEngine(SlotId slot, SlotEpoch epoch);  // requires none there
  void Admit(SlotId slot, const Version& v);     // from now on it serves v
  // A chunk of `tid` is already in flight there (a worker re-attached), with as many tokens as it offers.
  void Adopt(const SampleId& tid, SlotId slot, int64_t offered, const Version& offered_by);
  void SetBar(SlotId slot, Engine::Bar bar, bool on);
  void SetEpoch(SlotId slot, SlotEpoch epoch);  // its slot goes on under a new epoch
  // The worker died by itself, and the engines that it was a part of with it; their RemoveEngine is to
  // follow. Samples of their chunks are suspects from now on: a worker is given one of them at a time, so
  // that a second death has one that can be blamed. Returns those that had been suspects before.
  std::vector<SampleId> Blame(WorkerId worker);
  // Gone (lost or drained): its chunks return to the buffer. Returns how many there were.
  int64_t RemoveEngine(SlotId slot);
  [[nodiscard]] const Engine* FindEngine(SlotId slot) const;

  // Chunks to send now, in order; they count as in flight from here on. `may_serve(version)`: training
  // requests may still be generated by that version. `newest`: weights that fresh groups wait for; invalid:
  // they begin on any. `coming`: workers that will take chunks within a grant or a load; while there are any,
  // nobody is given more than its share of all requests, or the first one back after a step would get
  // everything.
  std::vector<Chunk> Assign(const std::function<bool(const Version&)>& may_serve, const Version& newest = {},
                            int64_t coming = 0);

  [[nodiscard]] int64_t in_flight() const { return in_flight_; }
  [[nodiscard]] int64_t chunks() const { return chunks_; }
  // Some chunk of a withdrawn request is still unreported by this engine.
  [[nodiscard]] bool HasGhosts(SlotId slot) const;

 private:
  struct GroupInfo {
    int64_t longest = 0;  // finished sibling; 0: none yet
    bool probed = false;
    SlotId home;
    SmallSet<SampleId> members;
    std::vector<int64_t> lengths;  // of its finished samples
    int64_t size = 0;              // requests it ever had
    int64_t served = 0;            // tokens generated for it
    SmallSet<SampleId> ready;      // of its members
    double ratio = 0;              // its key in least_served_
    bool urgent = false;
    SmallSet<SlotId> on;  // engines that were given chunks of it
    Version oldest;       // weights that any of its chunks was given to; invalid: none began
  };
  struct Round {  // one call of Assign: what it was asked for, and how far it is
    const std::function<bool(const Version&)>& may_serve;
    Version newest;
    int64_t coming = 0, older = 0;                   // older: engines that still have older weights
    std::array<std::set<ReadyKey>::iterator, 2> at;  // the next of each line
    std::array<bool, 2> blocked{};                   // lines in which nobody behind has a chance
    bool suspects_wait = false;                      // every engine has one
    int64_t share = 0;                               // of all requests, an engine's
    std::optional<std::pair<Version, bool>> known;   // nearly all engines have the same version
    bool MayServe(const Version& v) {
      if (!known || known->first != v) known.emplace(v, may_serve(v));
      return known->second;
    }
  };
  std::vector<Chunk> Fill(const std::function<bool(const Version&)>& may_serve, const Version& newest,
                          int64_t coming);
  [[nodiscard]] ReadyKey KeyFor(const Request& r) const;
  void PutReady(Request& r);
  void TakeReady(Request& r);
  Engine* EngineOn(SlotId slot);  // nullptr: it has none
  // Where an engine is: its slot and the live process of its worker.
  [[nodiscard]] SlotRef On(SlotId slot) const { return fleet_.Ref(slot); }
  [[nodiscard]] std::optional<ReadyKey> NextReady(Round& round) const;
  void Pass(const ReadyKey& key, Round& round) const;  // it is not looked at again
  [[nodiscard]] Version OldestFor(const Request& r, const Round& round) const;
  [[nodiscard]] bool MayTake(SlotId slot, const Request& r, int64_t tokens, Round& round) const;
  [[nodiscard]] bool WaitsForItsHome(const Request& r, int64_t tokens, const Round& round) const;
  // Slot invalid: none for now.
  SlotId ChooseEngine(const Request& r, int64_t tokens, Round& round);
  void NoEngineFor(const Request& r, const ReadyKey& key, Round& round);
  Chunk Start(Request& r, SlotId slot, int64_t tokens);
  [[nodiscard]] int64_t Expected(const Request& r) const;  // its whole length
  void Rekey(const SampleId& tid);
  void SetVersion(Engine& e, const Version& v);
  void LoadChanged(SlotId slot, Engine& e);
  void SettleLoads();  // before by_load_ is read: an end and a start on one engine move it once
  // There, or on another engine that one death could end together with it.
  [[nodiscard]] bool HasSuspect(SlotId near) const;
  // Tokens that may be reserved on an engine beside the chunk's own.
  [[nodiscard]] int64_t Room(const Request& r, int64_t tokens) const;
  [[nodiscard]] bool Fits(const Engine& e, const Request& r, int64_t tokens) const;

  DispatchOptions options_;
  Fleet& fleet_;
  const std::function<Version(SlotId)> in_sight_;
  FlatTable<SampleId, Request> requests_;
  static size_t Line(const Request& r) { return r.generated == 0 && !r.only.valid() ? 1 : 0; }
  std::array<std::set<ReadyKey>, 2>
      ready_;                   // [1]: those that have nothing yet, which may have to wait for a load
  std::vector<SampleId> warm_;  // requeued since the last Assign
  FlatTable<GroupId, GroupInfo> groups_;
  std::set<std::pair<double, GroupId>> least_served_;  // groups with ready requests
  OrderedIds<std::pair<int64_t, int64_t>> by_load_;    // open engines: chunks times slowness, reserved tokens
  std::vector<SlotId> changed_;                        // engines whose load did
  LengthModel lengths_;
  std::set<GroupId> urgent_, too_late_;
  std::map<Version, int64_t> serving_;  // admitted engines by version
  int64_t in_flight_ = 0, chunks_ = 0, waiting_env_ = 0, cap_ = INT64_MAX, decisions_ = 0;
};

}  // namespace tidepool::scheduler
