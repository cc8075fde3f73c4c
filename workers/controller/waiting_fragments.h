#pragma once
// Chunks of control tasks between the decision and the device. A fragment begins where the one before it
// ended, so it waits for that to be read; and it goes to the device with an environment worker that hosts its
// instances. While there is none (its place is being filled again) fragments wait here, and go back to the
// dispatcher after a while, so that nobody is taken for hung. Owned by the controller's loop.

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/base/time.h"
#include "scheduler/events.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

class WaitingFragments {
 public:
  struct Ends {
    std::function<std::vector<const up::Hello*>()> hosts;  // of environments, by place
    std::function<void(const WorkerRef&, down::StartChunk)> send;
    std::function<void(scheduler::Event)> feed;
  };
  explicit WaitingFragments(Ends ends) : ends_(std::move(ends)) {}

  void Add(const WorkerRef& worker, down::StartChunk message) {
    waiting_.push_back({worker, std::move(message), std::nullopt});
  }
  // Where it begins is known, or why not. Nothing happens if it was cancelled meanwhile.
  void Starts(const SampleId& tid, int32_t att, const StatusOr<std::string>& starts, TimePoint now);
  void Cancel(const SampleId& tid, int32_t att);
  // Those whose start is known go where a host is; those that waited too long for one go back.
  void Tick(TimePoint now);

 private:
  struct Waiting {
    WorkerRef worker;
    down::StartChunk message;
    std::optional<TimePoint> ready;  // since when it has its start states
  };
  void Send();
  void GiveBack(const Waiting& w, scheduler::event::ChunkEnd end, std::string why);

  const Ends ends_;
  std::deque<Waiting> waiting_;
};

}  // namespace tidepool::workers
