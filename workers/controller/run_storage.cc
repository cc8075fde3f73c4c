#include "workers/controller/run_storage.h"

#include <chrono>
#include <utility>

#include "core/base/host_name.h"
#include "core/base/thread_annotations.h"
#include "core/storage/lazy_sync.h"
#include "core/storage/run_directory.h"

namespace tidepool::workers {
namespace {

using Clock = std::chrono::steady_clock;

// Tokens reach the disk before the records that name them.
constexpr int kTokens = 0, kRecords = 1;

// Records that speak of things on disk, which a machine that fails does not take with it.
bool EndsWithTheMachine(const JournalRecord& r) {
  return !std::holds_alternative<record::CheckpointCommit>(r) &&
         !std::holds_alternative<record::CheckpointReject>(r) &&
         !std::holds_alternative<record::CheckpointDelete>(r) &&
         !std::holds_alternative<record::Restore>(r) && !std::holds_alternative<record::EndRun>(r);
}

struct Batch {
  int64_t number = 0;
  std::vector<RunStorage::Record> records;
};

struct Begun {
  int64_t unix_ms = 0;
};

using Item = std::variant<Batch, sample::Trajectory, Begun>;

std::string Plain(const std::string& path, const std::string& run_dir) {
  return path.starts_with(run_dir + "/") ? path.substr(run_dir.size() + 1) : path;
}

}  // namespace

// Shared by the works on both threads, for a work that hangs outlives everybody else.
struct RunStorage::State {
  std::shared_ptr<FileSystem> fs;
  StorageOptions options;
  std::function<void(StorageDone)> done;
  // Of the writing thread.
  std::unique_ptr<storage::JournalWriter> journal;
  std::unique_ptr<storage::PayloadWriter> payload;
  Status closed;

  Mutex mu;
  std::vector<Item> queue TP_GUARDED_BY(mu);
  bool failed TP_GUARDED_BY(mu) = false;  // the journal
  bool stores_failed TP_GUARDED_BY(mu) = false;

  std::unique_ptr<storage::LazySync> syncing;  // beside the writing, with ends_with_the_machine

  void Fail(const Status& status) TP_EXCLUDES(mu) {
    {
      const MutexLock lock(mu);
      if (failed) return;
      failed = true;
    }
    const bool taken_over = status.code() == StatusCode::kAborted;
    done(StorageFailed{taken_over ? "journal: " + status.message() : OfDisk("journal", status),
                       /*journal=*/true, taken_over});
  }
  // No sample is reported as stored from here on; the journal still takes the records of an end.
  void FailStores(const std::string& why) TP_EXCLUDES(mu) {
    {
      const MutexLock lock(mu);
      if (std::exchange(stores_failed, true)) return;
    }
    done(StorageFailed{why});
  }
  void FailPayload(const Status& status) TP_EXCLUDES(mu) { FailStores(OfDisk("payload", status)); }
  [[nodiscard]] std::string OfDisk(const std::string& what, const Status& status) const {
    return what + ": the disk of " + options.run_dir + " (host " + HostName() +
           ") cannot be written: " + status.message() + "; mend that, then --resume";
  }

  [[nodiscard]] bool NeedsSync(const JournalRecord& r) const {
    return !(options.ends_with_the_machine ? EndsWithTheMachine(r) : IsLazy(r));
  }

