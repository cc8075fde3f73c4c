#pragma once
// Checkpoints and final/ of a run, as far as the controller makes them. The trainer writes the tensors into a
// folder of another name; here that folder is made, synced, renamed, read back and removed, on a thread of
// its own, because a disk may take any time. What is removed from a store has another thread: a store that
// does not answer keeps no checkpoint from being written. Payload files that no checkpoint needs any more go
// with the checkpoint that needed them. Owned by the controller's loop.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/base/disk_thread.h"
#include "core/base/file_system.h"
#include "core/storage/checkpoint.h"
#include "core/storage/payload.h"
#include "scheduler/best_checkpoint.h"
#include "scheduler/commands.h"
#include "scheduler/events.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

class Checkpoints {
 public:
  // Of the run that the checkpoints are of.
  struct Owner {
    std::string run_dir, run_id, config_digest, data_identity;
    int64_t ctl_epoch = 0;
    // The folder whose weights are those of step 0; empty: there is none, or the job adds to them.
    std::string base_model = {};
    std::string best_by = {};        // checkpoint.keep_best
    storage::StorePlace store = {};  // checkpoint.store
  };
  struct Ends {
    std::function<void(std::function<void()>)> post;  // calls it on the loop; itself called on any thread
    std::function<void(scheduler::Event)> feed;
    std::function<void(const WorkerRef&, ToWorkerBody)> send;
    std::function<void(const std::string&)> warn;
    std::function<void(double)> took;  // seconds, of a checkpoint that was tried
    std::function<std::pair<storage::FirstFiles, int64_t>()> needed_of_payload;  // as DeletePayloadFilesBelow
  };
  Checkpoints(std::shared_ptr<FileSystem> fs, Owner owner, Ends ends);
  // Makes the folder, and removes what tries that did not end have left there and of final/ and best/; what
  // they left in a store goes later, and it warns of what stays. Errors of TryStore: a run does not begin
  // with a store that takes nothing.
  Status Open();

  void Write(const scheduler::command::WriteCheckpoint& c);
  // A trainer's files are there. Once those of all are, the rest (sync, manifest, rename, read back) needs no
  // tensor. `cut`: the journal up to there is in it.
  void Commit(const up::CheckpointFiles& came, Lsn cut);
  void Verify(const scheduler::command::VerifyCheckpoint& c);
  void Delete(const scheduler::command::DeleteCheckpoint& c);
  // best/ gets the model of a checkpoint, and best/evaluation.json what it is the best of.
  void KeepBest(const scheduler::command::KeepBest& c);
  // Whose model best/ has, if it is the best by Owner::best_by: of another metric it says nothing.
  [[nodiscard]] std::optional<scheduler::BestCheckpoint> Best() const;
  // final/ is there whole or not at all. A trainer that was given up and still writes does not reach the
  // folder of its successor.
  void SaveFinal(const scheduler::command::SaveFinal& c);
  void PublishFinal(const WorkerRef& trainer, const up::FinalSaved& saved);

  [[nodiscard]] std::string FolderOf(StepNumber step) const;
  // Of both threads the operation that takes longer.
  [[nodiscard]] std::optional<DiskThread::Operation> Busy() const;
  // False: not within `patience`.
  bool Drain(std::chrono::steady_clock::duration patience);

 private:
  Status RemoveLeftovers();
  // `dir`, which was set aside. Where the last one has not gone for PatienceOfStore, or too many wait, it
  // stays.
  void RemoveFromStore(const std::string& dir);
  [[nodiscard]] std::chrono::duration<double> PatienceOfStore() const;
  // Does `work` on the thread, then `then` with its result on the loop. `work` owns all that it uses, because
  // a disk that hangs may outlast this object.
  template <typename Work, typename Then>
  void On(DiskThread& thread, std::string operation, Work work, Then then);
  template <typename Work, typename Then>
  void OnDisk(std::string operation, Work work, Then then) {
    On(disk_, std::move(operation), std::move(work), std::move(then));
  }
  void PrunePayload();
  [[nodiscard]] std::string FinalTmp(const WorkerRef& trainer) const;

  const std::shared_ptr<FileSystem> fs_;
  const Owner owner_;
  const Ends ends_;
  const std::string dir_;
  storage::StorePlace store_;   // of this run
  DiskThread disk_, removals_;  // removals_: from stores
  int64_t removing_ = 0;        // that wait there, or are under way
  std::shared_ptr<storage::CheckpointWriter> writer_;
  struct Pending {  // trainers write their files
    scheduler::command::WriteCheckpoint c;
    size_t awaited = 1;         // of them
    up::CheckpointFiles files;  // of those that have
  };
  std::optional<Pending> pending_;
  bool is_base_ = false;  // beside a model/ that is there already
};

}  // namespace tidepool::workers
