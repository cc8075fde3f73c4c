#include <map>
#include <set>
#include <utility>

#include "scheduler/best_checkpoint.h"
#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {

Checkpoints::Checkpoints(Machines& all)
    : Machine(all),
      schedule_({.every_steps = options_.checkpoint.every_steps, .keep = options_.checkpoint.keep}),
      best_(options_.checkpoint.best),
      best_asked_(best_) {}

bool Checkpoints::Due() const {
  const bool must = facts_.StepsDone() || all_.life.stopping();
  return schedule_.Due(state_.step(), must, state_.checkpoints(), now_);
}

void Checkpoints::Advance() {
  // An earlier life may have recorded an evaluation and not come further.
  if (all_.trainer.ready() && !std::exchange(looked_for_best_, true)) KeepBest();
  if (all_.life.over() || writing_ || !all_.trainer.ready() || all_.steps.open() || !Due()) return;
  if (!all_.trainer.Whole()) return;
  if (all_.life.stopping() && !all_.life.MayCheckpoint()) return;
  trouble_.clear();
  writing_ = Writing{state_.next_checkpoint(), state_.step(), state_.next_lsn()};
  out_.Record(record::CheckpointBegin{writing_->ckpt, writing_->step});
  std::vector<SlotRef> others;
  if (options_.fleet.parted()) {
    // Who has something that the leader and those before have not.
    std::set<Shard> written{all_.slots.ShardOf(all_.trainer.leader().slot)};
    for (const SlotId slot : all_.slots.Trainers())
      if (written.insert(all_.slots.ShardOf(slot)).second) others.push_back(fleet_.Ref(slot));
  }
  out_.Do(command::WriteCheckpoint{all_.trainer.leader().worker, all_.trainer.leader().slot, writing_->ckpt,
                                   writing_->step, state_.version(), std::move(others)});
  waits_.Begin({WaitKind::kCheckpoint, 0},
               {all_.trainer.leader().worker, now_, In(options_.fleet.start_timeout_s),
                "checkpoint " + std::to_string(writing_->ckpt)});
}

void Checkpoints::On(const event::CheckpointWritten& e) {
  if (!writing_ || e.ckpt != writing_->ckpt) {
    all_.life.Refuse();
    return;
  }
  if (e.weights_digest != 0 && all_.trainer.digest() != 0 && e.weights_digest != all_.trainer.digest()) {
    On(event::CheckpointFailed{e.ckpt, "its weights differ from the trainer's"});
    return;
  }
  all_.life.Moved();
  waits_.End({WaitKind::kCheckpoint, 0});
  const Writing w = *writing_;
  writing_.reset();
  schedule_.Written();
  out_.Record(record::CheckpointCommit{w.ckpt, w.step, w.cut, e.manifest_digest, all_.trainer.digest()});
  KeepBest();
  std::set<StepNumber> awaited;
  if (!options_.checkpoint.keep_best.empty()) awaited = all_.evaluations.current().Steps();
  for (const int64_t id : schedule_.ToDelete(state_.checkpoints(), awaited)) {
    const StepNumber step = state_.checkpoints().at(id).step;
    out_.Record(record::CheckpointDelete{id});
    out_.Do(command::DeleteCheckpoint{id, step});
  }
  // SNAPSHOT records the digest of the state. A restart whose replay gives another digest at this record is
  // refused.
  out_.Record(record::Snapshot{state_.Digest()});
  all_.samples.DiscardTrained(w.step);
}

void Checkpoints::KeepBest() {
  const std::string& metric = options_.checkpoint.keep_best;
  if (metric.empty()) return;
  // The model of a checkpoint that is gone can be kept no more: it may have gone before keep_best was asked
  // for, or best/ was removed.
  std::map<StepNumber, int64_t> there;
  std::set<StepNumber> steps;
  for (const auto& [id, c] : state_.checkpoints()) there[c.step] = id, steps.insert(c.step);
  const auto best = FindBest(state_.evals(), state_.held_out(), steps, metric);
  if (!best || (best_asked_ && !IsBetter(*best, *best_asked_, metric))) return;
  best_asked_ = best;
  out_.Do(command::KeepBest{there.at(best->step), best->step, best->value});
}

void Checkpoints::On(const event::BestKept& e) {
  if (e.error.empty()) {
    best_ = {e.step, e.value};
  } else if (best_asked_ == BestCheckpoint{e.step, e.value}) {
    best_asked_ = best_;  // the next look asks for it again
  }
}

void Checkpoints::On(const event::CheckpointFailed& e) {
  if (!writing_ || e.ckpt != writing_->ckpt) {
    all_.life.Refuse();
    return;
  }
  all_.life.Moved();
  waits_.End({WaitKind::kCheckpoint, 0});
  const StepNumber step = writing_->step;
  writing_.reset();
  trouble_ = "it could not be written: " + e.why;
  out_.Warn("checkpoint_failed",
            "checkpoint " + std::to_string(e.ckpt) + " of step " + std::to_string(step.value) +
                " could not be written: " + e.why,
            {{"ckpt", std::to_string(e.ckpt)}, {"step", std::to_string(step.value)}});
  if (schedule_.Failed(step, now_)) {
    all_.life.Fail(
        "checkpoint", "controller",
        std::to_string(schedule_.failures()) + " checkpoints in a row could not be written: " + e.why);
  }
}

void Checkpoints::TimedOut(const std::string& why) {
  if (writing_) On(event::CheckpointFailed{writing_->ckpt, why});
}

void Checkpoints::PartLost(const std::string& why) {
  trouble_ = "the worker that held the trainer's state is gone: " + why;
  if (!writing_) return;
  out_.Warn("checkpoint_abandoned",
            "checkpoint " + std::to_string(writing_->ckpt) + " is given up: the worker that wrote it is gone",
            {{"ckpt", std::to_string(writing_->ckpt)}});
  writing_.reset();
  waits_.End({WaitKind::kCheckpoint, 0});
}

void Checkpoints::LeaderLost(const WorkerRef& leader, const std::string& why) {
  PartLost(why);
  final_saving_ = false;
  waits_.End({WaitKind::kFinal, 0});
}

void Checkpoints::SaveFinal() {
  final_saving_ = true;
  out_.Do(command::SaveFinal{all_.trainer.leader().worker, all_.trainer.leader().slot});
  waits_.Begin({WaitKind::kFinal, 0},
               {all_.trainer.leader().worker, now_, In(options_.fleet.start_timeout_s), ""});
}

void Checkpoints::On(const event::FinalSaved& e) {
  if (!final_saving_) {
    all_.life.Refuse();
    return;
  }
  all_.life.Moved();
  waits_.End({WaitKind::kFinal, 0});
  final_saving_ = false;
  if (!e.error.empty()) {
    all_.life.Fail("save_final", "controller", "final/ could not be written: " + e.error);
    return;
  }
  final_saved_ = true;
}

}  // namespace tidepool::scheduler
