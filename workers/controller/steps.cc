// Slots and optimizer steps, the rows of a batch, weights.

#include <algorithm>

#include "core/storage/run_directory.h"
#include "workers/controller/process_impl.h"

namespace tidepool::workers {

// --- pool, training, weights

void ControllerProcess::Do(const cmd::Release& c) {
  metrics_->OnHold(c.slot, Role::kNone, Now());
  Send(c.worker, c);
}

void ControllerProcess::Do(const cmd::Grant& c) {
  places_->Granted(c);
  down::Grant m{c.slot, c.epoch, c.role};
  if (c.gang.size() > 1 && c.role == Role::kRollout) {
    m.rank = c.rank;
    m.ranks = static_cast<int64_t>(c.gang.size());
    // What names the processes names their group, whoever grants and how often: it stays while they live.
    m.meeting = "engine";
    for (const WorkerRef& member : c.gang) m.meeting += "-" + std::to_string(member.inc.value);
    m.timeout_s = kEngineSeconds;
    engine_meetings_->Admit(c.gang.front().worker, m.meeting, c.worker.inc);
  }
  Send(c.worker, std::move(m));
}

void ControllerProcess::Do(const cmd::FetchState& c) {
  Send(c.worker, down::FetchState{c.slot, c.epoch, c.step, c.weights_digest, c.request,
                                  places_->HelloOf(c.from.worker.worker).weights_address});
}

// The name of a rendezvous is never used again, also not by a later controller.
void ControllerProcess::Do(const cmd::FormGroup& c) {
  const std::string meeting = std::to_string(storage_->ctl_epoch()) + "-" + std::to_string(c.group_epoch);
  meeting_->Admit(meeting, c.worker.inc);
  Send(c.worker, down::FormGroup{c, meeting, kMeetSeconds});
}

void ControllerProcess::Do(const cmd::RestoreState& c) {
  Send(c.worker, down::RestoreState{c, c.ckpt >= 0 ? checkpoints_->FolderOf(c.step) : ""});
}

void ControllerProcess::Do(const cmd::Pull& c) {
  Send(c.worker, down::Pull{c.slot, c.v, c.digest, places_->HelloOf(c.from.worker.worker).weights_address});
}

void ControllerProcess::Do(const cmd::Load& c) {
  down::Load m{c.slot, c.v, c.digest, "", c.alias};
  if (config_.cluster.weight_transport == WeightTransport::kStream && !m.alias)
    m.address = places_->HelloOf(c.from.worker.worker).weights_address;
  Send(c.worker, std::move(m));
}

void ControllerProcess::Do(const cmd::Preview& c) {
  down::Preview m{c.slot, c.epoch, c.v, {}};
  for (const SampleId& tid : c.rows) {
    if (const record::Enq* enq = controller_->FindPayload(tid); enq != nullptr && enq->payload_file >= 0)
      m.rows.push_back(*enq);
  }
  if (!m.rows.empty()) Send(c.worker, std::move(m));  // a later decision may have dropped them all
}

void ControllerProcess::Judge(const SampleId& tid, BatchRow& row) const {
  if (TrainsOnPairs(config_)) row.reward = tid.sample == 0 ? 1 : 0;
  if (config_.rl() == nullptr) return;
  row.reward = controller_->Reward(tid);
  if (config_.model.is_policy()) return;
  const auto& named = controller_->Rewards(tid);
  for (const RewardFunction& f : config_.reward.functions) {
    const auto it = std::ranges::find(named, f.name, [](const auto& entry) { return entry.first; });
    if (it != named.end()) row.components.push_back(it->second);
  }
}

}  // namespace tidepool::workers
