#pragma once
// One life of a controller process on the simulated network: the real scheduler::Controller, Attachments,
// WorkerPlaces, Effects, SampleStore, Turns and TokenIntake; files are maps, a write takes virtual time. What
// is on the disk (SimDisk) outlives it.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/controller.h"
#include "tests/workers/net/sim_network.h"
#include "workers/controller/effects.h"
#include "workers/controller/logged_samples.h"
#include "workers/controller/loop_clock.h"
#include "workers/controller/step_rows.h"
#include "workers/controller/token_intake.h"
#include "workers/controller/turns.h"
#include "workers/controller/worker_places.h"

namespace tidepool::workers {

struct StoredFiles {
  std::vector<JournalEntry> journal;
  std::map<std::pair<SampleId, int32_t>, sample::Trajectory> payload;
  std::map<int64_t, std::string> checkpoints;  // committed ones: id -> folder
};

class SimController {
 public:
  SimController(const scheduler::ControllerOptions& options, SimNetwork* network, ModelWorld* world,
                StoredFiles* files);
  ~SimController();

  void Begin();
  void On(HubEvent event);
  void Tick();
  void Exited(int64_t place, uint64_t process);  // a process that this life began
  // It dies: some of what was on its way to the disk has arrived.
  void Die();

  std::optional<int> exit_code;
  std::string why, wrong;  // the first thing that may not happen
  int64_t adopted = 0, asked_again = 0, behind_gap = 0;
  int64_t begun_again = 0;  // samples, because their tokens were lost
  int64_t stored_here = 0;  // payloads, because no device could write them
  int64_t left_out = 0;     // tokens of chunks that their worker had still
  [[nodiscard]] std::string Describe() const;

 private:
  template <typename C>
  static constexpr bool kToWorker = std::is_constructible_v<ToWorkerBody, const C&>;

  struct Do;
  void Feed(scheduler::Event event);
  std::optional<int64_t> Append(const std::vector<Effects::Decided>& decided);
  void CarryOut(const std::vector<Effects::Decided>& decided);
  void Write();
  void Later(double s, std::function<void()> what);  // nothing, if it has died by then
  void OnAttachment(Attachments::Event& event);
  void OnMessage(Attachments::Message& e);
  void EnsureRow(const SampleId& tid);
  void FeedStored(scheduler::Event event);
  void StoreHere(const sample::Trajectory& t);
  void CheckMade(const sample::Trajectory& t);
  void SendChunk(const WorkerRef& worker, down::StartChunk m);
  void SendGrade(const scheduler::command::Grade& c, bool reads);
  StatusOr<sample::Trajectory> Recorded(const SampleId& tid);
  template <typename Body>
  void Send(const WorkerRef& worker, Body body) {
    places_->Send(worker, std::move(body));
  }
  // Stands still while this process is paused, as the real one's does.
  TimePoint Now() { return clock_.At(LoopClock::Source::time_point(network_->now.since_start)); }
  void Wrong(const std::string& what) {
    if (wrong.empty()) wrong = what;
  }

  const scheduler::ControllerOptions options_;
  SimNetwork* network_;
  ModelWorld* world_;
  StoredFiles* files_;
  const int64_t life_;
  const std::shared_ptr<bool> lives_ = std::make_shared<bool>(true);
  LoopClock clock_;
  std::unique_ptr<scheduler::Controller> controller_;
  std::unique_ptr<Attachments> attachments_;
  std::unique_ptr<WorkerPlaces> places_;
  SampleStore samples_;
  TokenIntake intake_;
  std::unique_ptr<LoggedSamples> logged_;
  std::unique_ptr<Turns> turns_;  // of a job of episodes
  std::unique_ptr<Effects> effects_;
  std::deque<std::vector<JournalEntry>> unwritten_;
  bool writing_ = false;
  int64_t appended_ = 0;  // batches of records
  std::map<int64_t, SimNetwork::ProcessPtr> children_;
  std::unique_ptr<StepRows> step_rows_;
  std::deque<std::string> said_;            // the last words of the scheduler
  std::map<int64_t, std::string> pending_;  // checkpoints that are being written
};

}  // namespace tidepool::workers
