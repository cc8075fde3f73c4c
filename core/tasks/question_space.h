#pragma once
// Splits a task's question space into held-out and training questions without a table.
//
// A space is a list of strata (questions of one length, or of one number of terms); in stratum s a
// question is a code in [0, N_s), and different codes are different questions. Each stratum gives
// an equal share (as far as it has enough), so that short questions are not drowned by the many
// long ones. Inside a stratum, codes are taken in the order of a permutation named by the seed:
// the first h_s are held out, the next t_s are trained on. So they are disjoint, and none repeats.
//
// Pure and immutable; any thread.

#include <cstdint>
#include <vector>

#include "core/base/rng.h"
#include "core/base/status.h"

namespace tidepool::tasks {

inline constexpr int64_t kSpaceLimit = int64_t{1} << 62;  // sizes saturate here
// a * b, saturating at kSpaceLimit; requires a, b >= 0
int64_t SaturatingMultiply(int64_t a, int64_t b);
int64_t SaturatingAdd(int64_t a, int64_t b);
// base^exponent, saturating
int64_t SaturatingPower(int64_t base, int64_t exponent);

class QuestionSpace {
 public:
  struct Pick {
    int64_t stratum = 0;
    int64_t code = 0;
  };
  // kInvalidArgument ("held_out: ..." or "size: ...") if size < 1, held_out < 0 or more than half
  // of the space is to be held out.
  static StatusOr<QuestionSpace> Create(std::vector<int64_t> strata, int64_t size, int64_t held_out,
                                        uint64_t seed);

  [[nodiscard]] int64_t train_size() const { return train_size_; }
  [[nodiscard]] int64_t held_out_size() const { return held_out_size_; }
  [[nodiscard]] Pick Train(int64_t index) const;    // requires 0 <= index < train_size()
  [[nodiscard]] Pick HeldOut(int64_t index) const;  // requires 0 <= index < held_out_size()

 private:
  [[nodiscard]] int64_t Code(int64_t stratum, int64_t place) const;

  std::vector<int64_t> strata_;    // N_s
  std::vector<int64_t> held_out_;  // h_s
  std::vector<int64_t> train_;     // t_s
  int64_t train_size_ = 0;
  int64_t held_out_size_ = 0;
  uint64_t seed_ = 0;
};

// Reads a code as digits of mixed radix: what turns a Pick into the parts of a question. Where the
// parts have more combinations than kSpaceLimit codes, the parts after the code is used up are
// drawn from a generator keyed by (seed, code): still a pure function, and different codes still
// give different parts.
class CodeReader {
 public:
  CodeReader(const QuestionSpace::Pick& pick, uint64_t seed);
  int64_t Take(int64_t n);  // in [0, n); requires n > 0
  int64_t InRange(int64_t lo, int64_t hi) { return lo + Take(hi - lo + 1); }

 private:
  int64_t code_;
  int64_t left_ = kSpaceLimit;  // codes that the unread part can still tell apart
  uint64_t salt_;
  Rng rng_;
};

// Shares `total` over places with the given capacities: as equal as they allow. The sum is
// min(total, sum of capacities).
std::vector<int64_t> EqualShares(int64_t total, const std::vector<int64_t>& capacities);

}  // namespace tidepool::tasks
