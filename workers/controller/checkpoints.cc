#include "workers/controller/checkpoints.h"

#include <utility>

#include "core/storage/payload.h"
#include "core/storage/publish_folder.h"
#include "core/storage/run_directory.h"

namespace tidepool::workers {

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
  return storage::RemoveLeftovers(*fs_, dir_).status();
}

template <typename Work, typename Then>
void Checkpoints::OnDisk(std::string operation, Work work, Then then) {
  disk_.Do(std::move(operation), [post = ends_.post, work = std::move(work),
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
      [fs = fs_, dir = dir_, which = storage::CheckpointTry{c.step, owner_.ctl_epoch, c.ckpt}]()
          -> StatusOr<std::shared_ptr<storage::CheckpointWriter>> {
        TP_ASSIGN_OR_RETURN(auto writer, storage::CheckpointWriter::Begin(*fs, dir, which));
        return std::shared_ptr<storage::CheckpointWriter>(std::move(writer));
      },
      [this, c](const StatusOr<std::shared_ptr<storage::CheckpointWriter>>& writer) {
        if (!writer.ok()) return ends_.feed(ev::CheckpointFailed{c.ckpt, writer.status().message()});
        writer_ = *writer;
        pending_ = c;
        ends_.send(c.worker, down::WriteCheckpoint{c.slot, c.ckpt, writer_->dir()});
      });
}

void Checkpoints::Commit(const up::CheckpointFiles& files, Lsn cut) {
  if (!pending_ || pending_->ckpt != files.ckpt) return;
  const cmd::WriteCheckpoint c = *std::exchange(pending_, std::nullopt);
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
  OnDisk(
      "commit of checkpoints/" + storage::CheckpointName(c.step),
      [fs = fs_, writer = writer_, manifest, written = files.files] {
        const auto begin = Clock::now();
        auto digest = writer->Commit(manifest, written);
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
  OnDisk(
      "reading of checkpoints/" + storage::CheckpointName(c.step),
      [fs = fs_, dir, digest = c.manifest_digest] { return storage::VerifyCheckpoint(*fs, dir, digest); },
      [this, dir, ckpt = c.ckpt](StatusOr<storage::Manifest>& verified) {
        Status status = verified.status();
        if (verified.ok() && verified->notes["data_identity"] != owner_.data_identity) {
          status =
              FailedPrecondition(dir + " belongs to other data (identity " +
                                 verified->notes["data_identity"] + ", now " + owner_.data_identity + ")");
        }
        ends_.feed(ev::CheckpointVerified{ckpt, status.ok() ? "" : status.message()});
      });
}

void Checkpoints::Delete(const cmd::DeleteCheckpoint& c) {
  OnDisk(
      "removal of checkpoints/" + storage::CheckpointName(c.step),
      [fs = fs_, dir = dir_, step = c.step] { return storage::RemoveCheckpoint(*fs, dir, step); },
      [this](const Status& removed) {
        if (!removed.ok()) ends_.warn("checkpoint: " + removed.message());
        PrunePayload();
      });
}

// Deletes the payload files that no checkpoint which is kept can need: those before the oldest sample that
// may still be trained, or be trained again after a restore.
void Checkpoints::PrunePayload() {
  OnDisk(
      "removal of old files of payload/",
      [fs = fs_, dir = storage::RunPaths(owner_.run_dir).payload(), needed = ends_.oldest_payload_file()] {
        return storage::DeletePayloadFilesBelow(*fs, dir, needed).status();
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
