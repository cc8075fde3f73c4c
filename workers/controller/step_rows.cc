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
  for (const std::vector<SampleId>& group : c.share->groups) {
    step_.tids.insert(step_.tids.end(), group.begin(), group.end());
    step_.group_of.insert(step_.group_of.end(), group.size(), step_.groups++);
    step_.rank_of.insert(step_.rank_of.end(), group.size(), c.rank / c.tensor);
  }
  step_.members.emplace_back(c.worker, down::Train{c.slot, c.epoch, c.lease, c.step, c.v, c.total_rows,
                                                   c.group_epoch, c.rank, c.world, c.tensor});
  if (static_cast<int64_t>(step_.members.size()) < c.world) return;
  Open();
}

void StepRows::Open() {
  const Step step = std::exchange(step_, {});
  std::vector<BatchRow> rows;
  for (size_t i = 0; i < step.tids.size(); ++i) {
    StatusOr<BatchRow> row = Row(step.tids[i]);
    if (!row.ok())
      return ends_.feed(scheduler::event::PayloadLost{step.lease, step.tids[i], row.status().message()});
    row->gid = {step.group_of[i]};
    row->rank = step.rank_of[i];
    row->without_loss = step.stale;
    ends_.judge(step.tids[i], *row);
    rows.push_back(std::move(*row));
  }
  ends_.opened(step.number, rows);
  std::vector<OpenLease::Member> members(step.members.size());
  for (const auto& [worker, message] : step.members) {
    auto list = std::make_shared<std::vector<BatchRow>>(rows);
    std::shared_ptr<const sample::Segment> whole;  // the prompt of the row before, of this rank's `group`
    int64_t group = -1;
    for (BatchRow& row : *list) {
      if (row.stored.payload_file >= 0) continue;
      if (row.rank != message.rank / message.tensor) {
        row.trajectory = row.trajectory.Outline();
        continue;
      }
      // Samples of a group have one prompt: it goes over the wire once.
      auto& prompt = row.trajectory.prompt;
      row.same_prompt = whole != nullptr && prompt != nullptr && row.gid.value == group && *whole == *prompt;
      group = row.gid.value;
      whole = row.same_prompt ? std::exchange(prompt, nullptr) : prompt;
    }
    members[static_cast<size_t>(message.rank)] = {worker.inc, std::move(list)};
  }
  open_.Open(step.lease, step.number, std::move(members));
  for (const auto& [worker, message] : step.members) ends_.send(worker, message);
}

StatusOr<BatchRow> StepRows::Row(const SampleId& tid) const {
  const record::Enq* enq = controller_.FindPayload(tid);
  if (enq == nullptr) return DataLoss("there is no payload of " + ToString(tid));
  BatchRow row;
  row.stored = *enq;
  if (enq->payload_file >= 0) return row;
  TP_ASSIGN_OR_RETURN(row.trajectory, ends_.taught(tid));
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
