#include "core/sample/trajectory.h"

#include <algorithm>
#include <cmath>

namespace tidepool::sample {
namespace {

// A float column of the response: `fill` where a segment does not have it; empty if none has.
std::vector<float> Column(const std::vector<Segment>& segments, std::vector<float> Segment::*column) {
  std::vector<float> out;
  if (std::ranges::all_of(segments, [&](const Segment& s) { return (s.*column).empty(); })) return out;
  for (const Segment& s : segments) {
    const std::vector<float>& part = s.*column;
    out.insert(out.end(), part.begin(), part.end());
    out.resize(out.size() + s.ids.size() - part.size(), 0.0F);
  }
  return out;
}

}  // namespace

void AddVersion(std::vector<VersionRun>& runs, const Version& version, int64_t tokens) {
  if (tokens <= 0) return;
  if (!runs.empty() && runs.back().first == version) {
    runs.back().second += tokens;
  } else {
    runs.emplace_back(version, tokens);
  }
}

void Segment::Append(const Segment& more) {
  if (more.kind == SegmentKind::kFragment) {
    *this = more;
    return;
  }
  if (more.outlined) {
    outlined = size() + more.size();
    for (const auto& [version, count] : more.versions) AddVersion(versions, version, count);
    return;
  }
  if (log_kept.empty() && !more.log_kept.empty()) log_kept.assign(ids.size(), 0.0F);
  ids.insert(ids.end(), more.ids.begin(), more.ids.end());
  logprobs.insert(logprobs.end(), more.logprobs.begin(), more.logprobs.end());
  const bool cut = !log_kept.empty() || !more.log_kept.empty();
  log_kept.insert(log_kept.end(), more.log_kept.begin(), more.log_kept.end());
  if (cut) log_kept.resize(ids.size(), 0.0F);
  routing += more.routing;
  for (const auto& [version, count] : more.versions) AddVersion(versions, version, count);
}

Segment Segment::Tail(int64_t from) const {
  Segment tail;
  const auto cut = [from](const auto& column, auto& out) {
    if (!column.empty()) out.assign(column.begin() + from, column.end());
  };
  cut(ids, tail.ids);
  cut(logprobs, tail.logprobs);
  cut(log_kept, tail.log_kept);
  if (outlined) tail.outlined = *outlined - from;
  int64_t at = 0;
  for (const auto& [version, count] : versions) {
    at += count;
    AddVersion(tail.versions, version, std::min(count, at - from));
  }
  return tail;
}

Status Segment::CheckShape() const {
  const bool sampled = kind == SegmentKind::kTokens, fragments = kind == SegmentKind::kFragment;
  const auto fits = [this](size_t n) { return n == 0 || n == ids.size(); };
  int64_t covered = 0;
  for (size_t i = 0; i < versions.size(); ++i) {
    const auto& [version, count] = versions[i];
    if (!version.valid() || count <= 0 || count > (int64_t{1} << 40) ||
        (i > 0 && versions[i - 1].first == version))
      return InvalidArgument("segment: a version run is not valid");
    covered += count;
  }
  if ((!sampled && (!logprobs.empty() || !log_kept.empty() || !routing.empty() || turn)) ||
      (!sampled && !fragments && !versions.empty()) ||
      (fragments ? !ids.empty() || fragment.empty() != outlined.has_value() || fragment_steps < 0
                 : !fragment.empty() || fragment_steps != 0)) {
    return InvalidArgument(std::string("segment: one of kind ") + Name(kind) +
                           " has a column that this kind does not have, or lacks its own");
  }
  if (outlined && (*outlined < 0 || *outlined > (int64_t{1} << 40) || fragment_steps != 0 ||
                   !(ids.empty() && logprobs.empty() && log_kept.empty() && routing.empty()))) {
    return InvalidArgument("segment: an outline has a length that is none, or a column");
  }
  if (!fits(logprobs.size()) || !fits(log_kept.size()) || (!versions.empty() && covered != size())) {
    return InvalidArgument("segment: " + std::to_string(size()) + " tokens, but there are " +
                           std::to_string(logprobs.size()) + " log-probs, " +
                           std::to_string(log_kept.size()) + " kept masses and versions of " +
                           std::to_string(covered) + "; each has to be as many, or none");
  }
  return OkStatus();
}

Status Segment::CheckSampled(int64_t vocab_size) const {
  TP_RETURN_IF_ERROR(CheckShape());
  if (kind != SegmentKind::kTokens) return InvalidArgument("segment: tokens are expected of an engine");
  if (outlined) return InvalidArgument("segment: tokens are expected of an engine, and this is an outline");
  if (logprobs.size() != ids.size() || versions.empty() != ids.empty())
    return InvalidArgument("segment: " + std::to_string(ids.size()) +
                           " tokens should have as many log-probs, and versions");
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return InvalidArgument("segment: id " + std::to_string(ids[i]) + " is outside the vocabulary of " +
                             std::to_string(vocab_size));
    }
    // A log-probability is at most 0; 1e-3 leaves room for float32 rounding of a large log-sum-exp.
    if (!std::isfinite(logprobs[i]) || logprobs[i] > 1e-3F) {
      return InvalidArgument("segment: log-prob " + std::to_string(logprobs[i]) + " at token " +
                             std::to_string(i) + " is not one");
    }
    if (!log_kept.empty() && (!std::isfinite(log_kept[i]) || log_kept[i] > 1e-3F))
      return InvalidArgument("segment: kept mass at token " + std::to_string(i) + " is not a probability");
  }
  return OkStatus();
}