  // All that waits, with one sync.
  void Write(const DiskThread::Say& say) TP_EXCLUDES(mu) {
    std::vector<Item> items;
    {
      const MutexLock lock(mu);
      if (failed) return;
      items = std::exchange(queue, {});
    }
    if (items.empty()) return;  // an earlier work took them along
    const auto begin = Clock::now();
    bool sync = false;
    int64_t last = 0;
    std::vector<PayloadStored> stored;
    Status tokens;
    for (const auto& item : items) {
      if (const auto* t = std::get_if<sample::Trajectory>(&item)) {
        if (!tokens.ok()) continue;
        say("write of payload/");
        const auto ref = payload->Append(*t);
        tokens = ref.status();
        if (ref.ok())
          stored.push_back({t->tid, t->att, t->prompt_size(), t->size(), t->VersionsWithLoss(), *ref});
        continue;
      }
      if (const auto* begun = std::get_if<Begun>(&item)) {
        say("write of " + Plain(journal->current_file(), options.run_dir));
        if (const Status s = journal->SetBegun(begun->unix_ms); !s.ok()) return Fail(s);
        continue;
      }
      const auto& batch = std::get<Batch>(item);
      for (const Record& r : batch.records) {
        journal->Append(r.record, r.mono_ns);
        sync = sync || NeedsSync(r.record);
      }
      last = batch.number;
    }
    // Tokens first, then the records that name them.
    if (tokens.ok() && (options.ends_with_the_machine ? sync : !stored.empty())) {
      say("fsync of payload/");
      tokens = payload->Sync();
    }
    if (!tokens.ok()) {
      stored.clear();
      FailPayload(tokens);
    }
    if (last > 0) {
      say((sync ? "fsync of " : "write of ") + Plain(journal->current_file(), options.run_dir));
      if (const Status s = sync ? journal->Sync() : journal->Flush(); !s.ok()) return Fail(s);
      if (journal->space_low()) {
        FailStores(
            "journal: the disk of " + options.run_dir + " (host " + HostName() +
            ") has no space left; free some (`tidepool prune` of runs that have ended), then --resume");
      }
    }
    if (options.ends_with_the_machine && !sync) {  // an older file was synced when its successor began
      if (!stored.empty()) syncing->Soon(payload->current_file(), kTokens);
      if (last > 0) syncing->Soon(journal->current_file(), kRecords);
    }
    for (PayloadStored& p : stored) done(std::move(p));
    if (last > 0) done(BatchStored{last, std::chrono::duration<double>(Clock::now() - begin).count()});
  }
};

int64_t OwnPayload(const JournalRecord& r) {
  const auto* enq = std::get_if<record::Enq>(&r);
  return enq != nullptr && storage::WriterOf(enq->payload_file) == 0 ? enq->payload_file : -1;
}

StatusOr<std::unique_ptr<RunStorage>> RunStorage::Open(std::shared_ptr<FileSystem> fs,
                                                       const StorageOptions& options,
                                                       storage::JournalSummary* earlier,
                                                       const std::function<Status(const JournalEntry&)>& take,
                                                       std::function<void(StorageDone)> done) {
  std::unique_ptr<RunStorage> storage(new RunStorage());
  storage->state_ = std::make_shared<State>();
  State& state = *storage->state_;
  state.fs = std::move(fs);
  state.options = options;
  state.done = std::move(done);
  state.syncing = std::make_unique<storage::LazySync>(
      state.fs,
      storage::LazySync::Options{
          .folder = options.run_dir,
          .failed = [weak = std::weak_ptr(storage->state_)](const std::string& file, const Status& s) {
            const auto of = weak.lock();
            if (of == nullptr) return false;
            const bool tokens = file.starts_with(storage::RunPaths(of->options.run_dir).payload());
            tokens ? of->FailPayload(s) : of->Fail(s);
            return false;
          }});
  int64_t newest_payload_file = options.newest_payload;
  TP_ASSIGN_OR_RETURN(
      state.journal,
      storage::JournalWriter::Open(
          *state.fs, storage::RunPaths(options.run_dir).journal(), options.run_id,
          {.begun_unix_ms = options.begun_unix_ms, .take_over = options.take_over, .mark = options.mark},
          earlier, [&](JournalEntry&& entry) {
            newest_payload_file = std::max(newest_payload_file, OwnPayload(entry.record));
            return take(entry);
          }));
  TP_ASSIGN_OR_RETURN(
      state.payload,
      storage::PayloadWriter::Open(*state.fs, storage::RunPaths(options.run_dir).payload(), options.run_id));
  if (newest_payload_file >= 0) state.payload->After(newest_payload_file);
  storage->next_lsn_ = state.journal->next_lsn();
  storage->ctl_epoch_ = state.journal->ctl_epoch();
  return storage;
}

int64_t RunStorage::Append(std::vector<Record> records) {
  next_lsn_.value += static_cast<int64_t>(records.size());
  {
    const MutexLock lock(state_->mu);
    state_->queue.emplace_back(Batch{++batches_, std::move(records)});
  }
  Work("write of the journal");
  return batches_;
}

void RunStorage::Store(sample::Trajectory trajectory) {
  {
    const MutexLock lock(state_->mu);
    state_->queue.emplace_back(std::move(trajectory));
  }
  Work("write of payload/");
}

// It goes to the disk with the next records.
void RunStorage::SetBegun(int64_t begun_unix_ms) {
  const MutexLock lock(state_->mu);
  state_->queue.emplace_back(Begun{begun_unix_ms});
}

void RunStorage::Work(std::string operation) {
  writing_.Do(std::move(operation), [state = state_](const DiskThread::Say& say) { state->Write(say); });
}

bool RunStorage::TakenOver() const { return AsksTakenOver()(); }

std::function<bool()> RunStorage::AsksTakenOver() const {
  return [state = state_] {
    return state->journal != nullptr && state->journal->StillOurs().code() == StatusCode::kAborted;
  };
}

void RunStorage::LookForSuccessor() {
  if (writing_.Busy()) return;
  writing_.Do("look at journal/", [state = state_](const DiskThread::Say&) {
    if (Status s = state->journal->Keep(); s.code() == StatusCode::kAborted) state->Fail(s);
  });
}

std::optional<DiskThread::Operation> RunStorage::Busy() const {
  auto writing = writing_.Busy(), syncing = state_->syncing->Busy();
  if (!writing || (syncing && syncing->takes > writing->takes)) return syncing;
  return writing;
}

Status RunStorage::Close(Clock::duration patience) {
  writing_.Do("close of the journal", [state = state_](const DiskThread::Say&) {
    if (state->journal != nullptr) state->closed = state->journal->Close();
  });
  if (!writing_.Drain(patience) || !state_->syncing->Drain(patience)) {
    const auto hangs = Busy();
    return DeadlineExceeded("the disk does not answer: " + (hangs ? hangs->name : "a write") +
                            " has not ended");
  }
  return state_->closed;
}

}  // namespace tidepool::workers
