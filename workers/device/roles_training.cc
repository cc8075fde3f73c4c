// States of training, optimizer steps and checkpoints of roles_work.h.

#include <c10/util/Exception.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "core/base/host_name.h"
#include "core/base/loopback.h"
#include "core/base/real_file_system.h"
#include "core/device/cpu/kernels.h"
#include "core/observe/log.h"
#include "core/storage/checkpoint.h"
#include "workers/device/caught.h"
#include "workers/device/given_row.h"
#include "workers/device/roles_work.h"
#include "workers/device/row_outlines.h"

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

StatusOr<uint64_t> RolesWork::InitState(const down::InitState& c) {
  const auto operation = Begins("init_state", observe::kSystemSpan);
  AwaitFiles();
  if (!Withdraw()) return Unavailable("the old state is still being read");
  return Made({0}, roles_->InitState(c.shard));
}

StatusOr<uint64_t> RolesWork::RestoreState(const down::RestoreState& c) {
  const auto operation = Begins("restore_state", observe::kSystemSpan);
  AwaitFiles();
  if (!Withdraw()) return Unavailable("the old state is still being read");
  return Made(c.step, c.ckpt >= 0 ? RestoreFrom(c) : roles_->RestoreFromRecovery(c.step));
}

StatusOr<uint64_t> RolesWork::FetchState(const down::FetchState& c) {
  const auto operation = Begins("fetch_state", observe::kWeightsSpan);
  const auto start = Clock::now();
  AwaitFiles();
  if (!Withdraw()) return Unavailable("another newcomer still reads the old state here");
  const Status fetched = roles_->FetchState(c.address, credentials_, c.step);
  if (pacer_ && fetched.ok()) pacer_->Keep(start, pacer_->CopyState());
  return Made(c.step, fetched);
}

// --- the training group

Status RolesWork::FormGroup(const down::FormGroup& c) {
  const auto operation = Begins("form_group", observe::kSystemSpan);
  // The old one is left before a new one is met: a peer that still waits there learns of it.
  LeaveGroup();
  const Status folder = SharedBlock::MakeFolderOf(shared_folder_);
  const int64_t tensor = c.tensor;
  comm::GroupOptions options{.rendezvous = link_->MeetingAt(c.meeting),
                             .name = "tensor-" + std::to_string(c.rank / tensor),
                             .rank = static_cast<int>(c.rank % tensor),
                             .size = static_cast<int>(tensor),
                             .host = std::string(BareHost(host_)),
                             .shared_folder = folder.ok() ? shared_folder_ : "",
                             .timeout_s = c.timeout_s};
  const auto formed = [&](const char* of, const comm::Collective& group) {
    observe::Log(LogLevel::kInfo, "group_formed",
                 {{"of", of}, {"rank", group.rank()}, {"ranks", group.size()}, {"by", group.by()}});
    if (!folder.ok()) observe::Log(LogLevel::kWarn, "shared_memory", {{"text", folder.message()}});
  };
  if (tensor > 1) {
    TP_ASSIGN_OR_RETURN(tensor_group_, comm::MakeGroup(options));
    formed("model", *tensor_group_);
  }
  group_epoch_ = c.group_epoch;
  if (c.world == tensor) return OkStatus();
  options.name = "data-" + std::to_string(c.rank % tensor);
  options.rank = static_cast<int>(c.rank / tensor);
  options.size = static_cast<int>(c.world / tensor);
  auto data = comm::MakeGroup(options);
  if (!data.ok()) {
    LeaveGroup();
    return data.status();
  }
  group_ = *std::move(data);
  formed("batch", *group_);
  if (device_.make_sum != nullptr) {
    auto sum = device_.make_sum(options.rendezvous, options.rank, options.size,
                                std::chrono::milliseconds(static_cast<int64_t>(c.timeout_s * 1000)));
    if (!sum.ok()) {
      LeaveGroup();
      return sum.status();
    }
    group_->SumOnDevices(std::move(*sum));
  }
  const Status divided = FormExperts(c, options);
  if (!divided.ok()) LeaveGroup();
  return divided;
}

