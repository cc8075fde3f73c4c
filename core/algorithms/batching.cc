#include "core/algorithms/batching.h"

#include <algorithm>
#include <numeric>
#include <string>

namespace tidepool::algorithms {
StatusOr<std::vector<std::vector<int64_t>>> FirstFitDecreasing(std::span<const int64_t> lengths,
                                                               int64_t capacity) {
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0 || lengths[i] > capacity) {
      return InvalidArgument("row " + std::to_string(i) + " has length " + std::to_string(lengths[i]) +
                             "; expected 0 to " + std::to_string(capacity));
    }
  }
  std::vector<int64_t> falling(lengths.size());
  std::iota(falling.begin(), falling.end(), int64_t{0});
  std::ranges::stable_sort(falling, std::greater<>(),
                           [&](int64_t row) { return lengths[static_cast<size_t>(row)]; });
  std::vector<std::vector<int64_t>> bins;
  std::vector<int64_t> room;
  for (const int64_t row : falling) {
    const int64_t n = lengths[static_cast<size_t>(row)];
    size_t bin = 0;
    while (bin < bins.size() && room[bin] < n) ++bin;
    if (bin == bins.size()) bins.emplace_back(), room.push_back(capacity);
    bins[bin].push_back(row);
    room[bin] -= n;
  }
  for (std::vector<int64_t>& bin : bins) std::ranges::sort(bin);
  return bins;
}

}  // namespace tidepool::algorithms
