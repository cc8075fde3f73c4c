#pragma once
// Sums of squares in parts that are exact, so that they are the same however the numbers are divided, and in
// whatever order what they give is added up. Part k is a multiple of kSquareUnits[k]. What is left of a
// square below half of the last unit (of a number below 2e-20) is nothing. Exact while the sum is below 2^83
// (a norm of 3e12), and of up to 2^36 numbers; above that it is rounded.

#include <array>
#include <cmath>

namespace tidepool::device {

inline constexpr int kSquareParts = 6;
using SquareParts = std::array<double, kSquareParts>;
// 2^32 apart, so that a part has room for the sum of many remainders of the one before.
inline constexpr SquareParts kSquareUnits = {0x1p30, 0x1p-2, 0x1p-34, 0x1p-66, 0x1p-98, 0x1p-130};

// Moves from each part to the one before what is a multiple of its unit: the parts are then those of their
// sum alone. Not finite, if one was not.
inline void Carry(SquareParts& parts) {
  for (size_t k = kSquareParts - 1; k > 0; --k) {
    const double over = std::floor(parts[k] / kSquareUnits[k - 1]) * kSquareUnits[k - 1];
    parts[k - 1] += over;
    parts[k] -= over;
  }
}
inline double TotalOf(SquareParts parts) {
  Carry(parts);
  double sum = 0;
  for (size_t k = kSquareParts; k-- > 0;) sum += parts[k];
  return sum;
}

}  // namespace tidepool::device