// Neighbours divide the experts, where they are divided; those with the same ones are in a group, too.
Status RolesWork::FormExperts(const down::FormGroup& c, comm::GroupOptions options) {
  const int64_t ep = config_.train.mesh.ep;
  if (ep == 1) return OkStatus();
  if (c.world % ep != 0)
    return Internal("train.mesh.ep " + std::to_string(ep) + " does not divide a group of " +
                    std::to_string(c.world));
  options.name = "experts-" + std::to_string(c.rank / ep);
  options.rank = static_cast<int>(c.rank % ep);
  options.size = static_cast<int>(ep);
  TP_ASSIGN_OR_RETURN(experts_group_, comm::MakeGroup(options));
  observe::Log(LogLevel::kInfo, "group_formed",
               {{"of", "experts"}, {"rank", options.rank}, {"ranks", ep}, {"by", experts_group_->by()}});
  if (c.world == ep) return OkStatus();
  options.name = "same-experts-" + std::to_string(c.rank % ep);
  options.rank = static_cast<int>(c.rank / ep);
  options.size = static_cast<int>(c.world / ep);
  TP_ASSIGN_OR_RETURN(same_experts_group_, comm::MakeGroup(options));
  return OkStatus();
}

// The others of the group see that this rank has left, and do not wait for it.
void RolesWork::LeaveGroup() {
  group_.reset();
  tensor_group_.reset();
  experts_group_.reset();
  same_experts_group_.reset();
  group_epoch_ = 0;
}

// --- steps

RolesWork::Trained RolesWork::Train(const down::Train& c) {
  const auto start = Clock::now();
  std::vector<BadRow> bad;
  int64_t read_bytes = 0;
  auto rows = ReadRows(c, bad, read_bytes);
  if (!rows.ok()) {
    // All ranks know of rows that are at fault. Of anything else the others learn when this one leaves.
    if (rows.status().code() != StatusCode::kInvalidArgument) LeaveGroup();
    return {.done = rows.status(), .bad = std::move(bad)};
  }
  AwaitFiles();  // it reads the weights that the optimizer is about to write
  const auto operation = Begins("train", observe::kTrainSpan);
  const StepNumber before = state_.step();
  const int64_t updates = roles_->updates();
  Trained out{Withdraw() ? TrainOn(c, std::move(*rows), start, bad)
                         : Unavailable("a newcomer still reads the state after 30 s")};
  if (out.done.ok()) out.done->read_bytes = read_bytes;
  out.bad = std::move(bad);
  out.changed = roles_->updates() != updates;
  if (out.done.ok() && out.done->finite) {
    Offer(c.step);
  } else if (!out.changed) {  // the error came before any update, or none was made of what is not finite
    Offer(before);
  }
  return out;
}

StatusOr<std::vector<BatchRow>> RolesWork::ReadRows(const down::Train& c, std::vector<BadRow>& bad,
                                                    int64_t& read_bytes) {
  const bool there = group_epoch_ == c.group_epoch && (c.world == c.tensor || group_ != nullptr) &&
                     (c.tensor == 1 || tensor_group_ != nullptr);
  if (c.world > 1 && !there)
    return FailedPrecondition("this worker is not in training group " + std::to_string(c.group_epoch));
  StatusOr<FetchedRows> fetched = FetchedRows();
  if (c.rank % c.tensor == 0) {
    pulse_.Begin("fetch_rows");
    fetched = FetchRows(c, read_bytes);
    if (c.tensor > 1) TP_RETURN_IF_ERROR(GiveRows(*tensor_group_, fetched));
  } else {
    pulse_.Begin("await_rows");
    constexpr double kMargin = 10;
    fetched = TakeRows(*tensor_group_, c.rank / c.tensor, Link::kListPatience.count() + kMargin,
                       [&] { return !called_off_(c.lease); });
  }
  TP_RETURN_IF_ERROR(fetched.status());
  if (!fetched->bad.empty()) {
    bad = std::move(fetched->bad);
    return InvalidArgument(Described(bad));
  }
  return std::move(fetched->rows);
}

