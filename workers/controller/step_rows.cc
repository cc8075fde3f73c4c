#include "workers/controller/step_rows.h"

#include <algorithm>
#include <memory>

#include "core/sample/codec.h"

namespace tidepool::workers {

void StepRows::Add(const scheduler::command::Train& c) {
  if (step_.lease != c.lease) {
    step_ = {};
    step_.lease = c.lease;
    step_.number = c.step;
    step_.stale = c.share->stale;
  }
  std::vector<int64_t> groups;
  for (const std::vector<SampleId>& group : c.share->groups) {
    groups.push_back(step_.groups++);
    step_.tids.insert(step_.tids.end(), group.begin(), group.end());
    step_.group_of.insert(step_.group_of.end(), group.size(), groups.back());
  }
  step_.members.emplace_back(c.worker, down::Train{c.slot, c.epoch, c.lease, c.step, c.v, c.total_rows,
                                                   c.group_epoch, c.rank, c.world, std::move(groups)});
  if (static_cast<int64_t>(step_.members.size()) < c.world) return;
  ends_.read(step_.tids, [this, lease = c.lease](Trajectories recorded) {
    if (step_.lease == lease) Open(std::move(recorded));  // else the step was called off
  });
}

void StepRows::Open(Trajectories recorded) {
  const Step step = std::exchange(step_, {});
  auto rows = std::make_shared<std::vector<BatchRow>>();
  for (size_t i = 0; i < step.tids.size(); ++i) {
    StatusOr<BatchRow> row = Row(step.tids[i], std::move(recorded[i]));
    if (!row.ok())
      return ends_.feed(scheduler::event::PayloadLost{step.lease, step.tids[i], row.status().message()});
    row->gid = {step.group_of[i]};
    for (const auto& [version, tokens] : row->trajectory.VersionsWithLoss()) {
      if (std::ranges::find(step.stale, version) != step.stale.end()) row->without_loss.push_back(version);
    }
    ends_.judge(step.tids[i], *row);
    rows->push_back(std::move(*row));
  }
  std::vector<Incarnation> members;
  for (const auto& [worker, message] : step.members) members.push_back(worker.inc);
  open_.Open(step.lease, step.number, rows, std::move(members));
  ends_.opened(step.number, *rows);
  for (const auto& [worker, message] : step.members) ends_.send(worker, message);
}

// What is trained is read from what is durable, and has to be what its ENQ says.
StatusOr<BatchRow> StepRows::Row(const SampleId& tid, StatusOr<sample::Trajectory> recorded) const {
  BatchRow row;
  TP_ASSIGN_OR_RETURN(row.trajectory, std::move(recorded));
  const record::Enq* enq = controller_.FindPayload(tid);
  if (enq == nullptr) return DataLoss("there is no payload of " + ToString(tid));
  if (sample::Digest(row.trajectory) != enq->digest || row.trajectory.size() != enq->response_len)
    return DataLoss("the row of " + ToString(tid) + " is not what its ENQ says");
  return row;
}

void StepRows::Remember(const JournalRecord& r) {
  if (!std::holds_alternative<record::StepCommit>(r) && !std::holds_alternative<record::Unlease>(r)) return;
  step_ = {};
  open_.Drop();
}

}  // namespace tidepool::workers
