#pragma once
// A device without tensors: weights are their digest, a token is a random number, copies take no time. It
// does the work of the real DeviceMachine in tests.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/hash.h"
#include "core/base/rng.h"
#include "core/sample/codec.h"
#include "workers/data/row_source.h"
#include "workers/device/device_machine.h"
#include "workers/device/given_row.h"

namespace tidepool::workers {

class ModelDevice;

// What the devices of a machine share.
struct ModelWorld {
  // The ranks of a training group that met under one name, and how far they are.
  struct Group {
    std::set<int64_t> ranks;
    std::map<int64_t, std::set<int64_t>> arrived;  // ranks, by lease
    std::map<int64_t, std::vector<BadRow>> bad;    // that they found, by lease
    bool broken = false;                           // somebody has left
  };
  std::map<std::string, std::shared_ptr<Group>> groups;
  std::map<std::string, ModelDevice*> devices;  // by the address that they serve weights at

  std::map<Version, uint64_t> published;
  std::map<StepNumber, uint64_t> recovery;
  std::map<std::string, uint64_t> checkpoints;  // by folder
  // Everything that was generated for an attempt, up to any of its ends, where it is to be remembered.
  std::map<std::pair<SampleId, int32_t>, std::set<std::vector<int32_t>>> made;
  bool remembers = true;
  // Token logs of all workers: entries in their order, and the payloads that were made of them.
  struct Logged {
    std::pair<SampleId, int32_t> of;
    int64_t from = 0;
    storage::TokenPlace before;
    sample::Segment tokens;
  };
  std::map<int64_t, std::vector<Logged>> logs;                        // by file
  std::map<std::pair<int64_t, int64_t>, sample::Trajectory> payload;  // by file and offset
  double logs_share = 0;   // of processes that see the run's folder
  double bad_payload = 0;  // chance that one cannot be written by its worker
  double bad_log = 0;      // chance that tokens cannot, and no more of them
  int64_t logs_failed = 0;
  double lost_tokens = 0;  // chance that an attempt cannot be read
  int64_t logged = 0, read = 0, read_by_devices = 0, read_by_graders = 0, logged_turns = 0;
  int64_t joined = 0;  // payloads of what several workers had logged
  StatusOr<storage::TokenChain> Chain(const SampleId& tid, int32_t att, storage::TokenPlace at,
                                      const storage::TokenPlace& known = {}) {
    sample::Trajectory joined;
    std::vector<sample::Segment> back;
    storage::TokenChain chain;
    int64_t from = -1;
    while (from != 0 && !(known.valid() && at == known)) {
      const auto file = logs.find(at.file);
      if (file == logs.end() || at.offset >= static_cast<int64_t>(file->second.size()))
        return NotFound("no log");
      const Logged& entry = file->second[static_cast<size_t>(at.offset)];
      if (entry.of != std::pair(tid, att) || (from >= 0 && entry.from + entry.tokens.size() != from))
        return DataLoss("the log has other tokens there");
      chain.files.insert(at.file);
      back.push_back(entry.tokens);
      from = entry.from;
      at = entry.before;
    }
    for (auto it = back.rbegin(); it != back.rend(); ++it) joined.Append(*it);
    chain.segments = joined.segments;
    return chain;
  }
  int64_t vocabulary = 1 << 30;  // of a job without words
  std::function<StatusOr<std::vector<BatchRow>>(int64_t lease, StepNumber step, Incarnation reader,
                                                int64_t rank)>
      rows;
  // A job of episodes: its environment, and its words.
  const JobConfig* job = nullptr;
  const RowSource* words = nullptr;
  int64_t turns = 0;      // of games that were played
  int64_t previewed = 0;  // rows whose columns were computed before their step
  double bad_turn = 0;    // chance that an environment fails
  double bad_load = 0;    // chance that a load leaves other bytes
  double bad_step = 0;    // chance that a step breaks off within its updates
  double bad_row = 0;     // share of samples that the rank which has them cannot use

  [[nodiscard]] bool IsBad(const SampleId& tid) const {
    return bad_row > 0 && SampleUniform(2, SampleUid(tid), 4, 5) < bad_row;
  }
};

class ModelDevice : public DeviceWork {
 public:
  ModelDevice(ModelWorld* world, uint64_t seed) : world_(world), rng_(seed) {}

  [[nodiscard]] ModelWorld* world() { return world_; }
  std::function<void(int64_t)> on_begin;
  std::function<void(FromWorkerBody)> on_say;
  bool outlives = true;
  bool answers_reads = true;
  int64_t mean_tokens = 12;
  double busy_s = 0;  // what was done since this was last set to 0 would have taken so long
  // At most so long. False: what is waited for has not happened.
  std::function<bool(double s, const std::function<bool()>& happened)> wait =
      [](double, const std::function<bool()>& happened) { return happened(); };
  std::function<bool(int64_t lease)> called_off = [](int64_t) { return false; };

