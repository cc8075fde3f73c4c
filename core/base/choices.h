#pragma once
// Enums of the config.

#include <array>
#include <cstdint>

#include "core/base/words.h"

namespace tidepool {

enum class JobKind : uint8_t { kRl, kSft, kDpo, kRewardModel, kDistill };
constexpr auto WordsOf(JobKind) {
  return std::to_array<const char*>({"rl", "sft", "dpo", "reward_model", "distill"});
}

// Of the weights that compute; master weights are float32.
enum class DType : uint8_t { kFloat32, kBFloat16 };
constexpr auto WordsOf(DType) { return std::to_array<const char*>({"float32", "bfloat16"}); }

// What A of an adapter starts as; B starts as zeros.
enum class AdapterInit : uint8_t { kKaiming, kGaussian };
constexpr auto WordsOf(AdapterInit) { return std::to_array<const char*>({"kaiming", "gaussian"}); }

// A small policy for control tasks in place of a language model.
enum class PolicyKind : uint8_t { kNone, kMlp };
constexpr auto WordsOf(PolicyKind) { return std::to_array<const char*>({"", "mlp"}); }

enum class LogLevel : uint8_t { kTrace, kDebug, kInfo, kWarn, kError };
constexpr auto WordsOf(LogLevel) {
  return std::to_array<const char*>({"trace", "debug", "info", "warn", "error"});
}

enum class DeviceKind : uint8_t { kCpu, kCuda };
constexpr auto WordsOf(DeviceKind) { return std::to_array<const char*>({"cpu", "cuda"}); }

// Who generates and who trains when (scheduler/placement.h).
enum class PlacementKind : uint8_t { kColocated, kSplit, kMultiplexed, kElastic };
constexpr auto WordsOf(PlacementKind) {
  return std::to_array<const char*>({"colocated", "split", "multiplexed", "elastic"});
}

// What happens to a group that is older than the bound on lag.
enum class OnStale : uint8_t { kReissue, kMask, kDrop };
constexpr auto WordsOf(OnStale) { return std::to_array<const char*>({"reissue", "mask", "drop"}); }

// Which surplus groups are trained.
enum class OversampleMode : uint8_t { kStartOrder, kFirstDone, kTailRounds };
constexpr auto WordsOf(OversampleMode) {
  return std::to_array<const char*>({"start_order", "first_done", "tail_rounds"});
}

enum class Admission : uint8_t { kReserve, kAdaptive };
constexpr auto WordsOf(Admission) { return std::to_array<const char*>({"reserve", "adaptive"}); }

// What happens to cached keys when weights arrive in mid-sample.
enum class KvOnUpdate : uint8_t { kRecompute, kKeep };
constexpr auto WordsOf(KvOnUpdate) { return std::to_array<const char*>({"recompute", "keep"}); }

enum class WeightTransport : uint8_t { kSharedMemory, kStream };
constexpr auto WordsOf(WeightTransport) { return std::to_array<const char*>({"shared_memory", "stream"}); }

// Where what a trainer holds beside the weights goes while its memory serves another role.
enum class Offload : uint8_t { kNone, kDisk };
constexpr auto WordsOf(Offload) { return std::to_array<const char*>({"none", "disk"}); }

// Of the learning rate after the warm-up.
enum class Schedule : uint8_t { kConstant, kLinear, kCosine };
constexpr auto WordsOf(Schedule) { return std::to_array<const char*>({"constant", "linear", "cosine"}); }

// Over which rewards a mean or a deviation is taken.
enum class Scope : uint8_t { kNone, kBatch, kGroup };
constexpr auto WordsOf(Scope) { return std::to_array<const char*>({"none", "batch", "group"}); }

// Where the KL to the reference acts: as a term of the loss, or taken off each token's reward.
enum class KlPlace : uint8_t { kLoss, kReward };
constexpr auto WordsOf(KlPlace) { return std::to_array<const char*>({"loss", "reward"}); }

// Of d = lp - reference: d, |d|, d^2/2, exp(-d) - 1 + d (core/algorithms/kl.h).
enum class KlKind : uint8_t { kK1, kAbs, kK2, kK3 };
constexpr auto WordsOf(KlKind) { return std::to_array<const char*>({"k1", "abs", "k2", "k3"}); }

enum class CriticLoss : uint8_t { kMse, kHuber };
constexpr auto WordsOf(CriticLoss) { return std::to_array<const char*>({"mse", "huber"}); }

enum class PreferenceLoss : uint8_t { kSigmoid, kIpo };
constexpr auto WordsOf(PreferenceLoss) { return std::to_array<const char*>({"sigmoid", "ipo"}); }

enum class DistillDivergence : uint8_t { kForward, kReverse, kMixed, kGkd };
constexpr auto WordsOf(DistillDivergence) {
  return std::to_array<const char*>({"forward", "reverse", "mixed", "gkd"});
}

}  // namespace tidepool
