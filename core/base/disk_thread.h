#pragma once
// A thread for work on a disk, which may take any time: others hand it work, go on, and can see what it is
// at. A disk that hangs holds this thread alone. Thread-safe.

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace tidepool {

class DiskThread {
 public:
  // Names what the work is at now, for Busy; from within the work.
  using Say = std::function<void(std::string operation)>;
  // What was said last, and for how long it has been going on.
  struct Operation {
    std::string name;
    std::chrono::steady_clock::duration takes{0};
  };

  DiskThread();
  // Does what was handed over, for at most kPatience. A thread that hangs in the system is left to it:
  // whatever work touches has to be owned by the work.
  ~DiskThread();
  DiskThread(const DiskThread&) = delete;
  DiskThread& operator=(const DiskThread&) = delete;

  // Works in the order of the calls.
  void Do(std::string operation, std::function<void(const Say&)> work);
  // The same, and gives what the work returns; nullopt: not within `patience`, and it goes on.
  template <typename Work>
  std::optional<std::invoke_result_t<Work>> DoWithin(std::chrono::steady_clock::duration patience,
                                                     std::string operation, Work work) {
    auto answer = std::make_shared<std::promise<std::invoke_result_t<Work>>>();
    auto answered = answer->get_future();
    Do(std::move(operation),
       [answer, work = std::move(work)](const Say&) mutable { answer->set_value(work()); });
    if (answered.wait_for(patience) != std::future_status::ready) return std::nullopt;
    return answered.get();
  }
  [[nodiscard]] std::optional<Operation> Busy() const;
  // Waits until all that was handed over is done. False: not within `patience`.
  bool Drain(std::chrono::steady_clock::duration patience);

  static constexpr auto kPatience = std::chrono::seconds(2);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace tidepool