  void Begin(int64_t ctl_epoch) override { on_begin(ctl_epoch); }
  void Say(FromWorkerBody message) override { on_say(std::move(message)); }

  Status Welcomed(const down::Welcome& welcome, bool anew) override {
    inc_ = welcome.inc;
    if (anew) logs_ = rng_.Chance(world_->logs_share);
    if (anew) read_.clear();
    return OkStatus();
  }
  [[nodiscard]] bool SeesRun() const override { return logs_; }
  Status Log(const std::vector<ToLog>& deltas) override {
    const int64_t file = storage::FirstFileOf(inc_);
    if (!logs_ || rng_.Chance(world_->bad_log)) {
      logs_ = false;
      ++world_->logs_failed;
      return ResourceExhausted("the disk is full");
    }
    for (const auto& [delta, before] : deltas) {
      auto& entries = world_->logs[file];
      entries.push_back({{delta->tid, delta->att}, delta->from, before, delta->tokens});
      delta->tokens = delta->tokens.Outline();
      delta->logged = {file, static_cast<int64_t>(entries.size()) - 1};
      ++world_->logged;
    }
    return OkStatus();
  }
  void Store(HeldTokens::Finished f) override {
    up::Stored stored{f.tid, f.att, f.newest, {}, ""};
    auto chain = world_->Chain(f.tid, f.att, f.newest);
    if (!chain.ok() || rng_.Chance(world_->bad_payload)) {
      stored.error = chain.ok() ? "the disk is full" : chain.status().message();
    } else {
      sample::Trajectory t{.tid = f.tid, .att = f.att, .finish = f.finish, .segments = chain->segments};
      if (!f.outline.empty()) {
        auto filled = storage::FillOutline(f.outline, *std::move(chain), f.tid);
        TP_CHECK(filled.ok()) << filled.status().message();
        t.segments = *std::move(filled);
        ++world_->joined;
      }
      t.prompt = sample::PromptSegment(std::move(f.prompt));
      stored.ref = {storage::FirstFileOf(inc_), ++payloads_, t.size(), sample::Digest(t)};
      world_->payload[{stored.ref.file, stored.ref.offset}] = std::move(t);
    }
    Say(std::move(stored));
  }
  void Read(const ToRead& what) override {
    ++world_->read_by_devices;
    auto chain = world_->Chain(what.tid, what.att, what.newest, what.known);
    if (rng_.Chance(world_->lost_tokens)) chain = DataLoss("a bad disk");
    if (chain.ok()) {
      read_.push_back({what, std::move(chain->segments)});
    } else {
      read_.push_back({what, chain.status()});
    }
  }
  std::vector<WasRead> TakeRead() override {
    return answers_reads ? std::exchange(read_, {}) : std::vector<WasRead>();
  }
  [[nodiscard]] bool OutlivesController() const override { return outlives; }
  void FinishCheckpoint() override {}
  void ForgetAll() override {
    running_.clear();
    previews_.clear();
    rollout_ = false;
  }

  StatusOr<uint64_t> WeightsDigest() override {
    if (weights_ == 0) return FailedPrecondition("torn");
    return weights_;
  }
  [[nodiscard]] StepNumber StateStep() const override { return state_step_; }
  [[nodiscard]] Shard StateShard() const override { return {}; }
  void Pull(const down::Pull& c) override { on_say(up::Pulled{{.slot = c.slot, .v = c.v, .whole = true}}); }
  void EndPull() override {}
  StatusOr<Copied> Load(const down::Load& c) override {
    if (c.alias) return Copied{weights_, 0, 0};
    busy_s += 0.05;
    state_step_ = {};
    weights_ = 0;
    const auto it = world_->published.find(c.v);
    if (it == world_->published.end()) return NotFound("not published");
    weights_ = rng_.Chance(world_->bad_load) ? Mix64(it->second) : it->second;
    return Copied{weights_, 1, 0.05};
  }
  void UseVersion(const Version& v) override { version_ = v; }
  Status Publish(const down::Publish& c) override {
    if (c.copies) world_->published[c.v] = weights_;
    return OkStatus();
  }

  [[nodiscard]] bool Follows() const override { return false; }
  void Follow() override {}
  [[nodiscard]] const std::string& EngineLost() const override { return engine_lost; }
  std::string engine_lost;
  int64_t prepared = 0;  // so often for rollouts
  Status PrepareRollout(const down::Grant& /*c*/) override {
    ++prepared;
    rollout_ = true;
    return OkStatus();
  }
  void PrepareActor() override {}
  int64_t Release(Role role, int64_t) override {
    previews_.clear();
    if (role == Role::kRollout) {
      rollout_ = false;
      running_.clear();
    }
    return int64_t{1} << 30;
  }

