#pragma once
// Samples as they are on record: after its ENQ a sample is what the payload file has, and never what may be
// left in memory. Files are read by a thread of their own; what one round of the loop asks for is read
// together. Owned by the controller's loop.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/disk_thread.h"
#include "core/base/journal_records.h"
#include "core/sample/trajectory.h"
#include "core/storage/payload.h"

namespace tidepool::workers {

// Trajectories, or why one cannot be had, in the order in which they were asked for.
using Trajectories = std::vector<StatusOr<sample::Trajectory>>;

class RecordedSamples {
 public:
  struct Ends {
    std::function<void(std::function<void()>)> post;  // calls it on the loop; itself called on any thread
    std::function<const record::Enq*(const SampleId&)> find;                 // null: there is none
    std::function<StatusOr<sample::Trajectory>(const SampleId&)> in_memory;  // of one without payload
  };
  using Then = std::function<void(Trajectories)>;
  RecordedSamples(std::shared_ptr<storage::PayloadReader> reader, Ends ends)
      : reader_(std::move(reader)), ends_(std::move(ends)) {}

  // Reads these payloads, then calls `then` on the loop.
  void Read(std::vector<record::Enq> what, Then then) {
    wanted_.push_back({std::move(what), std::move(then)});
  }
  // The same of samples. `then` is called at once if nothing has to be read.
  void Read(const std::vector<SampleId>& tids, Then then);
  // Ends a round of the loop: reading begins.
  void Begin();
  [[nodiscard]] std::optional<DiskThread::Operation> Busy() const { return disk_.Busy(); }

 private:
  struct Wanted {
    std::vector<record::Enq> what;
    Then then;
  };
  const std::shared_ptr<storage::PayloadReader> reader_;
  const Ends ends_;
  std::vector<Wanted> wanted_;  // of this round
  DiskThread disk_;
};

}  // namespace tidepool::workers
