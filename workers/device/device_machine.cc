#include "workers/device/device_machine.h"

#include <algorithm>
#include <utility>

#include "workers/net/exit_code.h"

namespace tidepool::workers {
namespace {

// With 48 layers of 8 experts recorded a token takes 440 bytes.
constexpr int64_t kTokensTogether = 2048;

using scheduler::event::ChunkEnd;

std::string ErrorOf(const Status& status) { return status.ok() ? "" : status.message(); }

}  // namespace

void DeviceMachine::Work(const std::function<int64_t()>& newest) {
  while (!waiting_.empty() && !exit_code_) {
    Command command = std::move(waiting_.front());
    waiting_.pop_front();
    On(command, newest());
  }
  SayLoss();
  if (reading_.empty() || exit_code_) return;
  for (const DeviceWork::WasRead& read : work_->TakeRead()) GoOn(read);
}

void DeviceMachine::SayLoss() {
  if (loss_said_ || exit_code_ || work_->EngineLost().empty()) return;
  loss_said_ = true;
  SayTokens();
  work_->Say(up::EngineLost{.worker = {}, .slot = slot_, .why = work_->EngineLost()});
}

void DeviceMachine::On(Command& command, int64_t newest) {
  SayTokens();  // they go before whatever it is answered with
  if (exit_code_) return;
  if (command.ctl_epoch < newest) {  // its controller has a successor
    ++refused_;
    return;
  }
  const bool begins = std::holds_alternative<down::Attached>(command.body) ||
                      std::holds_alternative<down::Welcome>(command.body);
  if (!begins && !inc_.valid()) {
    ++refused_;
    return;
  }
  std::visit([this](auto& c) { On(c); }, command.body);
}

// --- life

// A controller has begun that knows nothing of this process: what was done for earlier ones is over, and it
// is told what is here. Nothing changes here before it has decided.
void DeviceMachine::On(const down::Attached& attached) {
  work_->FinishCheckpoint();
  work_->EndPull();
  work_->Begin(attached.ctl_epoch);
  loss_said_ = true;
  up::Offer frame;
  if (inc_.valid()) {
    if (const auto digest = work_->WeightsDigest(); digest.ok())
      frame.slots.push_back({slot_, holds_, *digest, work_->StateStep(), *digest, work_->StateShard()});
    if (done_ && !frame.slots.empty() && done_->step == work_->StateStep())
      frame.slots.back().done = {*done_};
    reading_.clear();
    for (const auto& [tid, att] : held_.TakePartial()) work_->Cancel(tid, att);
    for (const scheduler::event::OfferedChunk& chunk : held_.Offered(slot_)) {
      if (frame.chunks.size() == up::kOfferedChunks) work_->Say(std::exchange(frame, {}));
      frame.chunks.push_back(chunk);
    }
  }
  frame.last = true;
  work_->Say(std::move(frame));
}

void DeviceMachine::On(const down::Welcome& welcome) {
  const bool anew = welcome.inc != inc_;
  if (anew) {  // the controller takes this process for a new one, whatever it was before
    work_->ForgetAll();
    held_.Clear();
    reading_.clear();
    role_ = Role::kNone;
    epoch_ = {};
    admitted_ = holds_ = {};
    inc_ = welcome.inc;
    slot_ = welcome.slots.size() == 1 ? welcome.slots.front() : SlotId{};
  }
  if (const Status welcomed = work_->Welcomed(welcome, anew); !welcomed.ok()) {
    exit_code_ = ExitCodeOf(welcomed);
    return;
  }
  loss_said_ = false;
  together_ = std::chrono::milliseconds(welcome.together_ms);
  held_.SetKept(work_->OutlivesController());
  if (work_->SeesRun()) work_->Say(up::SeesRun{});
}

// --- the slot

bool DeviceMachine::Mine(SlotId slot) {
  if (slot != slot_) ++refused_;
  return slot == slot_;
}

// True if the command is about the slot as it is now.
bool DeviceMachine::Current(SlotId slot, SlotEpoch epoch) {
  if (slot == slot_ && epoch == epoch_) return true;
  ++refused_;
  return false;
}

// True if the command is about the slot as it is now, or begins its next epoch.
bool DeviceMachine::Begins(SlotId slot, SlotEpoch epoch) {
  if (slot != slot_ || epoch < epoch_) {
    ++refused_;
    return false;
  }
  epoch_ = epoch;
  return true;
}

void DeviceMachine::On(const down::Drain& c) {
  if (!Begins(c.slot, c.epoch)) return;
  up::StepTokens tokens;
  for (const auto& [tid, att] : work_->Drain())
    held_.Say(tokens.chunks.emplace_back(up::ChunkDelta{tid, att, {}, true, ChunkEnd::kDrained, ""}));
  for (const auto& [key, chunk] : std::exchange(reading_, {})) {
    held_.Absent(chunk);
    held_.Say(
        tokens.chunks.emplace_back(up::ChunkDelta{key.first, key.second, {}, true, ChunkEnd::kDrained, ""}));
  }
  Say(std::move(tokens));
  work_->Say(up::Drained{.slot = c.slot, .epoch = c.epoch});
}

void DeviceMachine::On(const down::Release& c) {
  if (!Begins(c.slot, c.epoch)) return;
  const int64_t free = work_->Release(std::exchange(role_, Role::kNone), c.need_bytes);
  work_->Say(up::Released{.slot = c.slot, .epoch = c.epoch, .free_bytes = free});
}

void DeviceMachine::On(const down::Grant& c) {
  if (!Begins(c.slot, c.epoch)) return;
  // A role that it holds already is confirmed (its drain was called off): caches and weights stay.
  const bool held = std::exchange(role_, c.role) == c.role;
  // Of an engine of several slots one may hold it still, and another not.
  const bool prepares = c.role == Role::kRollout && (!held || c.ranks > 1);
  if (prepares && !work_->PrepareRollout(c).ok()) {
    exit_code_ = 3;  // a slot that cannot hold its role: the controller sees this worker end and says why
    return;
  }
  if (c.role == Role::kActor && !held) work_->PrepareActor();
  work_->Say(up::Granted{.slot = c.slot, .epoch = c.epoch});
}

// --- rollout

void DeviceMachine::On(down::StartChunk& c) {
  if (!Current(c.slot, c.epoch)) return;
  const bool here = held_.Complete(c);
  if (!here || (c.unread > 0 && !work_->SeesRun())) {
    if (here) held_.Absent(c);
    (void)work_->Cancel(c.tid, c.att);
    return End(c.tid, c.att, ChunkEnd::kCancelled, "the tokens before this chunk are not here any more");
  }
  if (c.unread == 0) return Start(c);
  work_->Read({c.tid, c.att, c.before, c.newest});
  reading_.insert_or_assign(std::pair(c.tid, c.att), std::move(c));
}

// The chunk begins as one whose command has all tokens.
void DeviceMachine::GoOn(const DeviceWork::WasRead& read) {
  const auto at = reading_.find({read.what.tid, read.what.att});
  if (at == reading_.end() || at->second.newest != read.what.newest || at->second.before != read.what.known)
    return;  // of a chunk that is over
  down::StartChunk c = std::move(at->second);
  reading_.erase(at);
  int64_t tokens = 0;
  if (read.segments.ok()) {
    for (const sample::Segment& s : *read.segments) tokens += s.size();
  }
  if (!read.segments.ok() || tokens != c.unread) {
    held_.Absent(c);
    work_->Say(up::CannotRead{c.tid, c.att});
    return End(c.tid, c.att, ChunkEnd::kCancelled,
               "its tokens cannot be read here: " +
                   (read.segments.ok() ? "there are others" : read.segments.status().message()));
  }
  for (const sample::Segment& s : *read.segments) {
    c.generated.insert(c.generated.end(), s.ids.begin(), s.ids.end());
    c.routing_bytes += static_cast<int64_t>(s.routing.size());
  }
  c.before = std::exchange(c.newest, {});
  c.unread = 0;
  SayTokens();
  Start(c);
}

void DeviceMachine::Start(down::StartChunk& c) {
  if (role_ != Role::kRollout || !work_->Serves() || c.version != admitted_) {
    held_.Begin(c);
    End(c.tid, c.att, ChunkEnd::kCancelled, "this worker does not serve version " + ToString(c.version));
    return;
  }
  const Status added = work_->Add(c);
  // It is under way, further than the command says: its tokens go on where they are.
  if (added.code() == StatusCode::kAlreadyExists) return;
  held_.Begin(c);
  if (added.ok()) return;
  const bool data = added.code() == StatusCode::kInvalidArgument;
  End(c.tid, c.att, data ? ChunkEnd::kDataError : ChunkEnd::kError, added.message());
}

// A chunk is over without more tokens.
void DeviceMachine::End(const SampleId& tid, int32_t att, ChunkEnd end, const std::string& why) {
  up::StepTokens answer{.slot = slot_};
  answer.chunks.push_back({tid, att, {}, true, end, why});
  held_.Say(answer.chunks.back());
  work_->Say(std::move(answer));
}

// Says nothing where the chunk is over: its end is on its way, and a second one would end the next chunk.
void DeviceMachine::On(const down::CancelChunk& c) {
  if (!Mine(c.slot)) return;
  const bool waits = reading_.contains({c.tid, c.att});
  if (waits) {
    held_.Absent(reading_.at({c.tid, c.att}));
    reading_.erase({c.tid, c.att});
  }
  if (work_->Cancel(c.tid, c.att) || waits) End(c.tid, c.att, ChunkEnd::kCancelled, "");
  held_.Drop(c.tid, c.att);
}

void DeviceMachine::On(const down::ForgetGroup& c) {
  if (!Mine(c.slot)) return;
  work_->ForgetGroup(c.gid);
  std::erase_if(reading_, [&](const auto& item) { return item.second.gid == c.gid; });
  held_.Forget(c.gid);
}

void DeviceMachine::On(const down::Resend& c) {
  if (!Mine(c.slot)) return;
  up::StepTokens again;
  again.chunks = held_.From(c.tid, c.att, c.from);
  std::optional<HeldTokens::Finished> finished;
  if (!again.chunks.empty()) finished = held_.FinishedBy(again.chunks.back());
  Say(std::move(again));
  if (finished) work_->Store(*std::move(finished));  // who asks has not heard of the payload
}

void DeviceMachine::On(const down::Store& c) {
  const sample::Trajectory& what = c.what;
  HeldTokens::Finished f{what.tid, what.att, what.finish, {}, c.newest, what.segments};
  const std::vector<int32_t>* prompt = held_.PromptOf(what.tid, what.att);
  const bool here = prompt != nullptr && static_cast<int64_t>(prompt->size()) == what.prompt_size();
  const bool lacks = !here && what.prompt_size() > 0;  // a fragment of a control task has no prompt
  if (lacks || !work_->SeesRun()) {
    const char* why = lacks ? "its prompt is not here" : "its folder is not seen here";
    return work_->Say(up::Stored{what.tid, what.att, c.newest, {}, why, /*declined=*/lacks});
  }
  if (here) f.prompt = *prompt;
  work_->Store(std::move(f));
}

bool DeviceMachine::CanStep() const {
  return role_ == Role::kRollout && holds_.valid() && work_->Serves() && work_->HasWork();
}

void DeviceMachine::Step(const std::function<TimePoint()>& now) {
  if (!unsaid_) unsaid_since_ = now();
  up::StepTokens tokens = work_->Step();
  bool ended = false;
  for (up::ChunkDelta& c : tokens.chunks) {
    held_.Number(c);
    ended = ended || c.ended;
  }
  Join(std::move(tokens));
  if (ended || !CanStep() || now() - unsaid_since_ >= together_) SayTokens();
}

void DeviceMachine::Join(up::StepTokens tokens) {
  std::vector<up::ChunkDelta> chunks = std::exchange(tokens.chunks, {});
  if (!unsaid_) unsaid_.emplace();
  unsaid_->step_s += tokens.step_s;
  unsaid_->prefill_tokens += tokens.prefill_tokens;
  unsaid_->prefix_hit_tokens += tokens.prefix_hit_tokens;
  unsaid_->kv_usage = std::max(unsaid_->kv_usage, tokens.kv_usage);
  unsaid_->running = std::max(unsaid_->running, tokens.running);
  unsaid_->waiting = std::max(unsaid_->waiting, tokens.waiting);
  for (up::ChunkDelta& c : chunks) {
    const auto [at, first] = unsaid_at_.try_emplace({c.tid, c.att}, unsaid_->chunks.size());
    up::ChunkDelta* before = first ? nullptr : &unsaid_->chunks[at->second];
    if (before == nullptr || c.tokens.kind != sample::SegmentKind::kTokens) {
      at->second = unsaid_->chunks.size();
      unsaid_->chunks.push_back(std::move(c));
      continue;
    }
    before->tokens.Append(c.tokens);
    before->ended = c.ended;
    before->end = c.end;
    before->why = std::move(c.why);
  }
}

void DeviceMachine::SayTokens() {
  if (!unsaid_) return;
  unsaid_at_.clear();
  up::StepTokens tokens = *std::exchange(unsaid_, std::nullopt);
  if (const Status logged = Log(tokens.chunks); !logged.ok()) GiveUpLog(tokens.chunks, logged);
  std::vector<HeldTokens::Finished> finished;
  for (const up::ChunkDelta& c : tokens.chunks) {
    held_.Keep(c);
    if (auto f = held_.FinishedBy(c)) finished.push_back(*std::move(f));
  }
  Say(std::move(tokens));
  for (HeldTokens::Finished& f : finished) work_->Store(std::move(f));
}

// A full disk, or one that fails, is no reason to lose weights and caches that took minutes to come: what was
// not said yet is lost, the chunks go back, and these attempts go on with what the controller reads of them.
void DeviceMachine::GiveUpLog(std::vector<up::ChunkDelta>& chunks, const Status& why) {
  work_->Say(up::LogsNoMore{why.message()});
  for (up::ChunkDelta& c : chunks) {
    if (c.tokens.size() == 0 || !held_.LogsAfter(c.tid, c.att)) continue;
    (void)work_->Cancel(c.tid, c.att);
    held_.Undo(c);
    c.tokens = {};
    c.ended = true;
    c.end = ChunkEnd::kCancelled;
    c.why = "its tokens could not be written: " + why.message();
  }
}

Status DeviceMachine::Log(std::vector<up::ChunkDelta>& chunks) {
  std::vector<DeviceWork::ToLog> log;
  for (up::ChunkDelta& c : chunks) {
    const auto before = held_.LogsAfter(c.tid, c.att);
    if (before && c.tokens.size() > 0) log.push_back({&c, *before});
  }
  return log.empty() ? OkStatus() : work_->Log(log);
}

// In as many messages as keep each below the limit of its size. What is counted by step goes with the first.
void DeviceMachine::Say(up::StepTokens tokens) {
  tokens.slot = slot_;
  std::vector<up::ChunkDelta> chunks = std::exchange(tokens.chunks, {});
  int64_t size = 0;
  for (up::ChunkDelta& c : chunks) {
    if (!tokens.chunks.empty() && size + c.tokens.size() > kTokensTogether) {
      work_->Say(std::exchange(tokens, {.slot = slot_}));
      size = 0;
    }
    size += c.tokens.size();
    tokens.chunks.push_back(std::move(c));
  }
  if (!tokens.chunks.empty()) work_->Say(std::move(tokens));
}

// --- weights

void DeviceMachine::On(const down::Admit& c) {
  if (Mine(c.slot)) admitted_ = c.v;
}

void DeviceMachine::On(const down::Pull& c) {
  if (Mine(c.slot)) work_->Pull(c);
}

void DeviceMachine::On(const down::Load& c) {
  if (!Mine(c.slot)) return;
  admitted_ = holds_ = {};  // torn until the digest of what was loaded is the one that was named
  const auto copied = work_->Load(c);
  up::Loaded loaded;
  loaded.slot = slot_;
  loaded.v = c.v;
  loaded.error = ErrorOf(copied.status());
  if (copied.ok()) {
    loaded.digest = copied->digest;
    loaded.bytes = copied->bytes;
    loaded.seconds = copied->seconds;
    if (copied->digest == c.digest) {
      work_->UseVersion(c.v);
      holds_ = c.v;
    }
  }
  work_->Say(std::move(loaded));
}

void DeviceMachine::On(const down::Publish& c) {
  if (!Mine(c.slot)) return;
  work_->Say(up::Published{.slot = slot_, .v = c.v, .error = ErrorOf(work_->Publish(c))});
}

// --- training

void DeviceMachine::On(const down::InitState& c) {
  if (!Mine(c.slot)) return;
  holds_ = {};
  SayState(c.request, {0}, work_->InitState(c));
}
void DeviceMachine::On(const down::RestoreState& c) {
  if (!Mine(c.slot)) return;
  holds_ = {};
  SayState(c.request, c.step, work_->RestoreState(c));
}
void DeviceMachine::On(const down::FetchState& c) {
  if (!Current(c.slot, c.epoch)) return;
  holds_ = {};
  SayState(c.request, c.step, work_->FetchState(c));
}

void DeviceMachine::SayState(int64_t request, StepNumber step, const StatusOr<uint64_t>& digest) {
  work_->Say(up::StateReady{.slot = slot_,
                            .step = step,
                            .weights_digest = digest.ok() ? *digest : 0,
                            .error = ErrorOf(digest.status()),
                            .request = request,
                            .out_of_reach = digest.status().code() == StatusCode::kDeadlineExceeded});
}

void DeviceMachine::On(const down::FormGroup& c) {
  if (!Mine(c.slot)) return;
  work_->Say(
      up::GroupFormed{.slot = slot_, .group_epoch = c.group_epoch, .error = ErrorOf(work_->FormGroup(c))});
}

void DeviceMachine::On(const down::Train& c) {
  if (!Current(c.slot, c.epoch)) return;
  // The other ranks of its group learn of it when it leaves.
  const auto refuse = [&](const std::string& why) {
    work_->LeaveGroup();
    SayTrainFailed(c, FailedPrecondition(why));
  };
  if (role_ != Role::kActor) return refuse("this worker does not hold the actor role");
  if (const StepNumber has = work_->StateStep(); has.value != c.step.value - 1)
    return refuse("this worker holds the state of step " + std::to_string(has.value) + ", or of none (-1)");
  DeviceWork::Trained trained = work_->Train(c);
  if (trained.changed) holds_ = {};  // these weights have no version yet
  if (!trained.done.ok()) {
    // The command that called it off is answered next.
    if (trained.done.status().code() != StatusCode::kAborted)
      SayTrainFailed(c, trained.done.status(), std::move(trained.bad));
    return;
  }
  up::TrainDone done = *std::move(trained.done);
  done.slot = slot_;
  done.step = c.step;
  done.lease = c.lease;
  done_ = done;  // a controller that has not written it down has a successor, maybe
  work_->Say(std::move(done));
}

void DeviceMachine::On(down::Preview& c) {
  if (Current(c.slot, c.epoch) && role_ == Role::kActor) work_->Preview(std::move(c));
}

void DeviceMachine::SayTrainFailed(const down::Train& c, const Status& why, std::vector<BadRow> bad) {
  work_->Say(up::TrainFailed{.slot = slot_,
                             .step = c.step,
                             .lease = c.lease,
                             .why = why.message(),
                             .data = why.code() == StatusCode::kInvalidArgument,
                             .torn = work_->StateStep().value != c.step.value - 1,
                             .bad = std::move(bad)});
}

// A step that this worker is in is called off where it runs; one that it never began, or that is over, here.
void DeviceMachine::On(const down::AbortStep& c) {
  if (!Current(c.slot, c.epoch)) return;
  work_->LeaveGroup();
  up::StepAborted answer{
      .slot = slot_, .lease = c.lease, .step = work_->StateStep(), .shard = work_->StateShard()};
  if (const auto digest = work_->WeightsDigest(); digest.ok()) answer.weights_digest = *digest;
  work_->Say(std::move(answer));
}

bool DeviceMachine::HasTraining() const {
  return std::ranges::any_of(waiting_,
                             [](const Command& c) { return std::holds_alternative<down::Train>(c.body); });
}

bool DeviceMachine::CalledOff(int64_t lease) const {
  return std::ranges::any_of(waiting_, [&](const Command& command) {
    // Another controller has begun, which knows nothing of this step.
    if (std::holds_alternative<down::Attached>(command.body)) return true;
    const auto* abort = std::get_if<down::AbortStep>(&command.body);
    return abort != nullptr && abort->lease == lease;
  });
}

bool DeviceMachine::EvaluationEnded(int64_t lease) const {
  return evaluation_ended_ == lease || std::ranges::any_of(waiting_, [&](const Command& command) {
           const auto* end = std::get_if<down::EndEvaluation>(&command.body);
           return end != nullptr && end->lease == lease;
         });
}

void DeviceMachine::On(const down::CopyRecovery& c) {
  if (!Mine(c.slot)) return;
  work_->Say(
      up::RecoveryCopied{.slot = slot_, .step = c.step, .error = ErrorOf(work_->CopyRecovery(c.step))});
}

void DeviceMachine::On(const down::WriteCheckpoint& c) {
  if (Mine(c.slot)) work_->WriteCheckpoint(c);
}

void DeviceMachine::On(const down::SaveFinal& c) {
  if (Mine(c.slot)) work_->Say(up::FinalSaved{ErrorOf(work_->SaveFinal(c))});
}

}  // namespace tidepool::workers
