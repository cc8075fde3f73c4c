#include "workers/board/looks.h"

namespace tidepool::workers {
namespace {

// A look takes milliseconds; one that takes longer than this is not waited for.
constexpr std::chrono::milliseconds kPatience{300};

}  // namespace

Looks::Look::~Look() {
  if (looks_ == nullptr) return;
  const MutexLock lock(looks_->mu_);
  looks_->under_way_.erase(at_);
  looks_->ended_.NotifyAll();
}

std::optional<Looks::Look> Looks::At(const std::string& at, How how) {
  const MutexLock lock(mu_);
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (under_way_.contains(at)) {
    const auto left = end - std::chrono::steady_clock::now();
    // Those that wait take threads, too.
    if (how == How::kNow || left <= left.zero() ||
        static_cast<int64_t>(under_way_.size()) + waiting_ >= most_)
      return std::nullopt;
    ++waiting_;
    ended_.WaitFor(mu_, left);
    --waiting_;
  }
  if (how != How::kWithin && static_cast<int64_t>(under_way_.size()) + waiting_ >= most_) return std::nullopt;
  under_way_.insert(at);
  return Look(this, at);
}

}  // namespace tidepool::workers
