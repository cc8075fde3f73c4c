#pragma once
// Means, deviations and whitening, in float64, with the edge cases that group baselines need.
// Pure functions; thread-safe.

#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/base/words.h"

namespace tidepool::algorithms {

double Mean(std::span<const double> x);  // 0 for no values
// max - min <= 1e-8 of the largest magnitude: a mean of equal numbers can be off by an ulp, which a
// deviation of almost 0 would blow up. True for no values, false with a NaN.
bool AllEqual(std::span<const double> x);
// sqrt(sum (x - mean)^2 / (n - ddof)); exactly 0 for ddof values or fewer, and where all are equal.
double Deviation(std::span<const double> x, int64_t ddof);

// Rows by id, in the order in which ids first appear; rows inside ascend. Ids may be interleaved.
std::vector<std::vector<size_t>> GroupRows(std::span<const int64_t> ids);

// x <- (x - mean)/s over the cells with mask 1 (others are left alone). Peers differ in s:
//   add_var    sqrt(var + eps)          verl, slime (ddof 1, eps 1e-8)
//   clamp_var  sqrt(max(var, eps))      OpenRLHF, NeMo-RL (ddof 0, eps 1e-8)
//   add_std    sqrt(var) + eps          AReaL, RLinf (eps 1e-5)
// shift_mean false adds the mean back. Fewer than two cells: nothing is done. s = 0 (only with eps 0):
// values become x - mean.
enum class EpsMode { kAddVar, kClampVar, kAddStd };
constexpr auto WordsOf(EpsMode) { return std::to_array<const char*>({"add_var", "clamp_var", "add_std"}); }
struct WhitenOptions {
  int64_t ddof = 1;
  double eps = 1e-8;
  EpsMode eps_mode = EpsMode::kAddVar;
  bool shift_mean = true;
};
void Whiten(std::span<double> x, std::span<const uint8_t> mask, const WhitenOptions& options);
// The same with statistics of the masked cells applied to every cell.
void WhitenAll(std::span<double> x, std::span<const uint8_t> mask, const WhitenOptions& options);

}  // namespace tidepool::algorithms
