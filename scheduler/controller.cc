#include "scheduler/controller.h"

#include <utility>

#include "scheduler/machines/machines.h"

namespace tidepool::scheduler {
namespace {

// Each event has one machine that takes it in.
struct Receiver {
  Machines& m;
  void operator()(const event::Started& e) const { m.life.On(e); }
  void operator()(const event::StopRequested& e) const { m.life.On(e); }
  void operator()(const event::StorageFailed& e) const { m.life.On(e); }
  void operator()(const event::WorkerJoined& e) const { m.workers.On(e); }
  void operator()(const event::WorkerLost& e) const { m.workers.On(e); }
  void operator()(const event::EngineLost& e) const { m.workers.On(e); }
  void operator()(const event::WorkerStartFailed& e) const { m.workers.On(e); }
  void operator()(const event::Heartbeat& e) const { m.workers.On(e); }
  void operator()(const event::StoodStill& e) const { m.workers.On(e); }
  void operator()(const event::Drained& e) const { m.slots.On(e); }
  void operator()(const event::Released& e) const { m.slots.On(e); }
  void operator()(const event::Granted& e) const { m.slots.On(e); }
  void operator()(const event::ChunkProgress& e) const { m.rollouts.On(e); }
  void operator()(const event::ChunkFinished& e) const { m.rollouts.On(e); }
  void operator()(const event::Pulled& e) const { m.rollouts.On(e); }
  void operator()(const event::Loaded& e) const { m.rollouts.On(e); }
  void operator()(const event::TokensLost& e) const { m.samples.On(e); }
  void operator()(const event::RowReady& e) const { m.samples.On(e); }
  void operator()(const event::RowInvalid& e) const { m.samples.On(e); }
  void operator()(const event::PayloadStored& e) const { m.samples.On(e); }
  void operator()(const event::Graded& e) const { m.samples.On(e); }
  void operator()(const event::EnvStepped& e) const { m.samples.On(e); }
  void operator()(const event::StateReady& e) const { m.trainer.On(e); }
  void operator()(const event::StepAborted& e) const { m.trainer.On(e); }
  void operator()(const event::Published& e) const { m.trainer.On(e); }
  void operator()(const event::RecoveryCopied& e) const { m.trainer.On(e); }
  void operator()(const event::CheckpointVerified& e) const { m.trainer.On(e); }
  void operator()(const event::GroupFormed& e) const { m.steps.On(e); }
  void operator()(const event::TrainDone& e) const { m.steps.On(e); }
  void operator()(const event::TrainFailed& e) const { m.steps.On(e); }
  void operator()(const event::PayloadLost& e) const { m.steps.On(e); }
  void operator()(const event::CheckpointWritten& e) const { m.checkpoints.On(e); }
  void operator()(const event::CheckpointFailed& e) const { m.checkpoints.On(e); }
  void operator()(const event::FinalSaved& e) const { m.checkpoints.On(e); }
  void operator()(const event::BestKept& e) const { m.checkpoints.On(e); }

  // What depends on nothing but the time.
  void operator()(const event::Tick&) const {
    m.workers.Tick();
    if (!m.life.over() && m.facts.environment) m.samples.Tick();
    if (!m.life.over()) m.life.CheckDeadlines();
    if (!m.life.over()) m.rollouts.Tick();
    if (!m.life.over()) m.slots.Advance(/*again=*/true);
  }
};

// Every machine looks at all facts and does what is possible now. The order is that in which one of them
// makes the next one's decision possible within the same event.
void Advance(Machines& m) {
  m.trainer.Advance();
  m.checkpoints.Advance();
  m.trainer.Publish();
  m.steps.Advance();
  m.rollouts.RollWeights();
  m.evaluations.Advance();
  m.samples.Admit();
  m.samples.ReleaseAhead();
  m.samples.Assign();
  m.slots.Advance();
  m.previews.Advance();
  m.life.Advance();
  if (!m.life.over()) m.rollouts.Dispatch();
}

// Tokens alone decide nothing.
bool Decides(const Event& event) {
  return !std::holds_alternative<event::ChunkProgress>(event) &&
         !std::holds_alternative<event::Heartbeat>(event);
}

}  // namespace

StatusOr<std::unique_ptr<Controller>> Controller::Create(const ControllerOptions& options,
                                                         const std::vector<JournalEntry>& journal) {
  TP_RETURN_IF_ERROR(Validate(options));
  RunState state;
  for (const JournalEntry& e : journal) TP_RETURN_IF_ERROR(state.Apply(e));
  return CreateFrom(options, std::move(state));
}

StatusOr<std::unique_ptr<Controller>> Controller::CreateFrom(const ControllerOptions& options,
                                                             RunState earlier) {
  TP_RETURN_IF_ERROR(Validate(options));
  if (!earlier.empty()) {
    if (!earlier.config()) return DataLoss("journal: its first record is not CONFIG");
    TP_RETURN_IF_ERROR(SameRun(*earlier.config(), options));
  }
  auto controller = std::unique_ptr<Controller>(new Controller());
  controller->impl_ = std::make_unique<Machines>(options);
  controller->impl_->state = std::move(earlier);
  return controller;
}

Controller::Controller() = default;
Controller::~Controller() = default;

std::vector<Command> Controller::Handle(const Event& event, TimePoint now) {
  Machines& m = *impl_;
  m.now = now;
  if (m.life.over()) return {};
  if (!m.life.begun() && !std::holds_alternative<event::Started>(event)) return {};
  std::visit(Receiver{m}, event);
  if (Decides(event) && !m.life.over()) Advance(m);
  return m.out.Take();
}

}  // namespace tidepool::scheduler
