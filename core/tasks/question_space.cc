#include "core/tasks/question_space.h"

#include <algorithm>
#include <numeric>

#include "core/base/check.h"
#include "core/base/hash.h"
#include "core/base/rng.h"

namespace tidepool::tasks {

int64_t SaturatingMultiply(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return kSpaceLimit;
  return std::min(product, kSpaceLimit);
}

int64_t SaturatingAdd(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return kSpaceLimit;
  return std::min(sum, kSpaceLimit);
}

int64_t SaturatingPower(int64_t base, int64_t exponent) {
  int64_t power = 1;
  for (int64_t i = 0; i < exponent && power < kSpaceLimit; ++i) {
    const int64_t next = SaturatingMultiply(power, base);
    if (next == power) break;  // base 0 or 1
    power = next;
  }
  return power;
}

std::vector<int64_t> EqualShares(int64_t total, const std::vector<int64_t>& capacities) {
  std::vector<int64_t> shares(capacities.size(), 0);
  std::vector<size_t> order(capacities.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // From the smallest up: what a small place cannot take is left to the larger ones.
  std::ranges::stable_sort(order, {}, [&](size_t i) { return capacities[i]; });
  int64_t left = total;
  for (size_t k = 0; k < order.size(); ++k) {
    const auto places = static_cast<int64_t>(order.size() - k);
    // Rounded up for the last (largest) places, so that nothing is left over.
    const int64_t share = std::min(left / places, capacities[order[k]]);
    shares[order[k]] = share;
    left -= share;
  }
  return shares;
}

StatusOr<QuestionSpace> QuestionSpace::Create(std::vector<int64_t> strata, int64_t size, int64_t held_out,
                                              uint64_t seed) {
  int64_t space = 0;
  std::vector<int64_t> halves;
  for (const int64_t n : strata) {
    TP_CHECK(n >= 1 && n <= kSpaceLimit) << "a stratum of " << n << " questions";
    space = SaturatingAdd(space, n);
    halves.push_back(n / 2);
  }
  int64_t most = 0;
  for (const int64_t n : halves) most = SaturatingAdd(most, n);
  if (size < 1)
    return InvalidArgument("size: expected at least 1 training question; found " + std::to_string(size));
  if (held_out < 0 || held_out > most) {
    return InvalidArgument("held_out: expected 0 to " + std::to_string(most) + ", half of the " +
                           std::to_string(space) + " questions that these options give; found " +
                           std::to_string(held_out) + "; hold out fewer, or widen the task's options");
  }
  QuestionSpace result;
  result.held_out_ = EqualShares(held_out, halves);
  std::vector<int64_t> rest;
  for (size_t s = 0; s < strata.size(); ++s) rest.push_back(strata[s] - result.held_out_[s]);
  result.train_ = EqualShares(size, rest);
  result.strata_ = std::move(strata);
  result.held_out_size_ = std::accumulate(result.held_out_.begin(), result.held_out_.end(), int64_t{0});
  result.train_size_ = std::accumulate(result.train_.begin(), result.train_.end(), int64_t{0});
  result.seed_ = seed;
  return result;
}

int64_t QuestionSpace::Code(int64_t stratum, int64_t place) const {
  return PermutedIndex(place, strata_[static_cast<size_t>(stratum)],
                       Mix64(seed_ ^ Mix64(static_cast<uint64_t>(stratum) + 1)));
}

CodeReader::CodeReader(const QuestionSpace::Pick& pick, uint64_t seed)
    : code_(pick.code),
      salt_(Mix64(seed ^ Mix64(static_cast<uint64_t>(pick.stratum) + 1))),
      rng_(Mix64(salt_ ^ Mix64(static_cast<uint64_t>(pick.code)))) {}

int64_t CodeReader::Take(int64_t n) {
  TP_CHECK(n > 0) << "Take(" << n << ")";
  if (left_ == 0) return rng_.Below(n);
  if (left_ >= n) {
    const int64_t digit = code_ % n;
    code_ /= n;
    left_ = left_ / n + (left_ % n != 0 ? 1 : 0);
    if (left_ == 1) left_ = 0;
    return digit;
  }
  // The last digit that the code reaches has fewer than n values: moved by a fixed amount, so that
  // it does not always lie at the low end.
  left_ = 0;
  return static_cast<int64_t>((static_cast<uint64_t>(code_) + salt_ % static_cast<uint64_t>(n)) %
                              static_cast<uint64_t>(n));
}

QuestionSpace::Pick QuestionSpace::Train(int64_t index) const {
  TP_CHECK(index >= 0 && index < train_size_) << index << " of " << train_size_;
  // Shuffled, so that a prefix of the training questions mixes the strata too.
  int64_t place = PermutedIndex(index, train_size_, Mix64(seed_ ^ 0x747261696eULL));
  int64_t s = 0;
  while (place >= train_[static_cast<size_t>(s)]) place -= train_[static_cast<size_t>(s++)];
  return {s, Code(s, held_out_[static_cast<size_t>(s)] + place)};
}

QuestionSpace::Pick QuestionSpace::HeldOut(int64_t index) const {
  TP_CHECK(index >= 0 && index < held_out_size_) << index << " of " << held_out_size_;
  int64_t place = PermutedIndex(index, held_out_size_, Mix64(seed_ ^ 0x68656c64ULL));
  int64_t s = 0;
  while (place >= held_out_[static_cast<size_t>(s)]) place -= held_out_[static_cast<size_t>(s++)];
  return {s, Code(s, place)};
}

}  // namespace tidepool::tasks
