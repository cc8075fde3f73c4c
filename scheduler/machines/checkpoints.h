#pragma once
// Checkpoints as the run goes, and the model that is left at its end.

#include <optional>
#include <string>

#include "scheduler/best_checkpoint.h"
#include "scheduler/checkpoint_schedule.h"
#include "scheduler/events.h"
#include "scheduler/machines/machine.h"

namespace tidepool::scheduler {

class Checkpoints : public Machine {
 public:
  explicit Checkpoints(Machines& all);

  void On(const event::CheckpointWritten& e);
  void On(const event::CheckpointFailed& e);
  void On(const event::FinalSaved& e);
  void On(const event::BestKept& e);

  void Advance();   // writes one if it is due
  void KeepBest();  // after a checkpoint and after an evaluation
  void TimedOut(const std::string& why);
  void SaveFinal();
  void LeaderLost(const WorkerRef& leader, const std::string& why);  // who had what is to be written
  void PartLost(const std::string& why);                             // or a part of it

  [[nodiscard]] bool Due() const;
  [[nodiscard]] bool busy() const { return writing_.has_value() || final_saving_; }
  [[nodiscard]] StepNumber writing() const { return writing_ ? writing_->step : StepNumber{}; }
  // Why the newest checkpoint could not be written; empty: nothing went wrong.
  [[nodiscard]] const std::string& trouble() const { return trouble_; }
  [[nodiscard]] bool final_saved() const { return final_saved_; }

 private:
  struct Writing {
    int64_t ckpt = 0;
    StepNumber step;
    Lsn cut;
  };
  CheckpointSchedule schedule_;
  std::optional<Writing> writing_;
  std::string trouble_;
  std::optional<BestCheckpoint> best_;        // whose model best/ has
  std::optional<BestCheckpoint> best_asked_;  // or will have, if nothing goes wrong
  bool looked_for_best_ = false;
  bool final_saved_ = false, final_saving_ = false;
};

}  // namespace tidepool::scheduler
