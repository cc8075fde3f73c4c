#include "core/algorithms/advantages.h"

#include <algorithm>

namespace tidepool::algorithms {

// core/base/plugin_check.h.
std::string FaultOf(const AdvantagePlugin& plugin) {
  return plugin.compute == nullptr && plugin.needs.empty()
             ? "has no .compute, and no .needs that says what a job would have to provide for one"
             : "";
}

const std::vector<AdvantageEntry>& AdvantageEstimators() {
  static const std::vector<AdvantageEntry> entries = [] {
    std::vector<AdvantageEntry> all;
    for (const auto& [name, make, file] : AdvantagePlugins()) all.emplace_back(make()).name = name;
    return all;
  }();
  return entries;
}

bool AdvantageEntry::Uses(Provision p) const { return std::ranges::count(provisions, p) > 0; }

const AdvantageEntry* FindAdvantage(std::string_view name) {
  const auto it = std::ranges::find(AdvantageEstimators(), name, &AdvantageEntry::name);
  return it == AdvantageEstimators().end() ? nullptr : &*it;
}

}  // namespace tidepool::algorithms
