#pragma once
// Payloads as files of schema 1 hold them: flat columns of the whole response, written until trajectories had
// one codec. Read only.
//
//   payload  bytes u32 (all of it, these four included) | tid {i64, i32, i32} | att i32 | finish u8 |
//            u32 n, prompt i32[n] | u32 n, response i32[n] | u32 n, logprobs f32[n] |
//            u32 n, log_kept f32[n] | u32 n, versions {lineage i32, number i64, tokens i32}[n]
//            and, up to the last one that is not empty: | u32 n, routing u8[n] | u32 n, loss_mask u8[n] | u32
//            n, fragment u8[n] | u32 n, turns {begin i64, state u64, reward_before f64}[n]

#include <cstdint>
#include <string_view>

#include "core/base/status.h"
#include "core/sample/trajectory.h"

namespace tidepool::storage {

inline constexpr uint32_t kSchemaV1 = 1;

// kDataLoss if the bytes do not parse.
StatusOr<sample::Trajectory> DecodePayloadV1(std::string_view bytes);

}  // namespace tidepool::storage
