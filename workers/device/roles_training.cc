// States of training, optimizer steps and checkpoints of roles_work.h.

#include <algorithm>

#include "core/base/loopback.h"
#include "workers/device/given_row.h"
#include "workers/device/roles_work.h"
#include "workers/device/torch_threads.h"

namespace tidepool::workers {
namespace {

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Tokens of this rank's rows, and the sum of the squares of their lengths.
std::pair<double, double> ShareOf(const std::vector<BatchRow>& rows) {
  double tokens = 0, squares = 0;
  for (const BatchRow& row : rows) {
    if (row.trajectory.is_outline()) continue;
    const auto n =
        static_cast<double>(row.trajectory.prompt_size() + static_cast<int64_t>(row.trajectory.Ids().size()));
    tokens += n;
    squares += n * n;
  }
  return {tokens, squares};
}

}  // namespace

// --- states

// The state of `step` is whole and stays so until Withdraw.
void RolesWork::Offer(StepNumber step) {
  if (auto parts = roles_->StateParts(); parts.ok()) state_.Offer(step, std::move(*parts));
}

StatusOr<uint64_t> RolesWork::Made(StepNumber step, const Status& status) {
  TP_RETURN_IF_ERROR(status);
  Offer(step);
  return roles_->WeightsDigest();
}

StatusOr<uint64_t> RolesWork::InitState() {
  const auto operation = Begins("init_state", observe::kSystemSpan);
  FinishCheckpoint();
  if (!Withdraw()) return Unavailable("the old state is still being read");
  return Made({0}, roles_->InitState());
}

StatusOr<uint64_t> RolesWork::RestoreState(const down::RestoreState& c) {
  const auto operation = Begins("restore_state", observe::kSystemSpan);
  FinishCheckpoint();
  if (!Withdraw()) return Unavailable("the old state is still being read");
  return Made(c.step, c.ckpt >= 0 ? roles_->RestoreFromCheckpoint(c.dir, c.step)
                                  : roles_->RestoreFromRecovery(c.step));
}

StatusOr<uint64_t> RolesWork::FetchState(const down::FetchState& c) {
  const auto operation = Begins("fetch_state", observe::kWeightsSpan);
  const auto start = Clock::now();
  FinishCheckpoint();
  if (!Withdraw()) return Unavailable("another newcomer still reads the old state here");
  const Status fetched = roles_->FetchState(c.address, credentials_, c.step);
  if (pacer_ && fetched.ok()) pacer_->Keep(start, pacer_->CopyState());
  return Made(c.step, fetched);
}

// --- the training group

Status RolesWork::FormGroup(const down::FormGroup& c) {
  const auto operation = Begins("form_group", observe::kSystemSpan);
  // The old sockets close before new ones are opened: a peer that still waits there learns of it.
  LeaveGroup();
  TP_ASSIGN_OR_RETURN(group_, comm::MakeGlooGroup({.store = c.store,
                                                   .rank = static_cast<int>(c.rank),
                                                   .size = static_cast<int>(c.world),
                                                   .host = std::string(BareHost(host_)),
                                                   .timeout_s = c.timeout_s}));
  if (device_.make_sum != nullptr) {
    auto sum = device_.make_sum(c.store + ".nccl", static_cast<int>(c.rank), static_cast<int>(c.world),
                                std::chrono::milliseconds(static_cast<int64_t>(c.timeout_s * 1000)));
    if (!sum.ok()) {
      LeaveGroup();
      return sum.status();
    }
    group_->SumOnDevices(std::move(*sum));
  }
  group_epoch_ = c.group_epoch;
  return OkStatus();
}

// The others of the group see the sockets close and do not wait for this rank.
void RolesWork::LeaveGroup() {
  group_.reset();
  group_epoch_ = 0;
}

// --- steps

RolesWork::Trained RolesWork::Train(const down::Train& c) {
  const auto start = Clock::now();
  pulse_.Begin("fetch_rows");
  auto rows = link_->FetchRows(c.lease, c.step, c.rank);
  // Data that cannot be fetched may be fetched later: no fault of the data's.
  if (!rows.ok()) return {Unavailable(rows.status().message())};
  if (static_cast<int64_t>(rows->size()) != c.rows)
    return {Unavailable("got " + std::to_string(rows->size()) + " of " + std::to_string(c.rows) + " rows")};
  if (c.world > 1 && (group_ == nullptr || group_epoch_ != c.group_epoch)) {
    return {FailedPrecondition("this worker is not in training group " + std::to_string(c.group_epoch))};
  }
  FinishCheckpoint();  // it reads the weights that the optimizer is about to write
  const auto operation = Begins("train", observe::kTrainSpan);
  const StepNumber before = state_.step();
  const int64_t updates = roles_->updates();
  Trained out{Withdraw() ? TrainOn(c, std::move(*rows), start)
                         : Unavailable("a newcomer still reads the state after 30 s")};
  out.changed = roles_->updates() != updates;
  if (out.done.ok()) {
    Offer(c.step);
  } else if (!out.changed) {  // the error came before any update
    Offer(before);
  }
  return out;
}

StatusOr<up::TrainDone> RolesWork::TrainOn(const down::Train& c, std::vector<BatchRow> rows,
                                           Clock::time_point start) {
  const auto shape = pacer_ ? ShareOf(rows) : std::pair<double, double>();
  up::TrainDone done;
  for (const BatchRow& row : rows)
    if (!row.trajectory.is_outline()) done.rows.push_back(Given(row));
  StatusOr<TrainOutcome> outcome = roles_->Train(c.step, c.v, std::move(rows),
                                                 {[&](const std::string& op) {
                                                    pulse_.Begin(op);
                                                    return !called_off_(c.lease);
                                                  },
                                                  [&](const std::string& op) {
                                                    pulse_.Begin(op);
                                                    return !evaluation_ended_(c.lease);
                                                  }},
                                                 c.world > 1 ? group_.get() : nullptr);
  if (!outcome.ok()) {
    if (c.world > 1) LeaveGroup();
    return outcome.status();
  }
  if (pacer_) {  // the result stands; a step that is called off now is answered with it
    auto beat = Clock::now();
    pacer_->Keep(start, pacer_->TrainStep(shape.first, shape.second, c.world), [&] {
      if (Clock::now() - beat > std::chrono::milliseconds(200)) {
        beat = Clock::now();
        pulse_.Begin("train, paced");
      }
      return called_off_(c.lease);
    });
  }
  done.finite = outcome->finite;
  done.weights_digest = outcome->weights_digest;
  done.metrics = std::move(outcome->metrics);
  done.seconds = SecondsSince(start);
  return done;
}

Status RolesWork::CopyRecovery(StepNumber step) {
  const auto operation = Begins("recovery_copy", observe::kCheckpointSpan);
  if (roles_->parked()) FinishCheckpoint();  // it may be copying the files that are read now
  return roles_->CopyRecovery(step);
}

// --- checkpoints

void RolesWork::WriteCheckpoint(const down::WriteCheckpoint& c) {
  FinishCheckpoint();
  if (const Status ready = roles_->PrepareCheckpoint(); !ready.ok())
    return Say(up::CheckpointFiles{.ckpt = c.ckpt, .error = ready.message()});
  checkpoint_ = std::jthread([this, c](std::stop_token) {
    const auto start = Clock::now();
    up::CheckpointFiles done;
    done.instruction_set = TorchInstructionSet();
    done.ckpt = c.ckpt;
    const auto files = roles_->WriteCheckpoint(c.dir);
    if (files.ok())
      done.files = *files;
    else
      done.error = files.status().message();
    const auto digest = roles_->WeightsDigest();
    if (digest.ok()) done.weights_digest = *digest;
    done.seconds = SecondsSince(start);
    Say(std::move(done));
  });
}

void RolesWork::FinishCheckpoint() {
  // waits: for the disk; the controller replaces a worker that passes the deadline of its command
  if (checkpoint_.joinable()) checkpoint_.join();
}

Status RolesWork::SaveFinal(const down::SaveFinal& c) {
  FinishCheckpoint();
  const auto operation = Begins("save_final", observe::kCheckpointSpan);
  return roles_->SaveModel(c.dir);
}

}  // namespace tidepool::workers
