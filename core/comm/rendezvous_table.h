#pragma once
// A rendezvous in the memory of one process: that of the controller, which ranks ask over their links
// (workers/net/link.h), or of a test whose ranks are threads.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/base/thread_annotations.h"
#include "core/comm/rendezvous.h"

namespace tidepool::comm {

class RendezvousTable final : public Rendezvous {
 public:
  // A rank sets an address for each of the others, some hundreds of bytes, and a certificate.
  static constexpr size_t kMostKeys = 1 << 16, kMostKeyBytes = 256, kMostValueBytes = 1 << 20,
                          kMostBytes = 64 << 20;
  // Of one question: below what a message may have.
  static constexpr size_t kMostAsked = 4096, kMostAnswered = 3 << 20;

  Status Set(const std::string& key, const std::string& value) override TP_EXCLUDES(mu_);
  StatusOr<std::vector<std::string>> Get(const std::vector<std::string>& keys,
                                         std::chrono::milliseconds patience) override TP_EXCLUDES(mu_);
  StatusOr<int64_t> Add(const std::string& key, int64_t n) override TP_EXCLUDES(mu_);
  // The group is over, whoever waits hears why, and nothing is kept.
  void Close(const std::string& why) TP_EXCLUDES(mu_);

 private:
  Status Put(const std::string& key, std::string value) TP_REQUIRES(mu_);

  Mutex mu_;
  Condition changed_;
  std::map<std::string, std::string> values_ TP_GUARDED_BY(mu_);
  size_t bytes_ TP_GUARDED_BY(mu_) = 0;
  Status over_ TP_GUARDED_BY(mu_);
};

}  // namespace tidepool::comm
