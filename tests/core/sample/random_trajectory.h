#pragma once
// Trajectories with random contents of every kind of segment.

#include "core/base/rng.h"
#include "core/sample/trajectory.h"

namespace tidepool::sample {

inline std::string RandomBytes(Rng& rng, int64_t n) {
  std::string out;
  for (; n > 0; --n) out.push_back(static_cast<char>(rng.Next()));
  return out;
}

inline Segment RandomSampled(Rng& rng, int64_t most, int64_t version) {
  Segment s;
  const bool sampled = rng.Chance(0.8), cut = rng.Chance(0.6);
  for (int64_t n = rng.Below(most); n > 0; --n) {
    s.ids.push_back(static_cast<int32_t>(rng.Below(50000)));
    if (!sampled) continue;
    s.logprobs.push_back(-static_cast<float>(rng.Below(1000)) / 100.0F);
    if (cut) s.log_kept.push_back(-0.25F);
    AddVersion(s.versions, Version{static_cast<int32_t>(rng.Below(2)), version + rng.Below(2)}, 1);
  }
  if (sampled && rng.Chance(0.3)) s.routing = RandomBytes(rng, 1 + 6 * static_cast<int64_t>(s.ids.size()));
  return s;
}

inline Trajectory RandomTrajectory(Rng& rng, int64_t ordinal) {
  Trajectory t;
  t.tid = {ordinal, 0, static_cast<int32_t>(rng.Below(8))};
  t.att = static_cast<int32_t>(rng.Below(3));
  t.finish = static_cast<Finish>(rng.Below(3));
  std::vector<int32_t> prompt;
  for (int64_t n = rng.Below(20); n > 0; --n) prompt.push_back(static_cast<int32_t>(rng.Below(50000)));
  t.prompt = PromptSegment(std::move(prompt));
  if (rng.Chance(0.2)) {
    Segment s;
    s.kind = SegmentKind::kFragment;
    s.fragment = RandomBytes(rng, 1 + rng.Below(50));
    s.fragment_steps = 1 + rng.Below(40);
    AddVersion(s.versions, Version{0, ordinal}, s.fragment_steps);
    t.segments.push_back(std::move(s));
    return t;
  }
  const bool episode = rng.Chance(0.5);
  for (int64_t turns = episode ? 1 + rng.Below(4) : 1; turns > 0; --turns) {
    Segment said = RandomSampled(rng, 30, ordinal);
    if (episode) said.turn = TurnStart{rng.Next(), rng.Normal()};
    t.segments.push_back(std::move(said));
    if (turns == 1) break;
    Segment seen{.kind = SegmentKind::kObservation};
    for (int64_t n = rng.Below(8); n > 0; --n) seen.ids.push_back(static_cast<int32_t>(rng.Below(50000)));
    t.segments.push_back(std::move(seen));
  }
  return t;
}

}  // namespace tidepool::sample