Segment Segment::Outline() const {
  return {.kind = kind, .versions = versions, .turn = turn, .outlined = size()};
}

Status Trajectory::CheckSampled(int64_t vocab_size) const {
  for (const Segment& s : segments) TP_RETURN_IF_ERROR(s.CheckSampled(vocab_size));
  return OkStatus();
}

Trajectory Trajectory::Outline() const {
  Trajectory out{.tid = tid, .att = att, .finish = finish};
  out.prompt = std::make_shared<const Segment>(
      prompt == nullptr ? Segment{.kind = SegmentKind::kPrompt, .outlined = 0} : prompt->Outline());
  for (const Segment& s : segments) out.segments.push_back(s.Outline());
  return out;
}

bool Trajectory::is_outline() const { return prompt != nullptr && prompt->outlined.has_value(); }

bool operator==(const Trajectory& a, const Trajectory& b) {
  static const Segment kNone{.kind = SegmentKind::kPrompt};
  const auto root = [](const Trajectory& t) -> const Segment& { return t.prompt ? *t.prompt : kNone; };
  return a.tid == b.tid && a.att == b.att && a.finish == b.finish && root(a) == root(b) &&
         a.segments == b.segments;
}

void Trajectory::Append(Segment more) {
  if (!segments.empty() && segments.back().kind == more.kind && !more.turn) {
    segments.back().Append(more);
  } else {
    segments.push_back(std::move(more));
  }
}

int64_t Trajectory::size() const {
  int64_t n = 0;
  for (const Segment& s : segments) n += s.size();
  return n;
}

std::vector<int32_t> Trajectory::Ids() const {
  std::vector<int32_t> out;
  for (const Segment& s : segments) out.insert(out.end(), s.ids.begin(), s.ids.end());
  return out;
}

std::vector<float> Trajectory::Logprobs() const { return Column(segments, &Segment::logprobs); }
std::vector<float> Trajectory::LogKept() const { return Column(segments, &Segment::log_kept); }

std::vector<VersionRun> Trajectory::Versions() const {
  std::vector<VersionRun> out;
  for (const Segment& s : segments) {
    for (const auto& [version, count] : s.versions) AddVersion(out, version, count);
    if (s.versions.empty() && !out.empty()) out.back().second += s.size();
  }
  return out;
}

std::string Trajectory::Routing() const {
  std::string out;
  for (const Segment& s : segments) out += s.routing;
  return out;
}

std::vector<uint8_t> Trajectory::LossMask(std::span<const Version> without_loss) const {
  const auto counts = [&](const Version& v) -> uint8_t {
    return std::ranges::find(without_loss, v) == without_loss.end() ? 1 : 0;
  };
  std::vector<uint8_t> out;
  for (const Segment& s : segments) {
    if (s.kind == SegmentKind::kFragment) {
      out.push_back(s.versions.empty() ? 1 : counts(s.versions.front().first));
    } else if (s.kind != SegmentKind::kTokens || s.versions.empty()) {
      out.insert(out.end(), static_cast<size_t>(s.size()), s.kind == SegmentKind::kTokens ? 1 : 0);
    } else {
      for (const auto& [version, count] : s.versions)
        out.insert(out.end(), static_cast<size_t>(count), counts(version));
    }
  }
  return out;
}

std::vector<TurnMark> Trajectory::Turns() const {
  std::vector<TurnMark> out;
  int64_t at = 0;
  for (const Segment& s : segments) {
    if (s.turn) out.push_back({.begin = at, .state = s.turn->state, .reward_before = s.turn->reward_before});
    at += s.size();
  }
  return out;
}

std::vector<VersionRun> Trajectory::VersionsWithLoss() const {
  std::vector<VersionRun> out;
  for (const Segment& s : segments) {
    for (const auto& [version, count] : s.versions) AddVersion(out, version, count);
  }
  return out;
}

const Segment* Trajectory::Fragment() const {
  return segments.size() == 1 && segments.front().kind == SegmentKind::kFragment ? &segments.front()
                                                                                 : nullptr;
}

std::vector<Segment> TaughtSegments(const std::vector<int32_t>& ids, const std::vector<uint8_t>& mask) {
  std::vector<Segment> out;
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto kind = i >= mask.size() || mask[i] != 0 ? SegmentKind::kTokens : SegmentKind::kObservation;
    if (out.empty() || out.back().kind != kind) out.push_back({.kind = kind});
    out.back().ids.push_back(ids[i]);
  }
  return out;
}

uint64_t HashOfIds(std::span<const int32_t> prompt, std::span<const int32_t> response, size_t n) {
  const auto bytes = [](std::span<const int32_t> ids) {
    return std::string_view(reinterpret_cast<const char*>(ids.data()), ids.size_bytes());
  };
  return Hash64(bytes(response.first(n)), Hash64(bytes(prompt)));
}

std::shared_ptr<const Segment> PromptSegment(std::vector<int32_t> ids) {
  Segment prompt;
  prompt.kind = SegmentKind::kPrompt;
  prompt.ids = std::move(ids);
  return std::make_shared<const Segment>(std::move(prompt));
}

}  // namespace tidepool::sample
