#include "core/sample/codec.h"

#include <utility>

#include "core/base/check.h"
#include "core/base/hash.h"
#include "core/base/little_endian.h"

namespace tidepool::sample {
namespace {

constexpr uint8_t kFormat = 1;
enum : unsigned {
  kLogprobs = 1,
  kLogKept = 2,
  kVersions = 4,
  kRouting = 8,
  kFragmentBytes = 16,
  kTurn = 32,
  kOutline = 64
};

void PutVarint(std::string& out, uint64_t x) {
  for (; x >= 0x80; x >>= 7) out.push_back(static_cast<char>(x | 0x80));
  out.push_back(static_cast<char>(x));
}

// In its fewest bytes and below 2^63, else the reader is failed.
uint64_t GetVarint(ByteReader& reader) {
  uint64_t x = 0;
  for (int shift = 0; shift < 63; shift += 7) {
    const auto byte = reader.Number<uint8_t>();
    x |= static_cast<uint64_t>(byte & 0x7FU) << shift;
    if (byte < 0x80) {
      if (byte == 0 && shift > 0) break;
      return x;
    }
  }
  reader.Fail();
  return 0;
}

template <typename T>
void PutAll(std::string& out, const std::vector<T>& items) {
  if constexpr (std::endian::native == std::endian::little) {
    out.append(reinterpret_cast<const char*>(items.data()), items.size() * sizeof(T));
  } else {
    for (const T item : items) PutNumber(out, item);
  }
}

template <typename T>
void GetAll(ByteReader& reader, uint64_t n, std::vector<T>& items) {
  if (n > reader.left() / sizeof(T)) return reader.Fail();
  items.resize(n);
  if constexpr (std::endian::native == std::endian::little) {
    const std::string_view bytes = reader.Bytes(n * sizeof(T));
    if (!bytes.empty()) std::memcpy(items.data(), bytes.data(), bytes.size());
  } else {
    for (T& item : items) item = reader.Number<T>();
  }
}

void PutBytes(std::string& out, std::string_view bytes) {
  PutVarint(out, bytes.size());
  out.append(bytes);
}
// A column that is there has bytes: an empty one is not written.
std::string GetBytes(ByteReader& reader) {
  const uint64_t n = GetVarint(reader);
  if (n == 0 || n > reader.left()) {
    reader.Fail();
    return {};
  }
  return std::string(reader.Bytes(n));
}

void Put(std::string& out, const Segment& s) {
  PutNumber(out, static_cast<uint8_t>(s.kind));
  unsigned columns = 0;
  if (s.turn) columns |= kTurn;
  if (!s.logprobs.empty()) columns |= kLogprobs;
  if (!s.log_kept.empty()) columns |= kLogKept;
  if (!s.versions.empty()) columns |= kVersions;
  if (!s.routing.empty()) columns |= kRouting;
  if (!s.fragment.empty()) columns |= kFragmentBytes;
  if (s.outlined) columns |= kOutline;
  PutNumber(out, static_cast<uint8_t>(columns));
  PutVarint(out, s.ids.size());
  PutAll(out, s.ids);
  PutAll(out, s.logprobs);
  PutAll(out, s.log_kept);
  if (!s.versions.empty()) {
    PutVarint(out, s.versions.size());
    for (const auto& [version, count] : s.versions) {
      PutVarint(out, static_cast<uint64_t>(version.lineage));
      PutVarint(out, static_cast<uint64_t>(version.number));
      PutVarint(out, static_cast<uint64_t>(count));
    }
  }
  if (!s.routing.empty()) PutBytes(out, s.routing);
  if (!s.fragment.empty()) {
    PutBytes(out, s.fragment);
    PutVarint(out, static_cast<uint64_t>(s.fragment_steps));
  }
  if (s.turn) {
    PutNumber(out, s.turn->state);
    PutNumber(out, s.turn->reward_before);
  }
  if (s.outlined) PutVarint(out, static_cast<uint64_t>(*s.outlined));
}

Segment Get(ByteReader& reader) {
  Segment s;
  const auto kind = reader.Number<uint8_t>();
  const auto columns = reader.Number<uint8_t>();
  if (kind > static_cast<uint8_t>(SegmentKind::kFragment) || columns >= 2 * kOutline) reader.Fail();
  s.kind = static_cast<SegmentKind>(kind);
  const uint64_t n = GetVarint(reader);
  GetAll(reader, n, s.ids);
  // A column of no tokens is not written.
  if (n == 0 && (columns & (kLogprobs | kLogKept)) != 0) reader.Fail();
  if ((columns & kLogprobs) != 0) GetAll(reader, n, s.logprobs);
  if ((columns & kLogKept) != 0) GetAll(reader, n, s.log_kept);
  if ((columns & kVersions) != 0) {
    const uint64_t runs = GetVarint(reader);
    if (runs == 0 || runs > reader.left() / 3) reader.Fail();
    for (uint64_t i = 0; i < runs && reader.ok(); ++i) {
      const uint64_t lineage = GetVarint(reader);
      if (lineage > INT32_MAX) reader.Fail();
      const Version version{static_cast<int32_t>(lineage), static_cast<int64_t>(GetVarint(reader))};
      s.versions.emplace_back(version, static_cast<int64_t>(GetVarint(reader)));
    }
  }
  if ((columns & kRouting) != 0) s.routing = GetBytes(reader);
  if ((columns & kFragmentBytes) != 0) {
    s.fragment = GetBytes(reader);
    s.fragment_steps = static_cast<int64_t>(GetVarint(reader));
  }
  if ((columns & kTurn) != 0) {
    TurnStart turn;
    turn.state = reader.Number<uint64_t>();
    turn.reward_before = reader.Number<double>();
    s.turn = turn;
  }
  if ((columns & kOutline) != 0) s.outlined = static_cast<int64_t>(GetVarint(reader));
  if (reader.ok() && !s.CheckShape().ok()) reader.Fail();
  return s;
}

}  // namespace

StatusOr<std::string> Encode(const Trajectory& t) {
  static const Segment kNoPrompt{.kind = SegmentKind::kPrompt};
  const Segment& prompt = t.prompt == nullptr ? kNoPrompt : *t.prompt;
  const std::string who = "trajectory of sample " + ToString(t.tid);
  Status sound = prompt.CheckShape();
  if (prompt.kind != SegmentKind::kPrompt || t.segments.size() >= kMaxSegments)
    sound = InvalidArgument("a prompt that is none, or too many segments");
  size_t bytes = 64 + 4 * prompt.ids.size();
  for (const Segment& s : t.segments) {
    if (sound.ok()) sound = s.CheckShape();
    if (s.outlined.has_value() != t.is_outline()) sound = InvalidArgument("it is an outline in part");
    if (s.kind == SegmentKind::kPrompt || (s.kind == SegmentKind::kFragment && t.segments.size() > 1))
      sound = InvalidArgument("a prompt or a fragment stands behind other segments");
    bytes += 32 + 4 * (s.ids.size() + s.logprobs.size() + s.log_kept.size()) + 24 * s.versions.size() +
             s.routing.size() + s.fragment.size();
  }
  if (sound.ok() && static_cast<int64_t>(bytes) > kMaxTrajectoryBytes)
    sound = InvalidArgument("it takes " + std::to_string(bytes) + " bytes, at most " +
                            std::to_string(kMaxTrajectoryBytes) + " can be stored");
  if (!sound.ok()) return sound.At(who);
  std::string out;
  out.reserve(bytes);
  PutNumber(out, kFormat);
  PutNumber(out, t.tid.ordinal);
  PutNumber(out, t.tid.issue);
  PutNumber(out, t.tid.sample);
  PutNumber(out, t.att);
  PutNumber(out, static_cast<uint8_t>(t.finish));
  PutVarint(out, 1 + t.segments.size());
  Put(out, prompt);
  for (const Segment& s : t.segments) Put(out, s);
  return out;
}

StatusOr<Trajectory> Decode(std::string_view bytes) {
  ByteReader reader(bytes);
  Trajectory t;
  if (reader.Number<uint8_t>() != kFormat)
    return DataLoss("the bytes are no trajectory of format " + std::to_string(kFormat));
  t.tid.ordinal = reader.Number<int64_t>();
  t.tid.issue = reader.Number<int32_t>();
  t.tid.sample = reader.Number<int32_t>();
  t.att = reader.Number<int32_t>();
  const auto finish = reader.Number<uint8_t>();
  t.finish = static_cast<Finish>(finish);
  const uint64_t n = GetVarint(reader);
  if (finish > static_cast<uint8_t>(Finish::kLength) || n == 0 || n > kMaxSegments) reader.Fail();
  for (uint64_t i = 0; i < n && reader.ok(); ++i) {
    Segment s = Get(reader);
    if ((i == 0) != (s.kind == SegmentKind::kPrompt) || (s.kind == SegmentKind::kFragment && n > 2))
      reader.Fail();
    if (i > 0 && s.outlined.has_value() != t.is_outline()) reader.Fail();
    if (i == 0) {
      t.prompt = std::make_shared<const Segment>(std::move(s));
    } else {
      t.segments.push_back(std::move(s));
    }
  }
  if (!reader.ok() || reader.left() != 0) return DataLoss("the bytes are no trajectory");
  return t;
}

std::string Encode(const Segment& segment) {
  std::string out;
  PutNumber(out, kFormat);
  Put(out, segment);
  return out;
}

StatusOr<Segment> DecodeSegment(std::string_view bytes) {
  ByteReader reader(bytes);
  if (reader.Number<uint8_t>() != kFormat)
    return DataLoss("the bytes are no segment of format " + std::to_string(kFormat));
  Segment s = Get(reader);
  if (!reader.ok() || reader.left() != 0) return DataLoss("the bytes are no segment");
  return s;
}

uint64_t Digest(const Trajectory& trajectory) {
  const auto bytes = Encode(trajectory);
  TP_CHECK(bytes.ok()) << bytes.status().message();
  return Hash64(*bytes);
}

}  // namespace tidepool::sample
