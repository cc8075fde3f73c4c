// The whole stack under one power cut: the real controller writes the real journal and real checkpoints, on a
// disk that stops at every single operation in turn (write, sync, rename, create, remove, sync of a folder),
// or fails it. What the recovery finds has to be a state that was committed, and the run goes on from it to
// its end.

#include <gtest/gtest.h>

#include "core/base/check.h"
#include "core/storage/checkpoint.h"
#include "core/storage/journal.h"
#include "tests/core/base/memory_file_system.h"
#include "tests/scheduler/sim_cluster.h"

namespace tidepool::scheduler {
namespace {

constexpr const char* kJournal = "run/journal";
constexpr const char* kCheckpoints = "run/checkpoints";

class RealCodeDisk : public SimDisk {
 public:
  explicit RealCodeDisk(const MemoryFaults& faults) : fs_(faults) {}

  [[nodiscard]] bool down() const override { return fs_.crashed(); }
  [[nodiscard]] int64_t operations() const { return fs_.operations(); }
  [[nodiscard]] int64_t lost_records() const { return lost_; }

  std::vector<JournalEntry> Reopen() override {
    const int64_t durable = writer_ == nullptr ? 0 : writer_->durable_lsn().value;
    writer_.reset();
    if (fs_.crashed()) {
      fs_.Crash();
      fs_.SetFaults({});
    } else {
      fs_.Kill();
    }
    std::vector<JournalEntry> entries;
    for (int tries = 0; writer_ == nullptr; ++tries) {
      TP_CHECK(tries < 3) << "the journal cannot be opened";
      storage::JournalSummary summary;
      std::vector<JournalEntry> earlier;
      // Small segments, so that they roll over a few times in a short run.
      auto writer =
          storage::JournalWriter::Open(fs_, kJournal, "run", {.segment_bytes = 3000, .reserve_bytes = 500},
                                       &summary, [&](JournalEntry&& entry) {
                                         earlier.push_back(std::move(entry));
                                         return OkStatus();
                                       });
      if (!writer.ok()) {  // whoever starts it tries again, after a power cut with the power back
        if (fs_.crashed())
          fs_.Crash();
        else
          fs_.Kill();
        fs_.SetFaults({});
        continue;
      }
      writer_ = std::move(writer).value();
      entries = std::move(earlier);
    }
    if (!storage::RemoveLeftovers(fs_, kCheckpoints).ok() && fs_.crashed()) return Reopen();
    const auto found = static_cast<int64_t>(entries.size());
    EXPECT_GE(found, durable) << "records that were durable are gone";
    EXPECT_LE(found, appended_);
    lost_ += appended_ - found;
    appended_ = found;
    return entries;
  }

  Status Append(std::span<const JournalEntry> batch, bool durable) override {
    for (const JournalEntry& e : batch) writer_->Append(e.record, e.mono_ns);
    appended_ += static_cast<int64_t>(batch.size());
    return durable ? writer_->Sync() : writer_->Flush();
  }

  StatusOr<uint64_t> WriteCheckpoint(int64_t ckpt, StepNumber step, uint64_t weights) override {
    TP_RETURN_IF_ERROR(fs_.MakeDirectories(kCheckpoints));
    TP_ASSIGN_OR_RETURN(const auto writer, storage::CheckpointWriter::Begin(
                                               fs_, kCheckpoints, {.step = step, .ctl_epoch = ++tries_}));
    TP_RETURN_IF_ERROR(fs_.MakeDirectory(JoinPath(writer->dir(), "model")));
    for (const auto& [name, bytes] :
         {std::pair("model/weights", std::to_string(weights) + std::string(300, ' ')),
          std::pair("state.json", std::string("{}"))}) {
      TP_ASSIGN_OR_RETURN(const auto file, fs_.CreateNew(JoinPath(writer->dir(), name)));
      TP_RETURN_IF_ERROR(file->Append(bytes));
    }
    storage::Manifest manifest;
    manifest.run_id = "run";
    manifest.ckpt = ckpt;
    manifest.step = step;
    manifest.weights_digest = weights;
    return writer->Commit(manifest, {"model/weights", "state.json"});
  }
  std::string Verify(StepNumber step, uint64_t manifest_digest) override {
    const auto manifest = storage::VerifyCheckpoint(fs_, Folder(step), manifest_digest);
    return manifest.ok() ? "" : manifest.status().ToString();
  }
  uint64_t Weights(StepNumber step) override {
    const auto bytes = fs_.ReadFile(JoinPath(Folder(step), "model/weights"));
    return bytes.ok() ? std::stoull(*bytes) : 0;
  }
  Status Remove(StepNumber step) override { return storage::RemoveCheckpoint(fs_, kCheckpoints, step); }

