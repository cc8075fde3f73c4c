#include "core/storage/payload_v1.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/base/little_endian.h"

namespace tidepool::storage {
namespace {

template <typename T>
std::vector<T> GetList(ByteReader& reader) {
  std::vector<T> items(reader.Count(sizeof(T)));
  for (T& item : items) item = reader.Number<T>();
  return items;
}

struct Flat {
  std::vector<int32_t> response;
  std::vector<float> logprobs, log_kept;
  std::vector<sample::VersionRun> versions;
  std::string routing;
  std::vector<uint8_t> loss_mask;
  std::vector<TurnMark> turns;
};

// Cuts the columns where loss begins or ends and where a turn begins.
std::vector<sample::Segment> Cut(Flat flat) {
  using sample::SegmentKind;
  std::vector<sample::Segment> out;
  const size_t n = flat.response.size();
  size_t turn = 0, run = 0;
  int64_t of_run = 0;
  for (size_t i = 0; i <= n; ++i) {
    const bool marked = turn < flat.turns.size() && flat.turns[turn].begin == static_cast<int64_t>(i);
    if (i == n && !marked) break;
    const bool loss = i == n || flat.loss_mask.empty() || flat.loss_mask[i] != 0;
    const SegmentKind kind = loss ? SegmentKind::kTokens : SegmentKind::kObservation;
    if (out.empty() || out.back().kind != kind || marked) {
      out.push_back({.kind = kind});
      if (marked && loss)
        out.back().turn = sample::TurnStart{flat.turns[turn].state, flat.turns[turn].reward_before};
      if (marked) ++turn;
    }
    if (i == n) break;
    sample::Segment& s = out.back();
    s.ids.push_back(flat.response[i]);
    if (loss && !flat.logprobs.empty()) s.logprobs.push_back(flat.logprobs[i]);
    if (loss && !flat.log_kept.empty()) s.log_kept.push_back(flat.log_kept[i]);
    while (run < flat.versions.size() && of_run == flat.versions[run].second) ++run, of_run = 0;
    if (run < flat.versions.size()) {
      ++of_run;
      if (loss) sample::AddVersion(s.versions, flat.versions[run].first, 1);
    }
  }
  const auto first = std::ranges::find(out, SegmentKind::kTokens, &sample::Segment::kind);
  if (first != out.end()) first->routing = std::move(flat.routing);
  return out;
}

}  // namespace

StatusOr<sample::Trajectory> DecodePayloadV1(std::string_view bytes) {
  ByteReader reader(bytes);
  sample::Trajectory t;
  Flat flat;
  const auto size = reader.Number<uint32_t>();
  t.tid.ordinal = reader.Number<int64_t>();
  t.tid.issue = reader.Number<int32_t>();
  t.tid.sample = reader.Number<int32_t>();
  t.att = reader.Number<int32_t>();
  const auto finish = reader.Number<uint8_t>();
  t.finish = static_cast<sample::Finish>(finish);
  t.prompt = sample::PromptSegment(GetList<int32_t>(reader));
  flat.response = GetList<int32_t>(reader);
  flat.logprobs = GetList<float>(reader);
  flat.log_kept = GetList<float>(reader);
  flat.versions.resize(reader.Count(16));
  for (auto& [version, tokens] : flat.versions) {
    version.lineage = reader.Number<int32_t>();
    version.number = reader.Number<int64_t>();
    tokens = reader.Number<int32_t>();
  }
  std::string fragment;
  if (reader.ok() && reader.left() > 0) flat.routing = std::string(reader.String());
  if (reader.ok() && reader.left() > 0) flat.loss_mask = GetList<uint8_t>(reader);
  if (reader.ok() && reader.left() > 0) fragment = std::string(reader.String());
  if (reader.ok() && reader.left() > 0) {
    flat.turns.resize(reader.Count(24));
    for (TurnMark& turn : flat.turns) {
      turn.begin = reader.Number<int64_t>();
      turn.state = reader.Number<uint64_t>();
      turn.reward_before = reader.Number<double>();
    }
  }
  const size_t n = flat.response.size();
  const auto fits = [n](size_t items) { return items == 0 || items == n; };
  bool sound = reader.ok() && reader.left() == 0 && size == bytes.size() &&
               finish <= static_cast<uint8_t>(sample::Finish::kLength) && fits(flat.loss_mask.size()) &&
               fits(flat.logprobs.size()) && fits(flat.log_kept.size());
  int64_t covered = 0;
  for (const auto& [version, tokens] : flat.versions) {
    sound = sound && version.valid() && tokens > 0;
    covered += tokens;
  }
  if (sound && !fragment.empty()) {
    sample::Segment& s = t.segments.emplace_back();
    s.kind = sample::SegmentKind::kFragment;
    s.fragment = std::move(fragment);
    s.versions = std::move(flat.versions);
    s.fragment_steps = covered;
    return t;
  }
  if (!sound || !fits(static_cast<size_t>(covered))) return DataLoss("the bytes are no payload");
  t.segments = Cut(std::move(flat));
  return t;
}

}  // namespace tidepool::storage
