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
  Status Welcomed(const down::Welcome&, bool anew) override {
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
      verdict.reward = static_cast<double>(SampleUid(grade->tid) % 2);
      Say(std::move(verdict));
    } else if (const auto* step = std::get_if<down::EnvStep>(&command)) {
      ++world_->turns;
      up::EnvStepped reply = PlayTurn(*host_, "lake", *step);
      if (rng_.Chance(world_->bad_turn)) reply.outcome = GradeOutcome::kInfra;
      Say(std::move(reply));
    }
  }

 private:
  ModelWorld* world_;
  Rng rng_;
  std::unique_ptr<environments::EpisodeHost> host_;
};

}  // namespace tidepool::workers