 private:
  static std::string Folder(StepNumber step) { return JoinPath(kCheckpoints, storage::CheckpointName(step)); }

  MemoryFileSystem fs_;
  std::unique_ptr<storage::JournalWriter> writer_;
  int64_t appended_ = 0, lost_ = 0, tries_ = 0;
};

SimOptions Short(SimDisk& disk) {
  SimOptions o{.controller = SmallJob(PlacementKind::kColocated), .seed = 5, .faults = {}};
  ControllerOptions& c = o.controller;
  c.steps = 3;
  c.batch.groups_per_step = 1;
  c.batch.group_size = 2;
  c.checkpoint.every_steps = 1;
  c.checkpoint.keep = 2;
  c.eval.before_train = c.eval.after_train = false;
  o.disk = &disk;
  return o;
}

// Runs to the end, resumed if it ended because it could not write, and proves what is on the disk.
SimResult ExpectRecovered(RealCodeDisk& disk, uint64_t weights) {
  SimCluster cluster(Short(disk));
  SimResult r = cluster.Run();
  if (r.ended && r.code != 0) {
    EXPECT_TRUE(r.why.starts_with("fault=")) << r.why;
    r = cluster.Run();
  }
  EXPECT_TRUE(r.ended) << "no end after " << r.seconds << " s";
  EXPECT_EQ(r.code, 0) << r.why;
  const CheckResult check = Check(disk.Reopen());
  EXPECT_TRUE(check.ok) << check.predicate << " at record " << check.lsn.value << ": " << check.why;
  EXPECT_GE(check.steps, 3);
  if (weights != 0) {
    EXPECT_EQ(r.weights, weights) << "the weights know that the disk failed";
  }
  return r;
}

TEST(DiskTest, APowerCutAtAnyOperationLosesNoCommittedState) {
  RealCodeDisk whole({});
  const uint64_t weights = ExpectRecovered(whole, 0).weights;
  const int64_t operations = whole.operations();
  ASSERT_GT(operations, 200);
  int64_t lost = 0;
  for (int64_t at = 0; at < operations && !testing::Test::HasFailure(); ++at) {
    SCOPED_TRACE(testing::Message() << "power cut at operation " << at);
    RealCodeDisk disk({.seed = static_cast<uint64_t>(at) + 1, .crash_at_operation = at});
    ExpectRecovered(disk, weights);
    lost += disk.lost_records();
  }
  EXPECT_GT(lost, 0) << "some cut has to lose records that were not durable yet";
}

TEST(DiskTest, AnyOperationMayFailForLackOfSpaceOrOfTheDevice) {
  RealCodeDisk whole({});
  const uint64_t weights = ExpectRecovered(whole, 0).weights;
  const int64_t operations = whole.operations();
  for (const int error : {28 /*ENOSPC*/, 5 /*EIO*/}) {
    for (int64_t at = 0; at < operations && !testing::Test::HasFailure(); ++at) {
      SCOPED_TRACE(testing::Message() << "errno " << error << " at operation " << at);
      RealCodeDisk disk({.seed = 1, .fail_operation = at, .fail_errno = error});
      ExpectRecovered(disk, weights);
    }
  }
}

}  // namespace
}  // namespace tidepool::scheduler
