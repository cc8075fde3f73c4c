#pragma once
// What a modelled job is like: how long its answers are, how many turns they have, how long its environments
// take. All draws are hashes of the seed and the sample, so they are the same whatever the order of events.

#include <cstdint>
#include <map>
#include <vector>

#include "core/base/ids.h"
#include "core/base/job_shape.h"

namespace tidepool::scheduler {

class WorkloadDraws {
 public:
  // `recorded`: lengths of a real run; not empty: instead of `lengths` (groups that are not in it are like
  // some group of it). max_new_tokens: the limit of an answer; max_turn_tokens: of a turn of an episode, 0:
  // none. A limited turn is taken to be as long as it may, so that the number of turns follows from the
  // length.
  WorkloadDraws(uint64_t seed, const LengthShape& lengths, const TurnShape& turns,
                const std::map<SampleId, int64_t>& recorded, int64_t max_new_tokens, int64_t max_turn_tokens);

  [[nodiscard]] int64_t Length(const SampleId& tid) const;
  [[nodiscard]] int64_t Turns(const SampleId& tid) const;
  // Of turns that are played inside the engine's worker: the length of each, and the time between two.
  [[nodiscard]] int64_t TurnTokens(const SampleId& tid) const;
  [[nodiscard]] double EnvironmentSeconds(const SampleId& tid, int64_t at) const;
  // Of episodes: the time of a turn, and the policy's tokens in it (the length has the observations in it).
  [[nodiscard]] double TurnSeconds(const SampleId& tid, int64_t turn) const;
  [[nodiscard]] int64_t Said(const SampleId& tid) const;
  // The n-th factor of `key`: lognormal, mean 1, deviation about sigma.
  [[nodiscard]] double Jitter(uint64_t key, uint32_t n, double sigma) const;

 private:
  [[nodiscard]] double Unit(uint64_t key, uint32_t a, uint32_t b) const;
  [[nodiscard]] double Normal(uint64_t key, uint32_t a) const;
  [[nodiscard]] double RawLength(const SampleId& tid, double m) const;
  void Calibrate();

  uint64_t seed_;
  LengthShape lengths_;
  TurnShape turns_;
  std::map<SampleId, int64_t> recorded_;
  std::vector<std::vector<int64_t>>
      groups_;  // recorded lengths, by group: siblings are alike, and the longest counts
  int64_t max_new_tokens_, max_turn_tokens_;
  double mu_ = 0;  // of log length
};

}  // namespace tidepool::scheduler
