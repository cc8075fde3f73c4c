#pragma once
// Calls of plug-ins in a command's own process, on a thread beside it, so that the command can end while a
// call hangs: at the call's time-out, or at a signal. One thread makes the calls.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "core/base/limited_call.h"
#include "core/base/status.h"
#include "core/tasks/reward.h"

namespace tidepool::workers {

class PluginCalls {
 public:
  // `stop`: asked often; true: the call under way is given up.
  explicit PluginCalls(std::function<bool()> stop);
  ~PluginCalls();
  PluginCalls(const PluginCalls&) = delete;
  PluginCalls& operator=(const PluginCalls&) = delete;

  // What `body` returns, called on the other thread as a RunningCall. `body` owns what it uses: it may run
  // longer than anybody waits for it. kDataLoss: it threw; kDeadlineExceeded: it did not come back in time,
  // in the words of CallWatch; kAborted: stopped. After the latter two every call is that error.
  template <typename T>
  StatusOr<T> Call(const PluginCall& call, std::function<T()> body) {
    auto out = std::make_shared<std::optional<StatusOr<T>>>();
    TP_RETURN_IF_ERROR(Run(call, [out, call, body = std::move(body)] {
      const RunningCall running(call.what, call.on);
      try {
        out->emplace(body());
      } catch (const std::exception& e) {
        out->emplace(DataLoss(PluginThrew(call, e).what()));
      } catch (...) {
        out->emplace(DataLoss(PluginThrew(call).what()));
      }
    }));
    return std::move(**out);
  }
  // The reward, called so. What is not to be had is kInfra in words.
  tasks::Reward LimitedReward(const std::string& label, double timeout_s, tasks::Reward reward);

  // Not OK: a call was given up, so that its thread is still in it. The process has to end by EndProcess.
  [[nodiscard]] const Status& lost() const { return lost_; }
  // Exit code `code`, without what an exit does in order: the thread may use what that takes away.
  [[noreturn]] static void EndProcess(int code);

 private:
  struct Shared;
  Status Run(const PluginCall& call, std::function<void()> body);

  const std::function<bool()> stop_;
  CallWatch watch_;
  Status lost_ = OkStatus();
  std::shared_ptr<Shared> shared_;  // with the thread, which may outlive this
  std::jthread thread_;             // waits: no call is under way, or it is let go
};

}  // namespace tidepool::workers
