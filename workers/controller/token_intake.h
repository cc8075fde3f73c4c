#pragma once
// What workers say of samples becomes records (sample_store.h) and events: the offer of a process that comes,
// tokens that continue what is there, ends of chunks. Everything it needs of the process around it is a
// function, so that the simulated network runs it too. Owned by the controller thread.

#include <functional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "scheduler/events.h"
#include "workers/controller/sample_store.h"
#include "workers/net/attachments.h"

namespace tidepool::workers {

class TokenIntake {
 public:
  struct Ends {
    std::function<bool(const SlotRef&, const SampleId&, int32_t att)> expects;  // Controller::Expects
    std::function<bool(const SampleId&)> have_row;        // in the store; reads it if it is not there yet
    std::function<Status(const sample::Segment&)> check;  // not ok: nothing can have made these tokens
    std::function<void(scheduler::Event)> feed;
    std::function<void(const WorkerRef&, down::Resend)> ask;
  };
  TokenIntake(SampleStore& samples, Ends ends) : samples_(samples), ends_(std::move(ends)) {}

  // The tokens are recorded before the event that speaks of them is fed.
  void Take(const WorkerRef& worker, up::StepTokens& step);
  // The scheduler has decided about what was offered: of what it adopted, the worker is asked for the tokens
  // that are not here.
  void Adopt(const WorkerRef& worker, const std::vector<scheduler::event::OfferedChunk>& offered);

 private:
  [[nodiscard]] Status Sound(const WorkerRef& worker, const StoredSample& record,
                             const up::ChunkDelta& c) const;
  bool Continues(const SlotRef& on, const up::ChunkDelta& delta);
  void AskFor(const SlotRef& on, StoredSample& record);

  SampleStore& samples_;
  const Ends ends_;
};

// What the scheduler is told of a process that has come.
scheduler::event::WorkerJoined JoinedBy(Attachments::Arrived arrived, std::string name);

}  // namespace tidepool::workers
