#pragma once
// What this incarnation of a device worker writes into the run's folder: the tokens of the samples that it
// works on (core/storage/token_log.h), and the payloads of those that have ended here, or that it is told to
// write (core/storage/payload.h); and what it reads there of samples that others worked on before. One thread
// calls. Tokens are written by it: they are in the page cache before anybody hears of them, and no disk is
// waited for. Payloads are read together and written by a thread of their own, and tokens are read by another
// one.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/disk_thread.h"
#include "core/base/file_system.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "workers/device/device_machine.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

class SampleLog {
 public:
  struct Options {
    std::string run_dir, run_id;
    Incarnation inc;
    // A payload is on the disk before it is said to be stored. Else the page cache is enough, as in
    // workers/controller/run_storage.h: nothing of the run outlives the machine.
    bool sync = true;  // else within about 20 ms after it
  };
  // `say`: called by another thread while this object is there.
  static StatusOr<std::unique_ptr<SampleLog>> Open(std::shared_ptr<FileSystem> fs, const Options& options,
                                                   std::function<void(up::Stored)> say);
  ~SampleLog();  // what waits is written, for at most DiskThread::kPatience
  SampleLog(const SampleLog&) = delete;
  SampleLog& operator=(const SampleLog&) = delete;
  Status Log(const std::vector<DeviceWork::ToLog>& deltas);
  void Store(HeldTokens::Finished finished);
  void Read(const DeviceWork::ToRead& what);
  // What was read since the last call. kDeadlineExceeded: the disk does not answer.
  std::vector<DeviceWork::WasRead> TakeRead();

 private:
  struct State;
  explicit SampleLog(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;  // the disk's threads have it too, which may hang
  DiskThread disk_, reading_;
};

}  // namespace tidepool::workers
