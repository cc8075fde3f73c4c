// The table of all kernels. A part of the module, and of the tests that run kernels under the emulation.
#include "core/cuda/kernels/launch_functions.h"

namespace tidepool::cuda {
namespace {

template <typename T>
constexpr Launches<T> MakeLaunches() {
  return {.rms_norm = RmsNorm<T>,
          .rms_norm_backward = RmsNormBackward<T>,
          .rms_norm_backward_weight = RmsNormBackwardWeight<T>,
          .rotary = Rotary<T>,
          .head_norm_backward = HeadNormBackward<T>,
          .add_bias = AddBias<T>,
          .swiglu = SwiGlu<T>,
          .swiglu_backward = SwiGluBackward<T>,
          .token_logprob = TokenLogProb<T>,
          .token_logprob_backward = TokenLogProbBackward<T>,
          .sample = Sample<T>,
          .column_sum = ColumnSum<T>,
          .gather_rows = GatherRows<T>,
          .embedding_backward = EmbeddingBackward,
          .accumulate = Accumulate<T>,
          .widen = WidenArray<T>,
          .narrow = NarrowArray<T>,
          .router = Router<T>,
          .route = Route,
          .grouped_multiply = GroupedMultiply<T>,
          .grouped_multiply_back = GroupedMultiplyBack<T>,
          .grouped_multiply_back_weight = GroupedMultiplyBackWeight<T>,
          .combine_experts = CombineExperts<T>,
          .combine_experts_backward = CombineExpertsBackward<T>,
          .square_sum = SquareSum,
          .adamw = AdamW<T>,
          .decode_attention = DecodeAttention<T>,
          .prefill_attention = PrefillAttention<T>,
          .attention_backward = AttentionBackward<T>};
}

}  // namespace

template <>
const Launches<float>& LaunchTable<float>() {
  static constexpr Launches<float> kTable = MakeLaunches<float>();
  return kTable;
}
template <>
const Launches<BF16>& LaunchTable<BF16>() {
  static constexpr Launches<BF16> kTable = MakeLaunches<BF16>();
  return kTable;
}

// By the word of ElementType (core/cuda/abi.h).
extern "C" __attribute__((visibility("default"))) const void* tidepool_cuda_launches(int type) {
  return type == 0 ? static_cast<const void*>(&LaunchTable<float>()) : &LaunchTable<BF16>();
}

}  // namespace tidepool::cuda
