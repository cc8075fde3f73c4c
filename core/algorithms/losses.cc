#include "core/algorithms/losses/losses.h"

namespace tidepool::algorithms {

// core/base/plugin_check.h.
std::string FaultOf(const LossPlugin& plugin) { return plugin.terms == nullptr ? "has no .terms" : ""; }

const std::vector<LossEntry>& PolicyLosses() {
  static const std::vector<LossEntry> losses = [] {
    std::vector<LossEntry> all;
    for (const auto& [name, make, file] : LossPlugins()) all.emplace_back(make()).name = name;
    return all;
  }();
  return losses;
}

const LossEntry* FindLoss(std::string_view name) {
  const auto it = std::ranges::find(PolicyLosses(), name, &LossEntry::name);
  return it == PolicyLosses().end() ? nullptr : &*it;
}

OptionSpec ClipLow(Value fallback) {
  return {.name = "clip_low",
          .fallback = fallback,
          .lo = 0,
          .doc = "the ratio is clipped below 1 - this; null: no lower bound"};
}
OptionSpec ClipHigh(Value fallback) {
  return {.name = "clip_high", .fallback = fallback, .lo = 0, .doc = "the ratio is clipped above 1 + this"};
}
OptionSpec LogRatioClamp(Value fallback) {
  return {.name = "log_ratio_clamp",
          .fallback = fallback,
          .lo = 0,
          .doc = "lp - old is clipped to +- this before exp"};
}

}  // namespace tidepool::algorithms
