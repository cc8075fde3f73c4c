#include "workers/device/turn_order.h"

#include <algorithm>

namespace tidepool::workers {

TurnOrder::Ticket TurnOrder::Ask(TurnKind kind, TimePoint now) {
  waiting_[next_] = {kind, now};
  return next_++;
}

void TurnOrder::SetGenerates(const void* session, bool generates) {
  if (generates)
    generate_.insert(session);
  else
    generate_.erase(session);
}

std::optional<TurnOrder::Ticket> TurnOrder::First(TurnKind kind) const {
  const auto it = std::ranges::find_if(waiting_, [&](const auto& w) { return w.second.kind == kind; });
  return it == waiting_.end() ? std::nullopt : std::optional(it->first);
}

std::optional<TurnOrder::Ticket> TurnOrder::Next(TimePoint now) {
  if (waiting_.empty()) return std::nullopt;
  const auto longest = std::ranges::min_element(waiting_, {}, [](const auto& w) { return w.second.since; });
  std::optional<Ticket> next;
  if (now - longest->second.since >= kPatience) next = longest->first;
  if (!next) next = First(TurnKind::kShort);
  if (!next) next = First(phase_);
  if (!next) {
    if (phase_ == TurnKind::kGenerates && !generate_.empty()) return std::nullopt;  // it comes at once
    phase_ = phase_ == TurnKind::kGenerates ? TurnKind::kTrains : TurnKind::kGenerates;
    next = First(phase_);
  }
  waiting_.erase(*next);
  return next;
}

}  // namespace tidepool::workers
