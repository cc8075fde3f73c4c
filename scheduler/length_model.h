#pragma once
// What a run has learnt about answer lengths: do siblings of a group have similar ones, and how many
// tokens are left of a sample that has x already?
//
// Intra-group correlation of log length over the last 64 finished groups :
//   ICC = var_between / (var_between + var_within),  one-way analysis of variance
//   ICC >= 0.75: siblings predict each other; < 0.75: they do not; > 0.97: one sibling tells everything,
//   so no probe is needed. A mode is left only when ICC is 0.05 beyond its border.
// Mean residual life R(x) by Kaplan-Meier over power-of-1.25 bins: samples that still run, and those that
// were withdrawn, count as censored at the length that they have come to. Pure; not thread-safe.

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

namespace tidepool::scheduler {

enum class SiblingMode : uint8_t { kContext, kIgnore, kNoProbe };

class LengthModel {
 public:
  // All samples of a group that ended by themselves. Returns true if the mode changed.
  bool GroupFinished(const std::vector<int64_t>& lengths);
  // A sample has come to so many tokens and has not ended: it counts as censored there. `bin`: what the last
  // call for this sample returned, -1 at its first. One that is withdrawn stays counted where it was.
  int Running(int bin, int64_t tokens);
  // A sample ended by itself; it counts as censored no longer.
  void Finished(int64_t tokens, int bin = -1);
  [[nodiscard]] SiblingMode mode() const { return mode_; }
  [[nodiscard]] double icc() const { return icc_; }  // -1: fewer than 8 groups so far
  // Expected tokens still to come after x; `prior` where nothing as long has been seen.
  [[nodiscard]] double ResidualLife(int64_t x, double prior) const;
  [[nodiscard]] int64_t finished() const { return finished_; }

 private:
  static constexpr int kBins = 96;
  struct GroupStats {
    double mean = 0, within = 0;  // of log length; within: sum of squares
    int64_t n = 0;
  };
  static int Bin(int64_t tokens);
  static const std::array<int64_t, kBins>& Ends();  // of each bin: the first length beyond it
  std::deque<GroupStats> groups_;
  std::array<double, kBins> ended_{}, censored_{}, length_{};  // counts; sum of lengths of the ended
  int64_t finished_ = 0;
  double icc_ = -1;
  SiblingMode mode_ = SiblingMode::kContext;
};

}  // namespace tidepool::scheduler