  [[nodiscard]] bool Serves() const override { return rollout_; }
  Status Add(down::StartChunk c) override {
    if (running_.contains({c.tid, c.att})) return AlreadyExists("in work");
    Running& r = running_[{c.tid, c.att}];
    r.context = std::move(c.generated);
    r.left = c.chunk_tokens;
    // Greedy or not, a sample has its own length, which every device knows.
    const double u = SampleUniform(1, SampleUid({c.tid.ordinal, 0, c.tid.sample}), 2, 3);
    r.limit = std::min(c.max_new_tokens, 1 + static_cast<int64_t>(u * 2 * static_cast<double>(mean_tokens)));
    r.full = r.limit == c.max_new_tokens;
    if (world_->words != nullptr) {
      r.limit = c.max_new_tokens;
      r.full = true;
    }
    return OkStatus();
  }
  bool Cancel(const SampleId& tid, int32_t att) override { return running_.erase({tid, att}) > 0; }
  void ForgetGroup(GroupId) override {}
  std::vector<std::pair<SampleId, int32_t>> Drain() override {
    std::vector<std::pair<SampleId, int32_t>> out;
    for (const auto& [key, r] : std::exchange(running_, {})) out.push_back(key);
    return out;
  }
  [[nodiscard]] bool HasWork() const override { return !running_.empty(); }
  up::StepTokens Step() override {
    using scheduler::event::ChunkEnd;
    up::StepTokens step;
    step.step_s = 0.03;
    busy_s += 0.02 + 0.03 * rng_.Uniform();
    for (auto it = running_.begin(); it != running_.end();) {
      Running& r = it->second;
      up::ChunkDelta d;
      d.tid = it->first.first;
      d.att = it->first.second;
      const auto size = static_cast<int64_t>(r.context.size());
      bool said_all = false;
      const int64_t n = std::max<int64_t>(std::min({1 + rng_.Below(3), r.left, r.limit - size}), 0);
      for (int64_t i = 0; i < n; ++i) {
        r.context.push_back(NextToken());
        d.tokens.ids.push_back(r.context.back());
        d.tokens.logprobs.push_back(-1);
        said_all = world_->words != nullptr && world_->words->IsEnd(r.context.back());
        if (said_all) break;
      }
      const int64_t made = d.tokens.size();
      if (made > 0) d.tokens.versions = {{version_, made}};
      r.left -= made;
      const bool whole = said_all || size + made >= r.limit;
      d.ended = whole || r.left <= 0;
      d.end = !whole ? ChunkEnd::kChunkLimit : r.full && !said_all ? ChunkEnd::kLength : ChunkEnd::kEos;
      if (d.ended && world_->remembers) world_->made[it->first].insert(r.context);
      it = d.ended ? running_.erase(it) : std::next(it);
      step.chunks.push_back(std::move(d));
    }
    return step;
  }

