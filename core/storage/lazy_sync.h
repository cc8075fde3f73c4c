#pragma once
// Brings files to the disk soon after they were written, where nobody waits for that: one sync a file for all
// that was written to it within kWithin. Errors are not told: what a host has not written when it dies, no
// disk has. Thread-safe.

#include <chrono>
#include <memory>
#include <string>

#include "core/base/disk_thread.h"
#include "core/base/file_system.h"

namespace tidepool::storage {

class LazySync {
 public:
  static constexpr auto kWithin = std::chrono::milliseconds(20);

  explicit LazySync(std::shared_ptr<FileSystem> fs);
  void Soon(const std::string& file);

 private:
  struct State;
  std::shared_ptr<State> state_;  // the disk's thread has it too, which may hang
  DiskThread disk_;               // its end syncs what waits
};

}  // namespace tidepool::storage
