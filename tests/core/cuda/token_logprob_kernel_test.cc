// token_logprob and its backward against the CPU kernels.

#include "tests/core/cuda/device_array.h"

namespace tidepool::cuda {
namespace {

template <typename T>
void Compare(uint64_t seed) {
  std::string why;
  const Launches<T>* device = DeviceKernels<T>(&why);
  if (device == nullptr) GTEST_SKIP() << why;
  const auto& cpu = device::KernelsFor<T>(device::BestIsa());
  FuzzRng rng(seed);
  const int64_t rows = rng.Between(1, 3), vocab = rng.OneOf({1, 7, 255, 256, 257, 1000, 1024, 4104, 5003});
  const float scale = rng.Below(2) == 0 ? 1.0F : 1.0F / 0.7F;
  const std::string what =
      std::string(TypeName<T>()) + ", seed " + std::to_string(seed) + ", vocab " + std::to_string(vocab);
  std::vector<T> logits = RandomValues<T>(rng, rows * vocab, 15.0F);
  std::vector<int32_t> ids;
  for (int64_t r = 0; r < rows; ++r) ids.push_back(static_cast<int32_t>(rng.Below(vocab)));
  const bool with_entropy = rng.Below(2) == 0;
  if (vocab > 2 && rng.Below(2) == 0)  // a masked logit
    RoundTo(-INFINITY, &logits[static_cast<size_t>((ids[0] + 1) % vocab)]);

  const auto n = static_cast<size_t>(rows);
  std::vector<float> logprob(n), entropy(n), lse(n);
  cpu.token_logprob(0, rows, vocab, logits.data(), ids.data(), scale, logprob.data(), entropy.data(),
                    lse.data());
  DeviceArray<T> d_logits(logits);
  const DeviceArray<int32_t> d_ids(ids);
  SameInEveryOrder(seed, what, [&] {
    const DeviceArray<float> a(rows), b(rows), c(rows);
    const int code = device->token_logprob(rows, vocab, d_logits.data(), d_ids.data(), scale, a.data(),
                                           b.data(), c.data(), nullptr);
    ExpectOk(code, what);
    ExpectNear(a.Read(), logprob, 2e-5F, 2e-5F, what + " logprob");
    ExpectNear(b.Read(), entropy, 1e-4F, 2e-5F, what + " entropy");
    ExpectNear(c.Read(), lse, 2e-5F, 2e-5F, what + " lse");
    Bytes out;
    Append(&out, a.Read());
    Append(&out, b.Read());
    Append(&out, c.Read());
    return out;
  });

  std::vector<float> dlogprob = RandomValues<float>(rng, rows),
                     dentropy = RandomValues<float>(rng, rows, 0.1F);
  if (rng.Below(2) == 0) dlogprob[0] = dentropy[0] = 0.0F;
  std::vector<T> dlogits = logits;
  cpu.token_logprob_backward(0, rows, vocab, dlogits.data(), ids.data(), scale, lse.data(), entropy.data(),
                             dlogprob.data(), with_entropy ? dentropy.data() : nullptr);
  const DeviceArray<float> d_lse(lse), d_entropy(entropy), d_dlogprob(dlogprob), d_dentropy(dentropy);
  SameInEveryOrder(seed, what, [&] {
    d_logits.Write(logits);
    const int code = device->token_logprob_backward(rows, vocab, d_logits.data(), d_ids.data(), scale,
                                                    d_lse.data(), d_entropy.data(), d_dlogprob.data(),
                                                    with_entropy ? d_dentropy.data() : nullptr, nullptr);
    ExpectOk(code, what);
    // log p is a difference of numbers of up to 20, half an ulp of which is 1e-6; where p is 1, so is 1 - p.
    ExpectNear(d_logits.Read(), dlogits, 4e-6F, 2 * Relative<T>(), what + " backward");
    Bytes out;
    Append(&out, d_logits.Read());
    return out;
  });
}

TEST(TokenLogProbKernelTest, AgreesWithTheCpuForwardAndBackward) {
  for (int64_t seed = 0; seed < FuzzSeeds(12); ++seed) {
    Compare<float>(static_cast<uint64_t>(seed));
    Compare<BF16>(static_cast<uint64_t>(seed));
  }
}

TEST(TokenLogProbKernelTest, NaNAndForeignIdsGiveNaN) {
  std::string why;
  const Launches<float>* device = DeviceKernels<float>(&why);
  if (device == nullptr) GTEST_SKIP() << why;
  const DeviceArray<float> logits(std::vector<float>{0, 1, 2, NAN, 1, 2}), out(2);
  const DeviceArray<int32_t> ids(std::vector<int32_t>{3, 1});
  ExpectOk(
      device->token_logprob(2, 3, logits.data(), ids.data(), 1.0F, out.data(), nullptr, nullptr, nullptr),
      "NaN");
  EXPECT_TRUE(std::isnan(out.Read()[0]));
  EXPECT_TRUE(std::isnan(out.Read()[1]));
}

}  // namespace
}  // namespace tidepool::cuda
