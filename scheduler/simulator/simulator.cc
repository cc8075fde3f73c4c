#include "scheduler/simulator/simulator_impl.h"

namespace tidepool::scheduler {

StatusOr<SimReport> Simulator::Impl::Run() {
  TP_RETURN_IF_ERROR(CheckProfile(job.hardware));
  if (job.controller.rollout.kv_cache_tokens <= 0) {
    job.controller.rollout.kv_cache_tokens = cost.KvTokens();
    if (job.controller.rollout.kv_cache_tokens <= job.prompt_tokens) {
      return InvalidArgument("workload " + job.name + ": the weights of " + job.model.name +
                             " leave no room for KV on " + std::to_string(job.devices_per_slot) + " x " +
                             job.hardware.name + "; use more devices per slot");
    }
  }
  auto created = Controller::Create(job.controller, {});
  if (!created.ok()) return created.status();
  controller = std::move(created).value();
  for (const auto kind : {kKill, kHang, kPartition, kSlowDisk, kControllerKill}) NextFault(kind);
  if (faults.shape().stop_at_s > 0) Push(faults.shape().stop_at_s, Kind::kFault, kStop);
  Deliver(event::Started{});
  Push(job.tick_s, Kind::kTick);
  Entry e{};
  while (!over && now < job.limit_s && Pop(e)) {
    now = e.t;
    Fire(e);
  }
  if (!over)
    report.why = now >= job.limit_s ? "the virtual time limit was reached" : "nothing is left to happen";
  Summarise();
  return report;
}

void Simulator::Impl::Summarise() {
  report.steps = static_cast<int64_t>(commits.size());
  report.devices = job.controller.fleet.slots * job.devices_per_slot;
  report.records = records;
  report.faults = faults.dealt();
  report.seconds = now;
  const auto steps = static_cast<double>(std::max<size_t>(commits.size(), 1));
  const double span = commits.size() > 1 ? commits.back() - commits.front() : now;
  report.step_s = commits.size() > 1 ? span / (steps - 1) : now;
  report.tokens_per_s = now > 0 ? report.tokens / now : 0;
  const ControllerOptions& c = job.controller;
  report.samples_per_s =
      static_cast<double>(c.batch.groups_per_step * c.batch.group_size) / std::max(report.step_s, 1e-9);
  report.rollout_s /= steps;
  report.tail_s /= steps;
  SlotTime::Cut all;
  for (size_t i = report.per_step.size() > 1 ? 1 : 0; i < report.per_step.size(); ++i)
    all += report.per_step[i].time;
  report.idle_rollout = all.rollout.idle();
  report.idle_actor = all.actor.idle();
  report.share_expanded = all.all > 0 ? all.rollout.held / all.all : 0;
  report.log_hash = hash.value();
}
Simulator::Simulator(const SimJob& job) : impl_(std::make_unique<Impl>(job)) {}
Simulator::~Simulator() = default;
StatusOr<SimReport> Simulator::Run() { return impl_->Run(); }
int64_t Simulator::LengthOf(const SampleId& tid) const { return impl_->draws.Length(tid); }

}  // namespace tidepool::scheduler