StatusOr<FetchedRows> RolesWork::FetchRows(const down::Train& c, int64_t& read_bytes) {
  const int64_t rank = c.rank / c.tensor, ranks = c.world / c.tensor;  // that have rows of their own
  auto list = link_->FetchRows(c.lease, c.step, c.rank);
  // What cannot be fetched may be fetched later: no fault of the data's. The same holds for payloads.
  if (!list.ok()) return Unavailable(list.status().message());
  FetchedRows fetched{*std::move(list), {}};
  std::vector<BatchRow>& rows = fetched.rows;
  if (static_cast<int64_t>(rows.size()) != c.rows)
    return Unavailable("got " + std::to_string(rows.size()) + " of " + std::to_string(c.rows) + " rows");
  Enqs mine;
  int64_t bytes = 0;  // of all ranks
  for (const BatchRow& row : rows) {
    if (row.stored.payload_file < 0) continue;
    bytes += row.stored.payload_bytes;
    if (row.rank == rank) mine.push_back(&row.stored);
  }
  // A rank whose rows are sent to it comes later than one that has them here.
  const double patience_s = 60 + static_cast<double>(bytes) / (1 << 20);
  // Its own rows, then the outlines of the others'.
  if (c.tensor > 1) TP_RETURN_IF_ERROR(ExpectRows(*tensor_group_, 2 * patience_s));
  const auto go_on = [&] { return !called_off_(c.lease); };
  auto found = stored_->Read(
      mine, [&](const Enqs& which) { return link_->FetchPayloads(c.lease, c.step, c.rank, which, go_on); },
      go_on);
  if (found.status().code() == StatusCode::kAborted) return found.status();
  if (!found.ok()) return Unavailable(found.status().message());
  std::vector<std::string> said(static_cast<size_t>(ranks));
  said[static_cast<size_t>(rank)] = OutlinesOf(found->rows);
  if (ranks > 1) {
    pulse_.Begin("gather_outlines");
    TP_ASSIGN_OR_RETURN(said, group_->AllGather(said[static_cast<size_t>(rank)], "outlines", patience_s));
  }
  const Status taken = TakeOutlines(said, rank, rows, fetched.bad);
  if (!fetched.bad.empty()) return FetchedRows{.rows = {}, .bad = std::move(fetched.bad)};
  TP_RETURN_IF_ERROR(taken);
  size_t next = 0;
  for (BatchRow& row : rows)
    if (row.stored.payload_file >= 0 && row.rank == rank) row.trajectory = *std::move(found->rows[next++]);
  read_bytes = found->bytes;
  return fetched;
}

// --- columns of rows to come

void RolesWork::Preview(down::Preview c) {
  if (c.rows.empty()) return;
  previews_.push_back(std::move(c));
  // No more groups are expected at a time.
  if (static_cast<int64_t>(previews_.size()) > config_.train.groups_per_step) previews_.pop_front();
}

void RolesWork::PreviewPiece() {
  const auto operation = Begins("early_columns", observe::kTrainSpan);
  const auto start = Clock::now();
  Status done;
  if (!roles_->HasPreview()) {
    const down::Preview next = std::move(previews_.front());
    previews_.pop_front();
    auto rows = ReadPreview(next);
    done = rows.ok() ? roles_->Preview(*std::move(rows), next.v) : rows.status();
  } else {
    const StatusOr<train::Scored> scored = roles_->PreviewPiece();
    done = scored.status();
    if (pacer_ && scored.ok()) pacer_->Keep(start, pacer_->Score(scored->tokens, scored->squares));
  }
  early_s_ += SecondsSince(start);
  // The step computes them, and says what is wrong.
  if (!done.ok()) observe::Log(LogLevel::kDebug, "early_columns", {{"text", done.message()}});
}

StatusOr<std::vector<BatchRow>> RolesWork::ReadPreview(const down::Preview& c) {
  Enqs which;
  for (const record::Enq& enq : c.rows) which.push_back(&enq);
  // A rank whose host does not see the files is sent its rows once, for their step.
  TP_ASSIGN_OR_RETURN(
      StoredRows::Found found,
      stored_->Read(
          which, [](const Enqs&) { return Unavailable("the payload files are not on this host"); },
          [] { return true; }));
  std::vector<BatchRow> rows;
  for (size_t i = 0; i < found.rows.size(); ++i) {
    TP_RETURN_IF_ERROR(found.rows[i].status());
    rows.push_back({.gid = GroupId{0}, .stored = c.rows[i], .trajectory = *std::move(found.rows[i])});
  }
  return rows;
}

// --- changes of phases

void RolesWork::CountMoved(int64_t bytes, int64_t least, Clock::time_point since) {
  change_.bytes += bytes;
  change_.bound_bytes += least;
  change_.seconds += SecondsSince(since);
}

RolesWork::WeightTraffic RolesWork::GatheredWeights() const {
  const auto of = [](const comm::Collective* group) {
    return group == nullptr ? comm::Collective::Gathered() : group->gathered("weights");
  };
  return {.made = of(group_.get()),
          .parts = of(tensor_group_ != nullptr ? tensor_group_.get() : experts_group_.get()),
          .updates = roles_->updates()};
}

