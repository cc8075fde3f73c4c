#pragma once
// A worker without a device in tests: it grades by a rule that everybody knows, and plays the job's real
// environment.

#include <functional>
#include <memory>
#include <utility>

#include "core/environments/episode.h"
#include "tests/workers/net/model_device.h"
#include "workers/side/environment_worker.h"
#include "workers/side/side_machine.h"

namespace tidepool::workers {

class ModelSide : public SideWork {
 public:
  ModelSide(ModelWorld* world, uint64_t seed) : world_(world), rng_(seed) {}

  std::function<void(int64_t)> on_begin;
  std::function<void(FromWorkerBody)> on_say;

  void Begin(int64_t ctl_epoch) override { on_begin(ctl_epoch); }
  void Say(FromWorkerBody message) override { on_say(std::move(message)); }
  Status Welcomed(const down::Welcome& welcome, bool anew) override {
    inc_ = welcome.inc;
    if (anew) logs_ = rng_.Chance(world_->logs_share);
    if (logs_ && world_->words == nullptr) Say(up::SeesRun{});
    if (!anew || world_->job == nullptr) return OkStatus();
    TP_ASSIGN_OR_RETURN(auto source, environments::EpisodeSource::Create(*world_->job));
    host_ = std::make_unique<environments::EpisodeHost>(std::move(source));
    return OkStatus();
  }
  void Take(ToWorkerBody& command) override {
    if (const auto* grade = std::get_if<down::Grade>(&command)) {
      up::Graded verdict;
      verdict.tid = grade->tid;
      verdict.att = grade->att;
      if (CanRead(*grade)) {
        verdict.reward = static_cast<double>(SampleUid(grade->tid) % 2);
      } else {
        verdict.outcome = GradeOutcome::kInfra;
        verdict.unread = true;
      }
      Say(std::move(verdict));
    } else if (auto* step = std::get_if<down::EnvStep>(&command)) {
      ++world_->turns;
      up::EnvStepped reply = Turn(*step);
      if (rng_.Chance(world_->bad_turn)) reply.outcome = GradeOutcome::kInfra;
      Say(std::move(reply));
    }
  }

 private:
  // As workers/data/stored_samples.h does it; what payload files have is not modelled.
  bool CanRead(const down::Grade& grade) {
    if (grade.payload.payload_file < 0 && !grade.logged.valid()) return true;
    if (!logs_ || rng_.Chance(world_->lost_tokens)) return false;
    ++world_->read_by_graders;
    if (!grade.logged.valid()) return true;
    const auto chain = world_->Chain(grade.tid, grade.att, grade.logged);
    if (!chain.ok()) return false;
    const sample::Trajectory read{.segments = chain->segments};
    return read.size() == grade.input.response_tokens &&
           world_->made[{grade.tid, grade.att}].contains(read.Ids());
  }
  // As workers/side/logged_turns.h does it.
  up::EnvStepped Turn(down::EnvStep& step) {
    if (!step.said.valid()) return PlayTurn(*host_, "lake", step);
    auto chain = world_->Chain(step.tid, step.att, step.said);
    if (!logs_ || !chain.ok() || rng_.Chance(world_->lost_tokens)) {
      up::EnvStepped unread{.tid = step.tid, .att = step.att, .turn = step.turn};
      unread.outcome = GradeOutcome::kInfra;
      unread.unread = true;
      return unread;
    }
    int64_t tokens = 0;
    bool ended = false;
    for (const sample::Segment& s : chain->segments) {
      tokens += s.size();
      if (s.kind != sample::SegmentKind::kTokens) continue;
      step.actions.push_back(world_->words->ResponseText(s.ids));
      ended = world_->words->IsEnd(s.ids.back());
    }
    up::EnvStepped reply = PlayTurn(*host_, "lake", step);
    const std::string said = std::exchange(reply.observation, {});
    if (reply.outcome != GradeOutcome::kOk || reply.done || step.turn <= 0) return reply;
    auto ids = world_->words->EncodeObservation({said}, ended);
    const int64_t file = storage::FirstFileOf(inc_);
    auto& entries = world_->logs[file];
    reply.logged_tokens = static_cast<int64_t>(ids->size());
    entries.push_back({{step.tid, step.att},
                       tokens,
                       step.said,
                       {.kind = sample::SegmentKind::kObservation, .ids = *std::move(ids)}});
    reply.logged = {file, static_cast<int64_t>(entries.size()) - 1};
    ++world_->logged_turns;
    return reply;
  }

  ModelWorld* world_;
  Incarnation inc_;
  bool logs_ = false;  // it sees the run's folder
  Rng rng_;
  std::unique_ptr<environments::EpisodeHost> host_;
};

}  // namespace tidepool::workers
