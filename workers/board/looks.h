#pragma once
// Who looks at files just now. A disk may hang, and with it whoever reads; so a thing is looked at by one
// thread at a time, and some threads always stay free for what else is asked.

#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "core/base/thread_annotations.h"

namespace tidepool::workers {

// Thread-safe.
class Looks {
 public:
  explicit Looks(int64_t most) : most_(most) {}  // at a time

  // Ends with the object.
  class Look {
   public:
    Look(Look&& other) noexcept : looks_(std::exchange(other.looks_, nullptr)), at_(std::move(other.at_)) {}
    Look& operator=(Look&& other) noexcept {
      std::swap(looks_, other.looks_);
      std::swap(at_, other.at_);
      return *this;
    }
    ~Look();

   private:
    friend class Looks;
    Look(Looks* looks, std::string at) : looks_(looks), at_(std::move(at)) {}
    Looks* looks_;
    std::string at_;
  };

  enum class How : uint8_t {
    kWait,    // for a moment, for whoever looks there
    kNow,     // or not at all
    kWithin,  // as kWait, inside another look of this thread, which counts
  };
  // nullopt: somebody looks at `at`, or all looks are taken.
  std::optional<Look> At(const std::string& at, How how = How::kWait);

 private:
  const int64_t most_;
  Mutex mu_;
  Condition ended_;
  std::set<std::string> under_way_ TP_GUARDED_BY(mu_);
  int64_t waiting_ TP_GUARDED_BY(mu_) = 0;
};

}  // namespace tidepool::workers
