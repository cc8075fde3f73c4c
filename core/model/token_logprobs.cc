#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include "core/model/decoder.h"
#include "core/model/decoder_impl.h"

namespace tidepool::model {
namespace {

template <typename T>
void Run(const at::Tensor& logits, std::span<const int32_t> ids, float inv, float* logprobs, float* entropy,
         float* lse) {
  const int64_t vocab = logits.size(1);
  const auto* p = static_cast<const T*>(logits.const_data_ptr());
  ParallelItems(logits.size(0), 12 * vocab, [&](int64_t begin, int64_t end) {
    device::Kernels<T>().token_logprob(begin, end, vocab, p, ids.data(), inv, logprobs, entropy, lse);
  });
}

template <typename T>
void RunBackward(at::Tensor& logits, std::span<const int32_t> ids, float inv, std::span<const float> lse,
                 std::span<const float> entropy, std::span<const float> dlogprobs,
                 std::span<const float> dentropy) {
  const int64_t vocab = logits.size(1);
  ParallelItems(logits.size(0), 12 * vocab, [&](int64_t begin, int64_t end) {
    device::Kernels<T>().token_logprob_backward(begin, end, vocab, Ptr<T>(logits), ids.data(), inv, lse.data(),
                                        entropy.empty() ? nullptr : entropy.data(), dlogprobs.data(),
                                        dentropy.empty() ? nullptr : dentropy.data());
  });
}

void CheckLogits(const at::Tensor& logits, std::span<const int32_t> ids) {
  TP_CHECK(logits.dim() == 2 && logits.is_contiguous()) << "logits: [n, vocab], contiguous, are expected";
  TP_CHECK(static_cast<int64_t>(ids.size()) == logits.size(0))
      << ids.size() << " ids for " << logits.size(0) << " rows of logits";
  TP_CHECK(logits.scalar_type() == at::kFloat || logits.scalar_type() == at::kBFloat16)
      << "logits: float32 or bfloat16";
  for (const int32_t id : ids)
    TP_CHECK(id >= 0 && id < logits.size(1)) << "token id " << id << " of " << logits.size(1);
}

}  // namespace

void TokenLogProbs(const at::Tensor& logits, std::span<const int32_t> ids, float temperature,
                   std::span<float> logprobs, std::span<float> entropy, std::span<float> lse) {
  CheckLogits(logits, ids);
  TP_CHECK(temperature > 0) << "temperature " << temperature;
  TP_CHECK(logprobs.size() == ids.size() && (entropy.empty() || entropy.size() == ids.size()) &&
           (lse.empty() || lse.size() == ids.size()))
      << "outputs of another length than ids";
  float* e = entropy.empty() ? nullptr : entropy.data();
  float* l = lse.empty() ? nullptr : lse.data();
  if (logits.scalar_type() == at::kFloat) {
    Run<float>(logits, ids, 1.0F / temperature, logprobs.data(), e, l);
  } else {
    Run<device::BF16>(logits, ids, 1.0F / temperature, logprobs.data(), e, l);
  }
}

void TokenLogProbsBackward(at::Tensor& logits, std::span<const int32_t> ids, float temperature,
                           std::span<const float> lse, std::span<const float> entropy,
                           std::span<const float> dlogprobs, std::span<const float> dentropy) {
  CheckLogits(logits, ids);
  TP_CHECK(lse.size() == ids.size() && dlogprobs.size() == ids.size() && entropy.size() == dentropy.size() &&
           (entropy.empty() || entropy.size() == ids.size()))
      << "inputs of another length than ids";
  if (logits.scalar_type() == at::kFloat) {
    RunBackward<float>(logits, ids, 1.0F / temperature, lse, entropy, dlogprobs, dentropy);
  } else {
    RunBackward<device::BF16>(logits, ids, 1.0F / temperature, lse, entropy, dlogprobs, dentropy);
  }
}

}  // namespace tidepool::model
