// The kernel against the CPU reference (needs a GPU), and the reference against values known in closed form.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/cuda/cuda_module.h"
#include "core/cuda/token_logprob_reference.h"
#include "tests/core/cuda/test_framework.h"

namespace tidepool::cuda {
namespace {

// A small generator of its own, so that these tests need no other folder (Numerical Recipes' LCG).
class Noise {
 public:
  explicit Noise(uint64_t seed) : state_(seed) {}
  double Uniform() {
    state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<double>(state_ >> 11) * 0x1.0p-53;
  }

 private:
  uint64_t state_;
};

uint16_t ToBFloat16(float v) {  // nearest, ties to even; finite
  const auto bits = std::bit_cast<uint32_t>(v);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
float FromBFloat16(uint16_t v) { return std::bit_cast<float>(static_cast<uint32_t>(v) << 16); }

struct Result {
  std::vector<float> logprobs;
  std::vector<float> entropy;
};

Status OnDevice(const CudaModule& module, ElementType type, const void* logits, int64_t bytes,
                int64_t row_stride, const std::vector<int32_t>& ids, int64_t vocab, float temperature,
                Result* out) {
  const auto n = static_cast<int64_t>(ids.size());
  TP_ASSIGN_OR_RETURN(DeviceMemory z, module.Allocate(bytes));
  TP_ASSIGN_OR_RETURN(DeviceMemory device_ids, module.Allocate(n * 4));
  TP_ASSIGN_OR_RETURN(DeviceMemory logprobs, module.Allocate(n * 4));
  TP_ASSIGN_OR_RETURN(DeviceMemory entropy, module.Allocate(n * 4));
  TP_RETURN_IF_ERROR(module.Copy(z.data(), logits, bytes));
  TP_RETURN_IF_ERROR(module.Copy(device_ids.data(), ids.data(), n * 4));
  TP_RETURN_IF_ERROR(module.TokenLogProb({.type = type,
                                          .logits = z.data(),
                                          .row_stride = row_stride,
                                          .ids = static_cast<const int32_t*>(device_ids.data()),
                                          .n = n,
                                          .vocab = vocab,
                                          .temperature = temperature,
                                          .logprobs = static_cast<float*>(logprobs.data()),
                                          .entropy = static_cast<float*>(entropy.data())}));
  TP_RETURN_IF_ERROR(module.Synchronize());
  out->logprobs.resize(ids.size());
  out->entropy.resize(ids.size());
  TP_RETURN_IF_ERROR(module.Copy(out->logprobs.data(), logprobs.data(), n * 4));
  return module.Copy(out->entropy.data(), entropy.data(), n * 4);
}

TEST(TokenLogProbTest, TheReferenceIsTheFormula) {
  const std::vector<float> logits = {0.0F, std::log(3.0F), 1000.0F, -1000.0F};
  const std::vector<int32_t> ids = {1, 0};
  std::vector<double> logprobs(2);
  std::vector<double> entropy(2);
  TokenLogProbReference(logits, ids, 1.0F, logprobs, entropy);
  EXPECT_NEAR(logprobs[0], std::log(0.75), 1e-6);
  EXPECT_NEAR(entropy[0], -0.75 * std::log(0.75) - 0.25 * std::log(0.25), 1e-6);
  EXPECT_NEAR(logprobs[1], 0.0, 1e-12);
  EXPECT_NEAR(entropy[1], 0.0, 1e-12);
  TokenLogProbReference(logits, ids, 2.0F, logprobs, {});
  EXPECT_NEAR(logprobs[0], std::log(std::sqrt(3.0) / (1 + std::sqrt(3.0))), 1e-6);
}

TEST(TokenLogProbTest, TheKernelAgreesWithTheReference) {
  const auto module = CudaModule::Load(TIDEPOOL_CUDA_MODULE);
  if (!module.ok()) GTEST_SKIP() << module.status().ToString();
  Noise noise(7);
  for (const int64_t vocab : {1, 7, 255, 256, 1000, 49152, 151936}) {
    for (const int64_t n : {1, 5, 33}) {
      for (const float temperature : {1.0F, 0.7F}) {
        // Rows may lie apart and off the 16 bytes that the fast path wants.
        const int64_t stride = vocab + (n == 5 ? 3 : 0);
        std::vector<float> wide(static_cast<size_t>(n * stride));
        std::vector<uint16_t> narrow(wide.size());
        std::vector<float> rounded(wide.size());
        for (size_t i = 0; i < wide.size(); ++i) {
          wide[i] = static_cast<float>(30 * (noise.Uniform() - 0.5));
          narrow[i] = ToBFloat16(wide[i]);
          rounded[i] = FromBFloat16(narrow[i]);
        }
        std::vector<int32_t> ids(static_cast<size_t>(n));
        for (int32_t& id : ids) id = static_cast<int32_t>(noise.Uniform() * static_cast<double>(vocab));
        for (const bool bf16 : {false, true}) {
          Result got;
          const Status status =
              bf16 ? OnDevice(*module, ElementType::kBFloat16, narrow.data(),
                              static_cast<int64_t>(narrow.size()) * 2, stride, ids, vocab, temperature, &got)
                   : OnDevice(*module, ElementType::kFloat32, wide.data(),
                              static_cast<int64_t>(wide.size()) * 4, stride, ids, vocab, temperature, &got);
          ASSERT_TRUE(status.ok()) << status.ToString();
          std::vector<float> packed;
          for (int64_t row = 0; row < n; ++row) {
            const auto& from = bf16 ? rounded : wide;
            packed.insert(packed.end(), from.begin() + row * stride, from.begin() + row * stride + vocab);
          }
          std::vector<double> logprobs(ids.size());
          std::vector<double> entropy(ids.size());
          TokenLogProbReference(packed, ids, temperature, logprobs, entropy);
          for (size_t i = 0; i < ids.size(); ++i) {
            // float32 sums of up to 150 k terms over 256 threads, and __expf within 2 ulp + |y| 2^-23.
            EXPECT_NEAR(got.logprobs[i], logprobs[i], 2e-5 * (1 + std::abs(logprobs[i])))
                << "vocab " << vocab << " row " << i << " bf16 " << bf16;
            EXPECT_NEAR(got.entropy[i], entropy[i], 1e-4)
                << "vocab " << vocab << " row " << i << " bf16 " << bf16;
          }
        }
      }
    }
  }
}

TEST(TokenLogProbTest, ARowDoesNotDependOnTheOthers) {
  const auto module = CudaModule::Load(TIDEPOOL_CUDA_MODULE);
  if (!module.ok()) GTEST_SKIP() << module.status().ToString();
  constexpr int64_t kVocab = 1000;
  Noise noise(8);
  std::vector<float> logits(64 * kVocab);
  for (float& v : logits) v = static_cast<float>(10 * noise.Uniform());
  std::vector<int32_t> ids(64, 5);
  Result all;
  ASSERT_TRUE(OnDevice(*module, ElementType::kFloat32, logits.data(), 64 * kVocab * 4, kVocab, ids, kVocab,
                       1.0F, &all)
                  .ok());
  for (const size_t row : {size_t{0}, size_t{31}, size_t{63}}) {
    Result one;
    ASSERT_TRUE(OnDevice(*module, ElementType::kFloat32, logits.data() + row * kVocab, kVocab * 4, kVocab,
                         {5}, kVocab, 1.0F, &one)
                    .ok());
    EXPECT_EQ(std::bit_cast<uint32_t>(one.logprobs[0]), std::bit_cast<uint32_t>(all.logprobs[row]));
    EXPECT_EQ(std::bit_cast<uint32_t>(one.entropy[0]), std::bit_cast<uint32_t>(all.entropy[row]));
  }
}

TEST(TokenLogProbTest, WrongInputIsNotReadPastItsEnd) {
  const auto module = CudaModule::Load(TIDEPOOL_CUDA_MODULE);
  if (!module.ok()) GTEST_SKIP() << module.status().ToString();
  std::vector<float> logits = {0, 1, 2, std::numeric_limits<float>::quiet_NaN(), 1, 2};
  Result got;
  ASSERT_TRUE(OnDevice(*module, ElementType::kFloat32, logits.data(), 24, 3, {3, 1}, 3, 1.0F, &got).ok());
  EXPECT_TRUE(std::isnan(got.logprobs[0]));  // id outside the vocabulary
  EXPECT_TRUE(std::isnan(got.logprobs[1]));  // a logit that is NaN
  EXPECT_FALSE(module->TokenLogProb({.n = 1, .vocab = 0}).ok());
  EXPECT_FALSE(module->TokenLogProb({.row_stride = 1, .n = 1, .vocab = 2}).ok());
  EXPECT_FALSE(module->TokenLogProb({.row_stride = 2, .n = 1, .vocab = 2, .temperature = 0}).ok());
  EXPECT_TRUE(module->TokenLogProb({.n = 0, .vocab = 2}).ok());
}

}  // namespace
}  // namespace tidepool::cuda