  StatusOr<uint64_t> InitState(const down::InitState&) override { return Made({0}, Mix64(42)); }
  StatusOr<uint64_t> RestoreState(const down::RestoreState& c) override {
    if (c.ckpt >= 0) return Made(c.step, world_->checkpoints[c.dir]);
    const auto it = world_->recovery.find(c.step);
    if (it == world_->recovery.end()) return NotFound("no such copy");
    return Made(c.step, it->second);
  }
  StatusOr<uint64_t> FetchState(const down::FetchState& c) override {
    state_step_ = {};
    weights_ = 0;
    wait(0.2, [] { return false; });
    const auto peer = world_->devices.find(c.address);
    if (peer == world_->devices.end()) return Unavailable("nobody answers at " + c.address);
    if (peer->second->state_step_ != c.step) return FailedPrecondition("the peer has another state");
    return Made(c.step, peer->second->weights_);
  }
  Status FormGroup(const down::FormGroup& c) override {
    LeaveGroup();
    auto& group = world_->groups[c.meeting];
    if (group == nullptr) group = std::make_shared<ModelWorld::Group>();
    group_ = group;
    group_epoch_ = c.group_epoch;
    group_->ranks.insert(c.rank);
    const auto met = [&, g = group_] { return static_cast<int64_t>(g->ranks.size()) == c.world; };
    if (wait(c.timeout_s, [&, g = group_] { return met() || g->broken; }) && met()) return OkStatus();
    LeaveGroup();
    return Unavailable("the ranks did not meet");
  }
  void LeaveGroup() override {
    if (group_ != nullptr) group_->broken = true;
    group_.reset();
    group_epoch_ = 0;
  }
  Trained Train(const down::Train& c) override {
    auto rows = world_->rows(c.lease, c.step, inc_, c.rank);
    if (!rows.ok()) return {Unavailable(rows.status().message())};
    if (static_cast<int64_t>(rows->size()) != c.rows) return {Unavailable("another number of rows")};
    if (c.world > 1 && (group_ == nullptr || group_epoch_ != c.group_epoch))
      return {FailedPrecondition("not in that group")};
    const StepNumber before = std::exchange(state_step_, {});
    wait(0.3, [] { return false; });
    std::vector<BadRow> alone;
    const auto group = c.world > 1 ? group_ : nullptr;
    std::vector<BadRow>& bad = group != nullptr ? group->bad[c.lease] : alone;
    for (const BatchRow& row : *rows) {
      const SampleId& tid = row.trajectory.tid;
      if (!row.trajectory.is_outline() && world_->IsBad(tid)) bad.push_back({tid, "no rank can use it"});
    }
    Status together = called_off(c.lease) ? Aborted("called off") : Together(c);
    if (together.ok() && !bad.empty()) {
      state_step_ = before;
      LeaveGroup();
      return {InvalidArgument("row " + ToString(bad[0].tid) + " cannot be used"), false, bad};
    }
    if (!together.ok()) {
      state_step_ = before;
      return {std::move(together)};
    }
    if (rng_.Chance(world_->bad_step)) {
      weights_ = Mix64(weights_ ^ 1);
      return {Unavailable("it broke off within its updates"), true};
    }
    up::TrainDone done;
    for (const BatchRow& row : *rows) {
      if (!row.trajectory.is_outline()) done.rows.push_back(Given(row));
      weights_ = Mix64(weights_ ^ SampleUid(row.trajectory.tid));
    }
    state_step_ = c.step;
    done.weights_digest = weights_;
    done.seconds = 0.3;
    return {std::move(done), true};
  }
  void Preview(down::Preview c) override {
    for (const record::Enq& row : c.rows) previews_.push_back(row.tid);
  }
  [[nodiscard]] bool HasPreview() const override { return !previews_.empty(); }
  void PreviewPiece() override {
    busy_s += 0.05 * rng_.Uniform();
    ++world_->previewed;
    previews_.pop_front();
  }
  Status CopyRecovery(StepNumber step) override {
    world_->recovery[step] = weights_;
    return OkStatus();
  }
  void WriteCheckpoint(const down::WriteCheckpoint& c) override {
    world_->checkpoints[c.dir] = weights_;
    up::CheckpointFiles done;
    done.ckpt = c.ckpt;
    done.weights_digest = weights_;
    Say(std::move(done));
  }
  Status SaveFinal(const down::SaveFinal&) override { return OkStatus(); }

 private:
  struct Running {
    std::vector<int32_t> context;  // of the attempt
    int64_t left = 0;              // of the chunk
    int64_t limit = 0;             // of the sample
    bool full = false;             // that limit is the job's
  };
  // Of an episode: a word of the job, every third time the last one of the turn.
  int32_t NextToken() {
    if (world_->words == nullptr) return static_cast<int32_t>(rng_.Below(world_->vocabulary));
    if (rng_.Chance(0.3)) return world_->words->end_token();
    return static_cast<int32_t>(rng_.Below(world_->words->tokenizer().vocab_size()));
  }
  // As a collective: all ranks of the step come, or some peer is gone.
  Status Together(const down::Train& c) {
    if (c.world == 1) return OkStatus();
    std::set<int64_t>& here = group_->arrived[c.lease];
    here.insert(c.rank);
    const auto all = [&] { return static_cast<int64_t>(here.size()) == c.world; };
    const auto group = group_;
    if (wait(20, [&] { return all() || group->broken; }) && all()) return OkStatus();
    LeaveGroup();
    return Unavailable("a rank of the group is gone");
  }
  StatusOr<uint64_t> Made(StepNumber step, uint64_t weights) {
    busy_s += 0.2;
    state_step_ = step;
    weights_ = weights;
    return weights;
  }

  ModelWorld* world_;
  Rng rng_;
  Incarnation inc_;
  bool rollout_ = false;
  bool logs_ = false;  // tokens, in the run's folder
  std::vector<WasRead> read_;
  int64_t payloads_ = 0;  // that it wrote there
  uint64_t weights_ = 0;  // 0: torn
  Version version_;
  StepNumber state_step_;
  std::deque<SampleId> previews_;
  std::shared_ptr<ModelWorld::Group> group_;
  int64_t group_epoch_ = 0;
  std::map<std::pair<SampleId, int32_t>, Running> running_;
};

}  // namespace tidepool::workers
