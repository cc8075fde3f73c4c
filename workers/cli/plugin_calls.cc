#include "workers/cli/plugin_calls.h"

#include <chrono>
#include <cstdlib>
#include <future>

#include "workers/net/mailbox.h"

namespace tidepool::workers {

struct PluginCalls::Shared {
  Mailbox<std::packaged_task<void()>> work;
  void Work(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      for (auto& task : work.TakeAll(std::chrono::seconds(1))) task();
    }
  }
};

PluginCalls::PluginCalls(std::function<bool()> stop)
    : stop_(std::move(stop)), shared_(std::make_shared<Shared>()) {
  thread_ = std::jthread([shared = shared_](const std::stop_token& stop) { shared->Work(stop); });
}
PluginCalls::~PluginCalls() {
  thread_.request_stop();
  shared_->work.Put(std::packaged_task<void()>([] {}));  // wakes it
  if (!lost_.ok()) thread_.detach();                     // it may never come back
}

Status PluginCalls::Run(const PluginCall& call, std::function<void()> body) {
  TP_RETURN_IF_ERROR(lost_);
  std::packaged_task<void()> task(std::move(body));
  // waits: for as long as the call may take
  const std::future<void> over = task.get_future();
  const CallWatch::Call watched(watch_, call);
  shared_->work.Put(std::move(task));
  while (over.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready) {
    if (const auto overdue = watch_.Overdue(CallWatch::Clock::now())) {
      lost_ = DeadlineExceeded(overdue->Late());
    } else if (stop_ && stop_()) {
      lost_ = Aborted("stopped while it ran " + call.what + " on " + call.on);
    }
    TP_RETURN_IF_ERROR(lost_);
  }
  return OkStatus();
}

tasks::Reward PluginCalls::LimitedReward(const std::string& label, double timeout_s, tasks::Reward reward) {
  return [this, label, timeout_s, reward = std::make_shared<const tasks::Reward>(std::move(reward))](
             const tasks::RewardInput& input) {
    // The input is copied: a call that does not come back still reads it when nobody waits any more.
    auto verdict = Call<tasks::Verdict>(
        {.what = label, .on = tasks::NameOf(input), .limit_s = timeout_s, .key = "its timeout_s"},
        [reward, input] { return (*reward)(input); });
    if (verdict.ok()) return *verdict;
    return tasks::Verdict{tasks::Verdict::Outcome::kInfra, 0, verdict.status().message()};
  };
}

void PluginCalls::EndProcess(int code) {
  std::fflush(nullptr);
  std::_Exit(code);
}

}  // namespace tidepool::workers
