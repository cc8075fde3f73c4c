// Slots and optimizer steps, the rows of a batch, weights, checkpoints.

#include <algorithm>
#include <filesystem>

#include "core/storage/publish_folder.h"
#include "workers/controller/process_impl.h"

namespace tidepool::workers {

// --- pool, training, weights

void ControllerProcess::Do(const cmd::Release& c) {
  metrics_->OnHold(c.slot, Role::kNone, Now());
  Send(c.worker, c);
}

void ControllerProcess::Do(const cmd::Grant& c) {
  places_->Granted(c);
  Send(c.worker, c);
}

void ControllerProcess::Do(const cmd::FetchState& c) {
  Send(c.worker, down::FetchState{c.slot, c.epoch, c.step, c.weights_digest, c.request,
                                  places_->HelloOf(c.from.worker.worker).weights_address});
}

// The ranks meet by a file that all of them see; its name is never used again, also not by a later
// controller.
void ControllerProcess::Do(const cmd::FormGroup& c) {
  const std::string dir = request_.run_dir + "/comm";
  Send(c.worker,
       down::FormGroup{
           c, dir + "/" + std::to_string(storage_->ctl_epoch()) + "-" + std::to_string(c.group_epoch),
           kMeetSeconds});
}

void ControllerProcess::Do(const cmd::RestoreState& c) {
  Send(c.worker, down::RestoreState{c, c.ckpt >= 0 ? CheckpointDir(c.step) : ""});
}

void ControllerProcess::Do(const cmd::Load& c) {
  down::Load m{c.slot, c.v, c.digest, "", SlotOf(c) == c.from};
  if (config_.cluster.weight_transport == WeightTransport::kStream && !m.alias)
    m.address = places_->HelloOf(c.from.worker.worker).weights_address;
  Send(c.worker, std::move(m));
}

void ControllerProcess::Judge(const SampleId& tid, BatchRow& row) const {
  if (TrainsOnPairs(config_)) row.reward = tid.sample == 0 ? 1 : 0;
  if (config_.rl() == nullptr) return;
  row.reward = controller_->Reward(tid);
  if (row.trajectory.Fragment() != nullptr) return;
  const auto& named = controller_->Rewards(tid);
  for (const RewardFunction& f : config_.reward.functions) {
    const auto it = std::ranges::find(named, f.name, [](const auto& entry) { return entry.first; });
    if (it != named.end()) row.components.push_back(it->second);
  }
}

// --- checkpoints

void ControllerProcess::Do(const cmd::WriteCheckpoint& c) {
  OnDisk(
      "making a folder for checkpoints/" + storage::CheckpointName(c.step),
      [fs = fs_, checkpoints = checkpoints_,
       which = storage::CheckpointTry{c.step, storage_->ctl_epoch(),
                                      c.ckpt}]() -> StatusOr<std::shared_ptr<storage::CheckpointWriter>> {
        TP_ASSIGN_OR_RETURN(auto writer, storage::CheckpointWriter::Begin(*fs, checkpoints, which));
        return std::shared_ptr<storage::CheckpointWriter>(std::move(writer));
      },
      [this, c](const StatusOr<std::shared_ptr<storage::CheckpointWriter>>& writer) {
        if (!writer.ok()) return Feed(ev::CheckpointFailed{c.ckpt, writer.status().message()});
        checkpoint_ = *writer;
        pending_checkpoint_ = c;
        Send(c.worker, down::WriteCheckpoint{c.slot, c.ckpt, checkpoint_->dir()});
      });
}

// The trainer's files are there: the rest (sync, manifest, rename, read back) needs no tensor.
void ControllerProcess::CommitCheckpoint(const up::CheckpointFiles& files) {
  if (!pending_checkpoint_ || pending_checkpoint_->ckpt != files.ckpt) return;
  const cmd::WriteCheckpoint c = *std::exchange(pending_checkpoint_, std::nullopt);
  if (!files.error.empty()) {
    Feed(ev::CheckpointFailed{c.ckpt, files.error});
    return;
  }
  storage::Manifest manifest;
  manifest.run_id = request_.run_id;
  manifest.ckpt = c.ckpt;
  manifest.step = c.step;
  manifest.version = c.v;
  manifest.cut = storage_->next_lsn();
  manifest.config_digest = request_.config_digest;
  manifest.weights_digest = files.weights_digest;
  manifest.instruction_set = files.instruction_set;
  manifest.notes["data_identity"] = rows_->identity();
  OnDisk(
      "commit of checkpoints/" + storage::CheckpointName(c.step),
      [fs = fs_, writer = checkpoint_, manifest, written = files.files] {
        const auto begin = Clock::now();
        auto digest = writer->Commit(manifest, written);
        return std::pair(std::move(digest), std::chrono::duration<double>(Clock::now() - begin).count());
      },
      [this, c, weights = files.weights_digest, write_s = files.seconds](const auto& done) {
        metrics_->OnCheckpoint(write_s + done.second);
        if (done.first.ok()) {
          Feed(ev::CheckpointWritten{c.ckpt, c.step, *done.first, weights});
        } else {
          Feed(ev::CheckpointFailed{c.ckpt, done.first.status().message()});
        }
      });
}

void ControllerProcess::Do(const cmd::VerifyCheckpoint& c) {
  const std::string dir = CheckpointDir(c.step);
  OnDisk(
      "reading of checkpoints/" + storage::CheckpointName(c.step),
      [fs = fs_, dir, digest = c.manifest_digest] { return storage::VerifyCheckpoint(*fs, dir, digest); },
      [this, dir, ckpt = c.ckpt](StatusOr<storage::Manifest>& verified) {
        Status status = verified.status();
        if (verified.ok() && verified->notes["data_identity"] != rows_->identity()) {
          status = FailedPrecondition(dir + " belongs to other data (identity " +
                                      verified->notes["data_identity"] + ", now " + rows_->identity() + ")");
        }
        Feed(ev::CheckpointVerified{ckpt, status.ok() ? "" : status.message()});
      });
}

void ControllerProcess::Do(const cmd::DeleteCheckpoint& c) {
  OnDisk(
      "removal of checkpoints/" + storage::CheckpointName(c.step),
      [fs = fs_, checkpoints = checkpoints_, step = c.step] {
        return storage::RemoveCheckpoint(*fs, checkpoints, step);
      },
      [this](const Status& removed) {
        if (!removed.ok()) Warn("checkpoint: " + removed.message());
        PrunePayload();
      });
}

// Deletes the payload files that no checkpoint which is kept can need: those before the oldest sample that
// may still be trained, or be trained again after a restore. What is still on its way to the disk goes into
// the newest file that was reported, or a newer one.
void ControllerProcess::PrunePayload() {
  int64_t needed = controller_->OldestPayloadFile();
  if (fragments_ != nullptr) needed = std::min(needed, fragments_->OldestPayloadFile());
  if (newest_payload_file_ >= 0) needed = std::min(needed, newest_payload_file_);
  OnDisk(
      "removal of old files of payload/",
      [fs = fs_, dir = request_.run_dir + "/payload", needed] {
        return storage::DeletePayloadFilesBelow(*fs, dir, needed).status();
      },
      [this](const Status& deleted) {
        if (!deleted.ok()) Warn("payload: " + deleted.message());
      });
}

// The trainer writes a folder of another name; final/ is there whole or not at all. A trainer that was given
// up and still writes does not reach the folder of its successor.
std::string ControllerProcess::FinalTmp(const WorkerRef& trainer) const {
  return request_.run_dir + "/final.tmp-" + std::to_string(storage_->ctl_epoch()) + "-" +
         std::to_string(trainer.inc.value);
}

void ControllerProcess::Do(const cmd::SaveFinal& c) {
  OnDisk(
      "removal of what an earlier try left of final/",
      [fs = fs_, dir = request_.run_dir]() -> Status {
        TP_ASSIGN_OR_RETURN(const auto names, fs->List(dir));
        for (const std::string& name : names) {
          if (name.starts_with("final.tmp-")) TP_RETURN_IF_ERROR(fs->RemoveTree(JoinPath(dir, name)));
        }
        return OkStatus();
      },
      [this, c](const Status& removed) {
        if (!removed.ok()) return Feed(ev::FinalSaved{removed.message()});
        Send(c.worker, down::SaveFinal{c.slot, FinalTmp(c.worker)});
      });
}

void ControllerProcess::OnFinalSaved(const WorkerRef& trainer, const up::FinalSaved& saved) {
  if (!saved.error.empty()) return Feed(ev::FinalSaved{saved.error});
  OnDisk(
      "sync of final/",
      [fs = fs_, tmp = FinalTmp(trainer), dir = request_.run_dir + "/final"] {
        return storage::PublishFolder(*fs, tmp, dir);
      },
      [this](const Status& published) { Feed(ev::FinalSaved{published.ok() ? "" : published.message()}); });
}

}  // namespace tidepool::workers
