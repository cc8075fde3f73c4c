#pragma once
// Does the ledger prefer a length where it chooses among complete samples (predicate Q10)? Pure.
//
// Left alone it would: long answers take longer, so more of them become too old to be trained. The controller
// asks `Leans` long before the checker says `Unfair`, and then waits for long ones
// (Batches::WaitForStraggler).

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace tidepool::scheduler {

class LengthFairness {
 public:
  void Trained(int64_t tokens) { trained_[Bin(tokens)] += 1; }
  void Dropped(int64_t tokens) { dropped_[Bin(tokens)] += 1; }
  // A step was committed. What is dropped behind the last one is left over, not chosen, and does not count.
  void Step() {
    counted_ = dropped_;
    const auto [most, least] = Extremes(kLeanDrops);
    leans_ = most > kLeanRatio * (least + kFloor);
  }
  // As of the last step: half way to unfair.
  [[nodiscard]] bool Leans() const { return leans_; }

  // Shares of dropped samples by decile of length, where they differ by more than a factor 10 (and 2 %);
  // nothing below 500 drops, which prove nothing.
  [[nodiscard]] std::optional<std::string> Unfair() const {
    const auto [most, least] = Extremes(kDrops);
    if (most <= kRatio * (least + kFloor)) return std::nullopt;
    return "of complete samples " + std::to_string(std::lround(100 * most)) +
           " % are dropped at one length and " + std::to_string(std::lround(100 * least)) + " % at another";
  }

 private:
  // The largest and the smallest share of a decile; 0, 0 with fewer drops than that.
  [[nodiscard]] std::pair<double, double> Extremes(double drops) const {
    double all = 0, dropped = 0;
    for (size_t i = 0; i < kBins; ++i) dropped += counted_[i], all += counted_[i] + trained_[i];
    if (dropped < drops) return {0, 0};
    double least = 1, most = 0, in_decile = 0, in_dropped = 0;
    for (size_t i = 0; i < kBins; ++i) {
      in_decile += counted_[i] + trained_[i];
      in_dropped += counted_[i];
      if (in_decile < all / 10 && i + 1 < kBins) continue;
      if (in_decile >= all / 20) {
        least = std::min(least, in_dropped / in_decile);
        most = std::max(most, in_dropped / in_decile);
      }
      in_decile = in_dropped = 0;
    }
    return {most, least};
  }
  static constexpr size_t kBins = 96;  // quarter powers of two
  static constexpr double kDrops = 500, kRatio = 10, kLeanDrops = 50, kLeanRatio = 5, kFloor = 0.02;
  static size_t Bin(int64_t tokens) {
    return std::min<size_t>(
        kBins - 1,
        static_cast<size_t>(4 * std::log2(1.0 + static_cast<double>(std::max<int64_t>(tokens, 0)))));
  }
  std::array<double, kBins> trained_{}, dropped_{}, counted_{};
  bool leans_ = false;
};

}  // namespace tidepool::scheduler
