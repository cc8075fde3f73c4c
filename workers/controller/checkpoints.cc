#include "workers/controller/checkpoints.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/json_fields.h"
#include "core/storage/payload.h"
#include "core/storage/publish_folder.h"
#include "core/storage/run_directory.h"
#include "core/storage/share_files.h"
#include "workers/data/best_model.h"

namespace tidepool::workers {
namespace {

struct Begun {
  std::shared_ptr<storage::CheckpointWriter> writer;
  bool linked = false;  // its model/ has the files of the base model
};

// What one more trainer has written.
void Add(const up::CheckpointFiles& one, up::CheckpointFiles& all) {
  all.files.insert(all.files.end(), one.files.begin(), one.files.end());
  all.stored.insert(all.stored.end(), one.stored.begin(), one.stored.end());
  if (all.error.empty()) all.error = one.error;
  if (all.weights_digest != 0 && one.weights_digest != 0 && all.weights_digest != one.weights_digest &&
      all.error.empty())
    all.error = "the workers that share the optimizer's state have different weights";
  if (all.weights_digest == 0) all.weights_digest = one.weights_digest;
  if (all.instruction_set.empty()) all.instruction_set = one.instruction_set;
  all.seconds = std::max(all.seconds, one.seconds);
}

}  // namespace

namespace ev = scheduler::event;
namespace cmd = scheduler::command;
using Clock = std::chrono::steady_clock;

Checkpoints::Checkpoints(std::shared_ptr<FileSystem> fs, Owner owner, Ends ends)
    : fs_(std::move(fs)),
      owner_(std::move(owner)),
      ends_(std::move(ends)),
      dir_(storage::RunPaths(owner_.run_dir).checkpoints()) {}

Status Checkpoints::Open() {
  TP_RETURN_IF_ERROR(fs_->MakeDirectories(dir_));
  const storage::RunPaths paths(owner_.run_dir);
  for (const std::string& model : {paths.final_model(), paths.best_model()})
    TP_RETURN_IF_ERROR(storage::FinishPublish(*fs_, model));
  TP_ASSIGN_OR_RETURN(const auto names, fs_->List(paths.dir));
  for (const std::string& name : names) {
    if (name.starts_with("best.tmp-")) TP_RETURN_IF_ERROR(fs_->RemoveTree(JoinPath(paths.dir, name)));
  }
  if (owner_.store.exists()) {
    store_ = storage::NewPlace(owner_.store, owner_.run_id);
    TP_RETURN_IF_ERROR(storage::TryStore(fs_, store_, dir_));
  }
  return RemoveLeftovers();
}

Status Checkpoints::RemoveLeftovers() {
  constexpr std::chrono::seconds kPatience{20};  // for the disk of the run
  const auto aside =
      disk_.DoWithin(kPatience, "removal of what earlier tries left in checkpoints/",
                     [fs = fs_, dir = dir_]() -> StatusOr<storage::SetAside> {
                       TP_ASSIGN_OR_RETURN(storage::SetAside found, storage::SetLeftoversAside(*fs, dir));
                       for (const std::string& path : found.local)
                         TP_RETURN_IF_ERROR(storage::RemoveFolder(*fs, path));
                       if (!found.local.empty()) TP_RETURN_IF_ERROR(fs->SyncDir(dir));
                       return found;
                     });
  if (!aside) {
    ends_.warn("checkpoint: what earlier tries left in " + dir_ +
               " is still being removed; what comes later waits for it");
    return OkStatus();
  }
  TP_RETURN_IF_ERROR(aside->status());
  for (const std::string& dir : (*aside)->stored) RemoveFromStore(dir);
  return OkStatus();
}

// As TryStore: one for each request.
std::chrono::duration<double> Checkpoints::PatienceOfStore() const {
  return std::chrono::duration<double>(4 * owner_.store.timeout_s);
}

void Checkpoints::RemoveFromStore(const std::string& dir) {
  const auto warn = [warn = ends_.warn, dir](const std::string& why) {
    warn("checkpoint: " + storage::Stays(dir, why));
  };
  if (const auto busy = removals_.Busy(); busy && busy->takes > PatienceOfStore())
    return warn(busy->name + " has not ended for " +
                std::to_string(std::chrono::duration_cast<std::chrono::seconds>(busy->takes).count()) +
                " s; does the store that its store.json names answer?");
  // A store that answers, and slower than checkpoints come: what stays is found at the next start.
  constexpr int64_t kMostRemovals = 64;
  if (removing_ >= kMostRemovals)
    return warn(std::to_string(removing_) + " removals wait for the store already");
  ++removing_;
  On(
      removals_, "removal of checkpoints/" + BaseName(dir) + " from its store",
      [fs = fs_, dir]() -> Status {
        TP_RETURN_IF_ERROR(storage::RemoveFolder(*fs, dir));
        return fs->SyncDir(ParentPath(dir));
      },
      [this, warn](const Status& removed) {
        --removing_;
        if (!removed.ok()) warn(removed.message());
      });
}

std::optional<DiskThread::Operation> Checkpoints::Busy() const {
  auto disk = disk_.Busy(), removal = removals_.Busy();
  if (!disk || (removal && removal->takes > disk->takes)) return removal;
  return disk;
}

bool Checkpoints::Drain(Clock::duration patience) {
  const auto until = Clock::now() + patience;
  const bool written = disk_.Drain(patience);
  return removals_.Drain(std::max<Clock::duration>(until - Clock::now(), Clock::duration{0})) && written;
}

template <typename Work, typename Then>
void Checkpoints::On(DiskThread& thread, std::string operation, Work work, Then then) {
  thread.Do(std::move(operation), [post = ends_.post, work = std::move(work),
                                   then = std::move(then)](const DiskThread::Say&) mutable {
    auto result = work();
    post([result = std::move(result), then = std::move(then)]() mutable { then(result); });
  });
}

std::string Checkpoints::FolderOf(StepNumber step) const {
  return dir_ + "/" + storage::CheckpointName(step);
}

void Checkpoints::Write(const cmd::WriteCheckpoint& c) {
  OnDisk(
      "making a folder for checkpoints/" + storage::CheckpointName(c.step),
      [fs = fs_, dir = dir_, store = store_,
       base = c.step.value == 0 && !store_.exists() ? owner_.base_model : "",
       which = storage::CheckpointTry{c.step, owner_.ctl_epoch, c.ckpt}]() -> StatusOr<Begun> {
        // Or else a folder that was moved would be begun anew where it was.
        if (!fs->Exists(ParentPath(dir))) return NotFound(ParentPath(dir) + ": was moved or removed");
        TP_ASSIGN_OR_RETURN(auto writer, storage::CheckpointWriter::Begin(*fs, dir, which, store));
        // Nothing was trained: the model is the base model. Where the disk cannot give its files further
        // names (it is another disk, or another owner's), the trainer writes them.
        const bool linked = !base.empty() && storage::LinkModel(*fs, base, writer->dir() + "/model").ok();
        return Begun{std::move(writer), linked};
      },
      [this, c](StatusOr<Begun>& begun) {
        if (!begun.ok()) return ends_.feed(ev::CheckpointFailed{c.ckpt, begun.status().message()});
        writer_ = std::move(begun->writer);
        is_base_ = begun->linked;
        pending_ = Pending{.c = c, .awaited = 1 + c.others.size(), .files = {.ckpt = c.ckpt}};
        ends_.send(c.worker, down::WriteCheckpoint{c.slot, c.ckpt, writer_->dir()});
        for (const SlotRef& other : c.others)
          ends_.send(other.worker, down::WriteCheckpoint{other.slot, c.ckpt, writer_->dir(), /*part=*/true});
      });
}

void Checkpoints::Commit(const up::CheckpointFiles& came, Lsn cut) {
  if (!pending_ || pending_->c.ckpt != came.ckpt) return;
  Add(came, pending_->files);
  if (--pending_->awaited > 0) return;
  const Pending all = *std::exchange(pending_, std::nullopt);
  const cmd::WriteCheckpoint& c = all.c;
  const up::CheckpointFiles& files = all.files;
  if (!files.error.empty()) return ends_.feed(ev::CheckpointFailed{c.ckpt, files.error});
  storage::Manifest manifest;
  manifest.run_id = owner_.run_id;
  manifest.ckpt = c.ckpt;
  manifest.step = c.step;
  manifest.version = c.v;
  manifest.cut = cut;
  manifest.config_digest = owner_.config_digest;
  manifest.weights_digest = files.weights_digest;
  manifest.instruction_set = files.instruction_set;
  manifest.notes["data_identity"] = owner_.data_identity;
  if (is_base_) manifest.notes[storage::kBaseModel] = owner_.base_model;
  OnDisk(
      "commit of checkpoints/" + storage::CheckpointName(c.step),
      [fs = fs_, writer = writer_, manifest, written = files.files, stored = files.stored,
       in_store = store_.exists()] {
        const auto begin = Clock::now();
        auto digest = in_store ? writer->CommitStored(manifest, stored) : writer->Commit(manifest, written);
        return std::pair(std::move(digest), std::chrono::duration<double>(Clock::now() - begin).count());
      },
      [this, c, weights = files.weights_digest, write_s = files.seconds](const auto& done) {
        ends_.took(write_s + done.second);
        if (done.first.ok()) {
          ends_.feed(ev::CheckpointWritten{c.ckpt, c.step, *done.first, weights});
        } else {
          ends_.feed(ev::CheckpointFailed{c.ckpt, done.first.status().message()});
        }
      });
}

void Checkpoints::Verify(const cmd::VerifyCheckpoint& c) {
  const std::string dir = FolderOf(c.step);
  struct Found {
    StatusOr<storage::Manifest> manifest;
    bool out_of_reach;
  };
  OnDisk(
      "reading of checkpoints/" + storage::CheckpointName(c.step),
      [fs = fs_, dir, digest = c.manifest_digest] {
        auto manifest = storage::FindCheckpoint(*fs, dir, digest);
        // A store.json that cannot be read is no fault of the checkpoint's either.
        const auto place = fs->Stat(JoinPath(dir, storage::kStorePlaceName));
        const bool away = storage::IsOfStore(manifest.status()) && (!place.ok() || place->exists);
        return Found{std::move(manifest), away};
      },
      [this, dir, ckpt = c.ckpt](Found& found) {
        Status status = found.manifest.status();
        if (status.ok() && found.manifest->notes["data_identity"] != owner_.data_identity) {
          status = FailedPrecondition(dir + " belongs to other data (identity " +
                                      found.manifest->notes["data_identity"] + ", now " +
                                      owner_.data_identity + ")");
        }
        ends_.feed(ev::CheckpointVerified{ckpt, status.ok() ? "" : status.message(), found.out_of_reach});
      });
}

void Checkpoints::Delete(const cmd::DeleteCheckpoint& c) {
  OnDisk(
      "removal of checkpoints/" + storage::CheckpointName(c.step),
      [fs = fs_, dir = dir_, step = c.step]() -> StatusOr<storage::SetAside> {
        TP_ASSIGN_OR_RETURN(storage::SetAside aside, storage::SetCheckpointAside(*fs, dir, step));
        for (const std::string& path : aside.local) TP_RETURN_IF_ERROR(storage::RemoveFolder(*fs, path));
        if (!aside.local.empty()) TP_RETURN_IF_ERROR(fs->SyncDir(dir));
        return aside;
      },
      [this](const StatusOr<storage::SetAside>& aside) {
        if (!aside.ok()) {
          ends_.warn("checkpoint: " + aside.status().message());
        } else {
          for (const std::string& dir : aside->stored) RemoveFromStore(dir);
        }
        PrunePayload();
      });
}

void Checkpoints::KeepBest(const cmd::KeepBest& c) {
  const std::string name = storage::CheckpointName(c.step);
  OnDisk(
      "making of best/ from checkpoints/" + name,
      [fs = fs_, checkpoint = dir_ + "/" + name, best = storage::RunPaths(owner_.run_dir).best_model(),
       note = BestModel{.metric = owner_.best_by, .value = c.value, .step = c.step.value}]() -> Status {
        const std::string tmp = best + ".tmp-" + std::to_string(note.step);
        const std::string fetched = tmp + "-fetched";
        TP_RETURN_IF_ERROR(fs->RemoveTree(tmp));
        TP_RETURN_IF_ERROR(fs->RemoveTree(fetched));
        TP_ASSIGN_OR_RETURN(const std::string folder,
                            storage::FolderWithFiles(*fs, checkpoint, "model/", fetched));
        TP_RETURN_IF_ERROR(storage::CopyModel(*fs, folder + "/model", tmp));
        TP_RETURN_IF_ERROR(fs->RemoveTree(fetched));
        TP_RETURN_IF_ERROR(
            fs->WriteFile(tmp + "/" + kBestModelFile, JsonOf<nlohmann::ordered_json>(note).dump(2) + "\n"));
        return storage::PublishFolder(*fs, tmp, best);
      },
      [this, c](const Status& kept) {
        // The run goes on without: a disk that is full ends it at the next checkpoint.
        if (!kept.ok()) ends_.warn("best/ could not be made: " + kept.message());
        ends_.feed(ev::BestKept{c.step, c.value, kept.ok() ? "" : kept.message()});
      });
}

std::optional<scheduler::BestCheckpoint> Checkpoints::Best() const {
  const auto note =
      fs_->ReadFile(JoinPath(storage::RunPaths(owner_.run_dir).best_model(), kBestModelFile), 1 << 16);
  if (!note.ok()) return std::nullopt;
  BestModel best;
  if (!FromJson(nlohmann::json::parse(*note, nullptr, /*allow_exceptions=*/false), best)) return std::nullopt;
  if (best.metric.empty() || best.metric != owner_.best_by) return std::nullopt;
  return scheduler::BestCheckpoint{{best.step}, best.value};
}

// Deletes the payload files that no checkpoint which is kept can need: those before the oldest sample that
// may still be trained, or be trained again after a restore.
void Checkpoints::PrunePayload() {
  OnDisk(
      "removal of old files of payload/",
      [fs = fs_, dir = storage::RunPaths(owner_.run_dir).payload(), needed = ends_.needed_of_payload()] {
        return storage::DeletePayloadFilesBelow(*fs, dir, needed.first, needed.second).status();
      },
      [this](const Status& deleted) {
        if (!deleted.ok()) ends_.warn("payload: " + deleted.message());
      });
}

std::string Checkpoints::FinalTmp(const WorkerRef& trainer) const {
  return storage::RunPaths(owner_.run_dir).final_model() + ".tmp-" + std::to_string(owner_.ctl_epoch) + "-" +
         std::to_string(trainer.inc.value);
}

void Checkpoints::SaveFinal(const cmd::SaveFinal& c) {
  OnDisk(
      "removal of what an earlier try left of final/",
      [fs = fs_, dir = owner_.run_dir]() -> Status {
        TP_ASSIGN_OR_RETURN(const auto names, fs->List(dir));
        for (const std::string& name : names) {
          if (name.starts_with("final.tmp-")) TP_RETURN_IF_ERROR(fs->RemoveTree(JoinPath(dir, name)));
        }
        return OkStatus();
      },
      [this, c](const Status& removed) {
        if (!removed.ok()) return ends_.feed(ev::FinalSaved{removed.message()});
        ends_.send(c.worker, down::SaveFinal{c.slot, FinalTmp(c.worker)});
      });
}

void Checkpoints::PublishFinal(const WorkerRef& trainer, const up::FinalSaved& saved) {
  if (!saved.error.empty()) return ends_.feed(ev::FinalSaved{saved.error});
  OnDisk(
      "sync of final/",
      [fs = fs_, tmp = FinalTmp(trainer), dir = storage::RunPaths(owner_.run_dir).final_model()] {
        return storage::PublishFolder(*fs, tmp, dir);
      },
      [this](const Status& published) {
        ends_.feed(ev::FinalSaved{published.ok() ? "" : published.message()});
      });
}

}  // namespace tidepool::workers
