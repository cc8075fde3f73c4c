#pragma once
// The numbers of a step, gathered while it happens and written when it is committed: metrics.jsonl,
// TensorBoard events and samples/. Owned by the controller thread.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/config.h"
#include "core/base/disk_thread.h"
#include "core/base/status.h"
#include "core/base/time.h"
#include "core/observe/exposition.h"
#include "core/observe/held_out.h"
#include "core/observe/metrics_writer.h"
#include "core/observe/tensorboard_writer.h"
#include "scheduler/commands.h"
#include "scheduler/controller.h"
#include "scheduler/slot_time.h"
#include "workers/device/pacer.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

class RunMetrics {
 public:
  // Since this process began: what its page counts (pages.cc).
  struct Totals {
    int64_t tokens = 0, prefill_tokens = 0, prefix_hit_tokens = 0, steps = 0, reward_retries = 0;
    int64_t trained_samples = 0;  // those that are trained again count again
    int64_t loaded_bytes = 0, pulled_bytes = 0;
    std::map<GradeOutcome, int64_t> graded, turns;
    std::map<std::string, int64_t> faults;  // by class
    observe::DurationHistogram step_s, sync_s, checkpoint_s, decision_s;
  };
  // What a worker said of itself last.
  struct Beat {
    std::string doing, pages;
    int64_t running = 0, waiting = 0;
    double kv_usage = 0;
  };
  // `files`: writes, and outlives this.
  static StatusOr<std::unique_ptr<RunMetrics>> Open(const JobConfig& config, const std::string& run_dir,
                                                    DiskThread& files);

  void OnTokens(const up::StepTokens& tokens, TimePoint now);
  void OnGraded(const up::Graded& graded);
  void OnEnvironment(const up::EnvStepped& stepped);
  void OnBatch(const std::vector<BatchRow>& rows);  // of a step that begins
  void OnRowsServed(int64_t bytes);                 // that trainers have read, since the controller began
  void OnCommitted(int64_t rows) { totals_.trained_samples += rows; }
  void OnTrainDone(const up::TrainDone& done);
  void OnPulled(const up::Pulled& pulled);
  void OnLoaded(const up::Loaded& loaded);
  void OnHeartbeat(int64_t place, const up::Heartbeat& beat);
  // The slot is held in a role from now on; kNone: in none.
  void OnHold(SlotId slot, Role role, TimePoint now);
  void OnCheckpoint(double seconds);
  void OnDecision(double seconds) { totals_.decision_s.Add(seconds); }
  void OnSync(double seconds) {
    sync_s_ += seconds;
    totals_.sync_s.Add(seconds);
  }
  void OnLeft(int64_t place) { beats_.erase(place); }
  void OnFault(const std::string& of_class) { ++totals_.faults[of_class]; }
  void Count(const std::string& name, double by = 1) { counts_[name] += by; }

  // The step is committed: writes everything that was gathered for it. An error is that of an earlier write.
  Status WriteStep(const scheduler::command::StepReport& report, const scheduler::ControllerView& view,
                   TimePoint now);
  Status WriteEval(const record::EvalResult& result, TimePoint now);

  [[nodiscard]] const std::map<std::string, double>& last() const { return last_; }  // of the last step
  [[nodiscard]] const std::map<std::string, double>& last_eval() const { return last_eval_; }
  [[nodiscard]] const Totals& totals() const { return totals_; }
  [[nodiscard]] const std::map<int64_t, Beat>& beats() const { return beats_; }      // by place
  [[nodiscard]] const std::map<SlotId, Role>& held() const { return held_; }         // roles of slots now
  [[nodiscard]] const std::map<SlotId, Version>& loaded() const { return loaded_; }  // weights of slots
  [[nodiscard]] std::optional<TimePoint> last_write() const {
    return any_write_ ? std::optional(last_write_) : std::nullopt;
  }
  // Of something per second: over the steps of this life that have a duration; none: no such step.
  [[nodiscard]] std::optional<double> MeanRate(const std::string& name) const;
  // Of all slots and their incarnations so far; steps 0: nothing is paced.
  [[nodiscard]] PaceCount paced() const;
  void OnEnded(int64_t place, int64_t peak_bytes) {
    peak_bytes_[place] = std::max(peak_bytes_[place], peak_bytes);
  }
  [[nodiscard]] const std::map<int64_t, int64_t>& peak_bytes() const { return peak_bytes_; }
  // Of held-out rows, of all lives of the run.
  [[nodiscard]] const observe::TrainerFigures& figures() const { return figures_; }
  void Undo(StepNumber to) { observe::AddFigures(to, {}, figures_); }  // steps after it
  [[nodiscard]] const std::map<std::string, double>& phase_seconds() const { return phase_seconds_; }

 private:
  struct Files;
  explicit RunMetrics(DiskThread& files) : thread_(files) {}
  Status Write(int64_t step, const Version& version, TimePoint now,
               const std::map<std::string, double>& metrics);

  DiskThread& thread_;
  std::shared_ptr<Files> files_;
  double earlier_s_ = 0;  // wall time of earlier lives of the run
  std::map<StepNumber, std::map<std::string, double>> trained_;
  void AddRewards(const std::vector<std::pair<std::string, double>>& rewards);
  std::map<std::string, std::pair<double, int64_t>> rewards_;  // name -> sum, count
  std::map<std::string, double> counts_;
  std::map<int64_t, int64_t> peak_bytes_;
  scheduler::SlotTime time_;
  std::map<int64_t, PaceCount> pace_;  // by place, as last said
  PaceCount pace_ended_;               // of workers that were replaced
  double pace_scale_ = 0;              // 0: nothing is paced
  std::map<std::string, double> phase_seconds_;
  TimePoint last_write_;
  bool any_write_ = false;
  int64_t tokens_ = 0, prefill_ = 0, prefix_hits_ = 0, running_ = 0, waiting_ = 0;
  double kv_usage_ = 0, gen_s_ = 0, reward_s_ = 0, load_s_ = 0, sync_s_ = 0;
  double checkpoint_s_ = 0;
  double thread_s_ = 0;  // processor time of this thread up to the last step
  double turn_s_ = 0, reset_s_ = 0;
  int64_t turns_ = 0, resets_ = 0;             // that environments played
  int64_t row_bytes_ = 0;                      // that were served up to the last step
  double batch_bytes_ = 0, padded_bytes_ = 0;  // of the newest batch
  int64_t env_turns_ = 0, env_retries_ = 0;    // up to the last step, over the whole run
  bool environment_ = false;
  std::map<std::string, double> last_, last_eval_;
  Totals totals_;
  std::map<int64_t, Beat> beats_;
  std::map<SlotId, Role> held_;
  std::map<SlotId, Version> loaded_;
  struct Rate {
    double sum = 0, seconds = 0;
  };
  std::map<std::string, Rate> rates_;  // MeanRate()
  observe::TrainerFigures figures_;
};

}  // namespace tidepool::workers