up::PhaseChange RolesWork::TakeChange(const WeightTraffic& before) {
  up::PhaseChange change = std::exchange(change_, {});
  if (roles_->rollout() == nullptr && roles_->follower() == nullptr) return {};
  change.generates = true;
  const WeightTraffic now = GatheredWeights();
  // What comes after each update but the last one is for the update that follows.
  const int64_t updates = std::max<int64_t>(1, now.updates - before.updates);
  change.bytes += (now.made.bytes - before.made.bytes) / updates + now.parts.bytes - before.parts.bytes;
  change.seconds += (now.made.seconds - before.made.seconds) / static_cast<double>(updates) +
                    now.parts.seconds - before.parts.seconds;
  change.bound_bytes += roles_->least_moved_bytes();
  return change;
}

StatusOr<up::TrainDone> RolesWork::TrainOn(const down::Train& c, std::vector<BatchRow> rows,
                                           Clock::time_point start, std::vector<BadRow>& bad) {
  const auto shape = pacer_ ? ShareOf(rows) : std::pair<double, double>();
  up::TrainDone done;
  std::set<SampleId> tids;
  for (const BatchRow& row : rows) {
    tids.insert(row.stored.tid);
    // Of the ranks that are given the same rows one says so.
    if (!row.trajectory.is_outline() && c.rank % c.tensor == 0) done.rows.push_back(Given(row));
  }
  const auto gathered = GatheredWeights();
  std::erase_if(previews_, [&](const down::Preview& p) { return tids.contains(p.rows.front().tid); });
  StatusOr<TrainOutcome> outcome =
      roles_->Train(c.step, c.v, std::move(rows),
                    {[&](const std::string& op) {
                       pulse_.Begin(op);
                       return !called_off_(c.lease);
                     },
                     [&](const std::string& op) {
                       pulse_.Begin(op);
                       return !evaluation_ended_(c.lease);
                     }},
                    {.data = c.world > c.tensor ? group_.get() : nullptr,
                     .parts = c.tensor > 1 ? tensor_group_.get() : experts_group_.get(),
                     .same = same_experts_group_.get()},
                    bad);
  if (!outcome.ok()) {
    if (c.world > 1) LeaveGroup();
    return outcome.status();
  }
  if (pacer_) {  // the result stands; a step that is called off now is answered with it
    auto beat = Clock::now();
    const double paced = pacer_->TrainStep(shape.first, shape.second, c.world) +
                         pacer_->Score(outcome->scored.tokens, outcome->scored.squares);
    pacer_->Keep(start, paced, [&] {
      if (Clock::now() - beat > std::chrono::milliseconds(200)) {
        beat = Clock::now();
        pulse_.Begin("train, paced");
      }
      return called_off_(c.lease);
    });
  }
  done.change = TakeChange(gathered);
  if (done.change.generates)
    observe::Log(LogLevel::kDebug, "phase_change",
                 {{"step", c.step.value},
                  {"bytes", done.change.bytes},
                  {"bound_bytes", done.change.bound_bytes},
                  {"seconds", done.change.seconds}});
  done.finite = outcome->finite;
  done.weights_digest = outcome->weights_digest;
  done.replay = outcome->replay;
  done.metrics = std::move(outcome->metrics);
  if (early_s_ > 0) done.metrics.emplace_back(up::kColumnsEarly, std::exchange(early_s_, 0));
  done.seconds = SecondsSince(start);
  return done;
}

Status RolesWork::CopyRecovery(StepNumber step) {
  const auto operation = Begins("recovery_copy", observe::kCheckpointSpan);
  if (roles_->parked()) AwaitFiles();  // it may be copying the files that are read now
  return roles_->CopyRecovery(step);
}

// --- checkpoints

