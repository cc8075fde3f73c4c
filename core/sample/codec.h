#pragma once
// The one encoding of trajectories: payload files, rows of a batch and tokens on the wire carry these bytes.
//
//   trajectory  format u8 = 1 | tid {i64, i32, i32} | att i32 | finish u8 | n varint, segment[n]
//               (the first segment is the prompt, and it alone)
//   segment     kind u8 | columns u8 (a bit each, in the order below) | n varint, ids i32[n] |
//               1 logprobs f32[n] | 2 log_kept f32[n] | 4 versions varint r, {lineage, number, count
//               varint}[r] | 8 routing {varint, bytes} | 16 fragment {varint, bytes}, steps varint | 32 turn
//               {state u64, reward_before f64} | 64 outline: n varint, and the columns versions and turn
//               alone
//
// Numbers are little-endian; a varint is LEB128 of an unsigned number in as few bytes as it needs. The
// encoding is canonical: one content has one encoding, and bytes that would encode to others are refused. So
// the digest of a content is the hash of its bytes. Decoders are bounded by their input and safe on any
// bytes.

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/sample/trajectory.h"

namespace tidepool::sample {

inline constexpr int64_t kMaxTrajectoryBytes = int64_t{1} << 30;
inline constexpr size_t kMaxSegments = size_t{1} << 16;

// kInvalidArgument: a segment whose shape is wrong, or more than the limits above.
StatusOr<std::string> Encode(const Trajectory& trajectory);
// kDataLoss: the bytes are no trajectory.
StatusOr<Trajectory> Decode(std::string_view bytes);
// One segment alone (format u8 | segment), of any kind: what an engine step adds.
std::string Encode(const Segment& segment);
StatusOr<Segment> DecodeSegment(std::string_view bytes);

// Hash64 of the encoding.  requires a trajectory that can be encoded
uint64_t Digest(const Trajectory& trajectory);

}  // namespace tidepool::sample
