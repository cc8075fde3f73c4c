#pragma once
// One generation engine for the sessions of a process that serves several runs: their requests are rows of
// the same batches, each with its run's adapter (core/engine/engine.h). A step that one session makes is made
// for all; what it did for another one waits here until that one asks for its step, which then costs nothing.
//
// Used by whoever has the pool's turn (device_pool.h), and by one thread where it is the engine of one
// worker. An adapter's bytes change only while none of its requests is here, as a slot that trains was
// drained.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/engine/engine.h"
#include "core/model/weights.h"

namespace tidepool::workers {

class SharedEngine {
 public:
  // `base` below all adapters; null: the engine is of one worker alone, and has its weights.
  SharedEngine(std::shared_ptr<const model::Weights> base, std::unique_ptr<engine::Engine> engine)
      : base_(std::move(base)), engine_(std::move(engine)) {}
  // Why it serves nobody any more: a step of it failed; empty: it serves.
  [[nodiscard]] const std::string& failed() const { return failed_; }

 private:
  friend class EngineSeat;
  struct Seated {
    std::set<std::tuple<int32_t, SampleId, int32_t>> running;  // chunks that have not ended: adapter, attempt
    std::vector<engine::Delta> made;                           // by steps of others
    engine::RowCounts counts;                                  // of its rows in all steps since it asked last
    bool holds_memory = true;
  };
  const std::shared_ptr<const model::Weights> base_;
  std::unique_ptr<engine::Engine> engine_;            // null once it has failed
  std::map<int32_t, std::shared_ptr<Seated>> seats_;  // by the numbers of their adapters
  engine::EngineStats stats_;                         // of the last step
  std::string failed_;
};

// A worker's place at an engine.
class EngineSeat {
 public:
  // Alone, with the engine's own weights.
  explicit EngineSeat(std::unique_ptr<engine::Engine> engine);
  // With others, without memory until it acquires it. `adapter` outlives it.
  EngineSeat(std::shared_ptr<SharedEngine> engine, const model::Weights& adapter, Version version,
             uint64_t seed);
  ~EngineSeat();  // its requests end
  // Adds an adapter to this seat, on the engine's model. Requests name the first one 0, the next 1; attempts
  // are counted for each.
  void AddAdapter(std::unique_ptr<model::Weights> adapter, const Version& version, uint64_t seed);
  EngineSeat(const EngineSeat&) = delete;
  EngineSeat& operator=(const EngineSeat&) = delete;

  // As engine::Engine's, for the requests of this seat, of which those of kOwnWeights have what it was made
  // with.
  Status Add(engine::ChunkRequest request);
  void SetTokenBytes(engine::TokenBytes bytes);
  bool Cancel(const SampleId& tid, int32_t attempt);
  void ForgetGroup(GroupId gid);
  std::vector<engine::Delta> Drain();
  [[nodiscard]] bool HasWork() const;
  // Throws std::runtime_error where a step of another seat has failed, and what engine::Engine::Step does.
  // The engine is gone then: nothing of this has an effect any more, and what may fail does. Rows are counted
  // of this seat alone, since its last step; the time, the cache and how many run are those of the engine's
  // last step.
  engine::StepOutput Step();
  void SetVersion(Version version, KvOnUpdate kv);  // of all that it has
  Status AcquireMemory();
  void ReleaseMemory();  // it goes when the last seat has released it
  [[nodiscard]] model::MemoryUse held() const;

 private:
  EngineSeat(std::shared_ptr<SharedEngine> engine, int32_t adapter);
  [[nodiscard]] Status Failed() const;

  std::vector<std::unique_ptr<model::Weights>> further_;
  const std::shared_ptr<SharedEngine> shared_;  // reads them
  const std::shared_ptr<SharedEngine::Seated> mine_;
  std::vector<int32_t> adapters_;  // numbers at the engine: its own, then those of `further_`
};

}  // namespace tidepool::workers
