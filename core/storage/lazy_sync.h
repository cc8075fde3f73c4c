#pragma once
// Brings files to the disk soon after they were written, where nobody waits for that: one sync a file for all
// that was written to it within kWithin. Thread-safe.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/base/disk_thread.h"
#include "core/base/file_system.h"
#include "core/base/status.h"

namespace tidepool::storage {

class LazySync {
 public:
  static constexpr auto kWithin = std::chrono::milliseconds(20);

  struct Options {
    std::string folder = {};  // in which files are named, for people; empty: by their paths
    // On the disk's thread, which may outlive this object; not of a file that is gone by then. None: what a
    // host has not written when it dies, no disk has. Returns whether to go on with the other files.
    std::function<bool(const std::string& file, const Status& error)> failed = {};
  };
  explicit LazySync(std::shared_ptr<FileSystem> fs, Options options);
  explicit LazySync(std::shared_ptr<FileSystem> fs) : LazySync(std::move(fs), Options()) {}
  // Of those that wait together the ones with a lower rank go first.
  void Soon(const std::string& file, int rank = 0);
  [[nodiscard]] std::optional<DiskThread::Operation> Busy() const { return disk_.Busy(); }
  // False: not within `patience`.
  bool Drain(std::chrono::steady_clock::duration patience) { return disk_.Drain(patience); }

 private:
  struct State;
  std::shared_ptr<State> state_;  // the disk's thread has it too, which may hang
  DiskThread disk_;               // its end syncs what waits
};

}  // namespace tidepool::storage
