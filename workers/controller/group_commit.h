#pragma once
// Makes files durable beside the loop that writes them: one sync at a time, in the order asked for.
// What was written before Begin is durable once its result is there; writes go on meanwhile.
// Begin, busy and TakeResult belong to one thread.

#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/file_system.h"
#include "workers/net/mailbox.h"

namespace tidepool::workers {

class GroupCommit {
 public:
  // `fs` is thread-safe and outlives this.
  explicit GroupCommit(FileSystem& fs) : fs_(fs), thread_([this](std::stop_token stop) { Run(stop); }) {}
  ~GroupCommit() { thread_.request_stop(), work_.Put({}); }

  // requires: !busy(). Syncs the files in this order.
  void Begin(std::vector<std::string> paths) {
    busy_ = true;
    work_.Put(std::move(paths));
  }
  [[nodiscard]] bool busy() const { return busy_; }
  // Of the sync that was begun last; empty while it goes on, and after it was taken.
  std::optional<Status> TakeResult() {
    auto done = results_.TakeAll(std::chrono::seconds(0));
    if (done.empty()) return std::nullopt;
    busy_ = false;
    return std::move(done.front());
  }

 private:
  void Run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      for (const std::vector<std::string>& paths : work_.TakeAll(std::chrono::seconds(1))) {
        if (stop.stop_requested()) return;
        Status status;
        for (const std::string& path : paths) {
          if (status.ok()) status = fs_.SyncFile(path);
        }
        results_.Put(std::move(status));
      }
    }
  }

  FileSystem& fs_;
  bool busy_ = false;
  Mailbox<std::vector<std::string>> work_;
  Mailbox<Status> results_;
  std::jthread thread_;  // waits: for the sync under way; it looks for a stop after each and once a second
};

}  // namespace tidepool::workers
