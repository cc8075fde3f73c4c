#pragma once
// The pages of a worker process (watch_pages.h), from the moment it knows its job. Any thread.

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "core/base/config.h"
#include "core/base/thread_annotations.h"
#include "workers/net/certificates.h"
#include "workers/net/messages.h"
#include "workers/net/watch_pages.h"

namespace tidepool::workers {

// What a device worker knows beyond its heartbeat.
struct DeviceFacts {
  int64_t generated_tokens = 0;       // so far
  std::optional<int64_t> free_bytes;  // of a GPU, when its last operation began
};

class WorkerPages {
 public:
  // It was welcomed; anew: as another incarnation, which changes what it is called. Pages that cannot be
  // shown are told in the log, and the worker goes on without them. controller: the address that it dialled.
  void Welcomed(const std::string& kind, const JobConfig& config, const down::Welcome& welcome,
                const Credentials& credentials, const std::string& controller);
  void Turned();
  // With each heartbeat, which gets the address. may_serve: the controller permits it to work. device:
  // nullopt: it has none.
  void Show(up::Heartbeat& beat, bool may_serve, const std::optional<DeviceFacts>& device = std::nullopt);

 private:
  Mutex mu_;
  std::unique_ptr<WatchPages> pages_ TP_GUARDED_BY(mu_);
  observe::Labels info_ TP_GUARDED_BY(mu_);
  int64_t op_seq_ TP_GUARDED_BY(mu_) = -1;
  std::chrono::steady_clock::time_point moved_ TP_GUARDED_BY(mu_);
};

}  // namespace tidepool::workers