// With a store the checkpoint's folder gets none of the files. They are written beside it first: the state is
// free for the next step as soon as they are on the disk, however long the store takes.
void RolesWork::WriteCheckpoint(const down::WriteCheckpoint& c) {
  FinishCheckpoint();  // of one that the controller has given up
  if (const Status ready = roles_->PrepareCheckpoint(); !ready.ok())
    return Say(up::CheckpointFiles{.ckpt = c.ckpt, .error = ready.message()});
  std::promise<void> written;
  written_ = written.get_future();
  checkpoint_ = std::jthread([this, c, written = std::move(written)](const std::stop_token& stop) mutable {
    const auto start = Clock::now();
    up::CheckpointFiles done;
    done.instruction_set = device_.gpu != nullptr ? device_.gpu->name() : Name(device::BestIsa());
    done.ckpt = c.ckpt;
    storage::Staging staging;  // until this has ended
    // This is the thread's door: a trainer whose device has failed throws here, and in its next step.
    const auto or_status = [](auto&& body) -> decltype(body()) {
      try {
        return Caught("checkpoint", body);
      } catch (const c10::OutOfMemoryError& e) {
        return ResourceExhausted(std::string("checkpoint: ") + e.what_without_backtrace());
      } catch (const device::DeviceFailed& e) {
        return Internal(std::string("checkpoint: ") + e.what());
      }
    };
    const auto folder = or_status([&] { return WriteFiles(c, staging, done); });
    const auto digest = roles_->WeightsDigest();
    if (digest.ok()) done.weights_digest = *digest;
    written.set_value();
    Status status = folder.status();
    if (folder.ok() && *folder != c.dir)
      status = or_status([&] { return PutFiles(c.dir, *folder, stop, done); });
    if (!status.ok()) done.error = status.message();
    done.seconds = SecondsSince(start);
    Say(std::move(done));
  });
}

// Where the files are now: in `dir`, or in a staging folder where they belong into a store.
StatusOr<std::string> RolesWork::WriteFiles(const down::WriteCheckpoint& c, storage::Staging& staging,
                                            up::CheckpointFiles& done) {
  RealFileSystem disk;
  const std::string& dir = c.dir;
  TP_ASSIGN_OR_RETURN(const auto place, storage::ReadStorePlace(disk, dir));
  std::string folder = dir;
  if (place) {
    TP_ASSIGN_OR_RETURN(staging, storage::MakeStaging(disk, config_.checkpoint.staging_dir, dir, *place));
    folder = staging.dir;
  }
  auto files = roles_->WriteCheckpoint(folder, c.part);
  if (!files.ok()) return files.status().At("host " + HostName());
  done.files = *std::move(files);
  std::erase(done.files, storage::kStagingLock);
  return folder;
}

Status RolesWork::PutFiles(const std::string& dir, const std::string& folder, const std::stop_token& stop,
                           up::CheckpointFiles& done) {
  RealFileSystem disk;
  TP_ASSIGN_OR_RETURN(const auto place, storage::ReadStorePlace(disk, dir));
  TP_ASSIGN_OR_RETURN(const auto store, storage::OpenStore(disk, *place));
  auto put = storage::PutFiles(*store, disk, folder, std::exchange(done.files, {}),
                               [&] { return !stop.stop_requested(); });
  (void)disk.RemoveTree(folder);  // what stays is removed with the folder of this try
  TP_ASSIGN_OR_RETURN(done.stored, std::move(put));
  return OkStatus();
}

Status RolesWork::RestoreFrom(const down::RestoreState& c) {
  RealFileSystem disk;
  const std::string& dir = c.dir;
  TP_ASSIGN_OR_RETURN(const auto place, storage::ReadStorePlace(disk, dir));
  if (!place) return roles_->RestoreFromCheckpoint(dir, c.step, c.shard);
  // Of this host, or of the store: the checkpoint may be as good as ever, so nobody is to reject it. Only
  // files that are there and are not those of the manifest are its own fault.
  const auto out_of_reach = [](const Status& why) {
    return Status(StatusCode::kDeadlineExceeded, why.message());
  };
  const auto staging = storage::MakeStaging(disk, config_.checkpoint.staging_dir, dir, *place);
  if (!staging.ok()) return out_of_reach(staging.status());
  const auto folder = storage::FolderWithFiles(disk, dir, "", staging->dir, [] { return true; });
  Status restored = folder.ok() ? roles_->RestoreFromCheckpoint(*folder, c.step, c.shard) : folder.status();
  if (storage::IsOfStore(folder.status()) || folder.status().code() == StatusCode::kNotFound)
    restored = out_of_reach(folder.status());
  (void)disk.RemoveTree(staging->dir);  // as above
  return restored;
}

void RolesWork::AwaitFiles() {
  // waits: for the disk; the controller replaces a worker that passes the deadline of its command
  if (written_.valid()) written_.wait();
}

void RolesWork::FinishCheckpoint() {
  checkpoint_.request_stop();
  // waits: as above, and for one request to the store, which has a deadline
  if (checkpoint_.joinable()) checkpoint_.join();
}

Status RolesWork::SaveFinal(const down::SaveFinal& c) {
  AwaitFiles();
  const auto operation = Begins("save_final", observe::kCheckpointSpan);
  return roles_->SaveModel(c.dir);
}

}  // namespace tidepool::workers
