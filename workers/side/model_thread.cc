#include "workers/side/model_thread.h"

#include <c10/util/Exception.h>

#include <cstdio>
#include <exception>
#include <new>
#include <utility>

#include "core/observe/log.h"
#include "workers/device/torch_threads.h"
#include "workers/net/bounded_text.h"

namespace tidepool::workers {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
constexpr milliseconds kLook{50};
// A step that takes so many time-outs does not come back. One that is slow has only lost its callers (infra).
constexpr double kHung = 4;

Clock::time_point In(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

std::string Text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g s", seconds);
  return text;
}

}  // namespace

void AskedTogether::Tell(size_t i, tasks::Verdict verdict) {
  {
    const MutexLock lock(mu_);
    verdicts_[i] = std::move(verdict);
    --missing_;
  }
  done_.NotifyAll();
}

std::optional<Verdicts> AskedTogether::Wait(milliseconds patience) {
  const MutexLock lock(mu_);
  if (!done_.WaitFor(mu_, patience, [&]() TP_REQUIRES(mu_) { return missing_ == 0; })) return std::nullopt;
  return std::exchange(verdicts_, {});
}

ModelThread::ModelThread(const RewardFunction& function, const RewardConfig& reward, CallWatch& watch,
                         std::unique_ptr<GradingModel> model)
    : function_(function),
      threads_(static_cast<int>(reward.threads)),
      load_timeout_s_(reward.load_timeout_s),
      watch_(watch),
      model_(std::move(model)),
      thread_([this](const std::stop_token& stop) { Run(stop); }) {}

ModelThread::~ModelThread() { thread_.request_stop(); }

std::optional<std::string> ModelThread::failure() const {
  const MutexLock lock(mu_);
  return failure_;
}

bool ModelThread::AwaitLoaded(const std::stop_token& stop) {
  const auto until = In(load_timeout_s_);
  const MutexLock lock(mu_);
  while (!loaded_ && !failure_ && !stop.stop_requested() && Clock::now() < until)
    (void)changed_.WaitFor(mu_, kLook, [&]() TP_REQUIRES(mu_) { return loaded_ || failure_; });
  return loaded_ || failure_;
}

Verdicts ModelThread::Ask(RewardInputs inputs, const std::stop_token& stop) {
  const auto failed = [&](const std::string& why) {
    return Verdicts(inputs.size(),
                    {tasks::Verdict::Outcome::kInfra, 0, function_.name + ": " + Bounded(why)});
  };
  if (!AwaitLoaded(stop)) return failed("the model is not loaded yet (reward.load_timeout_s)");
  const auto of = std::make_shared<AskedTogether>(inputs.size());
  std::vector<AskedSample> asked;
  for (size_t i = 0; i < inputs.size(); ++i) asked.push_back({*inputs[i], of, i});
  inbox_.PutAll(std::move(asked));
  for (const auto until = In(function_.timeout_s); Clock::now() < until && !stop.stop_requested();) {
    if (auto verdicts = of->Wait(kLook)) return *std::move(verdicts);
    if (const auto why = failure()) return failed(*why);
  }
  of->Forget();
  return failed("no score within " + Text(function_.timeout_s) +
                "; if it needs longer, raise timeout_s of this function in reward.functions, or "
                "reward.threads, or lower reward.concurrency");
}

void ModelThread::Run(const std::stop_token& stop) {
  Status over;
  try {
    over = Work(stop);
  } catch (const c10::OutOfMemoryError& e) {
    over = ResourceExhausted(std::string("out of memory: ") + e.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    over = ResourceExhausted("out of memory: the host has none");
  } catch (const c10::Error& e) {
    over = Internal(e.what_without_backtrace());
  } catch (const std::exception& e) {
    over = Internal(e.what());
  }
  if (!over.ok()) {
    const MutexLock lock(mu_);
    failure_ = over.message();
  }
  changed_.NotifyAll();
}

Status ModelThread::Work(const std::stop_token& stop) {
  SetTorchThreads(threads_);
  const std::string label = "reward " + function_.name + " (" + function_.path + ")";
  {
    const CallWatch::Call loading(watch_, {.what = label,
                                           .on = "the load of " + function_.path,
                                           .limit_s = load_timeout_s_,
                                           .key = "reward.load_timeout_s"});
    const auto begin = Clock::now();
    TP_RETURN_IF_ERROR(model_->Load());
    observe::Log(observe::LogLevel::kInfo, "reward_model_loaded",
                 {{"reward", function_.name},
                  {"path", function_.path},
                  {"seconds", std::chrono::duration<double>(Clock::now() - begin).count()}});
    const MutexLock lock(mu_);
    loaded_ = true;
  }
  changed_.NotifyAll();
  for (bool busy = false; !stop.stop_requested();) {
    constexpr size_t kMost = 4096;
    std::vector<AskedSample> asked = inbox_.Take(busy ? milliseconds(0) : milliseconds(100), kMost);
    if (asked.empty() && !busy) continue;
    const CallWatch::Call computing(
        watch_, {.what = label,
                 .on = asked.empty() ? "the samples that it has" : tasks::NameOf(asked.front().input),
                 .limit_s = kHung * function_.timeout_s,
                 .key = "its timeout_s, of which this is four times"});
    if (!asked.empty()) model_->Begin(std::move(asked));
    TP_ASSIGN_OR_RETURN(busy, model_->Step());
  }
  return OkStatus();
}

}  // namespace tidepool::workers
