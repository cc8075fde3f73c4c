// token_logprob and its backward against the CPU kernels.

#include "tests/core/cuda/device_array.h"

namespace tidepool::cuda {
namespace {

template <typename T>
void Compare(uint64_t seed) {
  TP_NEEDS_DEVICE();
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
  cpu.token_logprob(0, rows,
                    device::TokenLogProbArgs<T>{.rows = rows,
                                                .vocab = vocab,
                                                .logits = logits.data(),
                                                .ids = ids.data(),
                                                .inv_temperature = scale,
                                                .logprob = logprob.data(),
                                                .entropy = entropy.data(),
                                                .lse = lse.data()});
  DeviceArray<T> d_logits(logits);
  const DeviceArray<int32_t> d_ids(ids);
  SameInEveryOrder(seed, what, [&] {
    const DeviceArray<float> a(rows), b(rows), c(rows);
    const device::TokenLogProbArgs<T> args{.rows = rows,
                                           .vocab = vocab,
                                           .logits = d_logits.data(),
                                           .ids = d_ids.data(),
                                           .inv_temperature = scale,
                                           .logprob = a.data(),
                                           .entropy = b.data(),
                                           .lse = c.data()};
    RunKernel(what, [&](Launcher& l) { return TokenLogProb(args, l); });
    ExpectNear(a.Read(), logprob, 2e-5F, 2e-5F, what + " logprob");
    ExpectNear(b.Read(), entropy, 1e-4F, 2e-5F, what + " entropy");
    ExpectNear(c.Read(), lse, 2e-5F, 2e-5F, what + " lse");
    return BytesOf(a.Read(), b.Read(), c.Read());
  });

  std::vector<float> dlogprob = RandomValues<float>(rng, rows),
                     dentropy = RandomValues<float>(rng, rows, 0.1F);
  if (rng.Below(2) == 0) dlogprob.back() = dentropy.back() = 0.0F;
  std::vector<T> dlogits = logits;
  cpu.token_logprob_backward(0, rows, vocab, dlogits.data(), ids.data(), scale, lse.data(), entropy.data(),
                             dlogprob.data(), with_entropy ? dentropy.data() : nullptr);
  const DeviceArray<float> d_lse(lse), d_entropy(entropy), d_dlogprob(dlogprob), d_dentropy(dentropy);
  SameInEveryOrder(seed, what, [&] {
    d_logits.Write(logits);
    const device::TokenLogProbBackwardArgs<T> args{.rows = rows,
                                                   .vocab = vocab,
                                                   .logits = d_logits.data(),
                                                   .ids = d_ids.data(),
                                                   .inv_temperature = scale,
                                                   .lse = d_lse.data(),
                                                   .entropy = d_entropy.data(),
                                                   .dlogprob = d_dlogprob.data(),
                                                   .dentropy = with_entropy ? d_dentropy.data() : nullptr};
    RunKernel(what, [&](Launcher& l) { return TokenLogProbBackward(args, l); });
    // log p is a difference of numbers of up to 20, half an ulp of which is 1e-6; where p is 1, so is 1 - p.
    ExpectNear(d_logits.Read(), dlogits, 4e-6F, 2 * Relative<T>(), what + " backward");
    return BytesOf(d_logits.Read());
  });
}

TEST(TokenLogProbKernelTest, AgreesWithTheCpuForwardAndBackward) {
  for (int64_t seed = 0; seed < FuzzSeeds(12); ++seed) {
    Compare<float>(static_cast<uint64_t>(seed));
    Compare<BF16>(static_cast<uint64_t>(seed));
  }
}

// The formula in float64, at the sizes of real vocabularies: the CPU's kernel adds in float32 as well.
template <typename T>
void CompareWithFormula(uint64_t seed, int64_t vocab) {
  FuzzRng rng(seed);
  const float scale = 1.0F / 0.7F;
  const std::vector<T> logits = RandomValues<T>(rng, vocab, 15.0F);
  const std::vector<int32_t> ids = {static_cast<int32_t>(rng.Below(vocab))};
  double max = -INFINITY, sum = 0, weighted = 0;
  for (const T& z : logits) max = std::fmax(max, AsFloat(z));
  for (const T& z : logits) {
    const double y = (AsFloat(z) - max) * scale;
    sum += std::exp(y);
    weighted += std::exp(y) * y;
  }
  const DeviceArray<T> d_logits(logits);
  const DeviceArray<int32_t> d_ids(ids);
  const DeviceArray<float> logprob(1), entropy(1);
  const device::TokenLogProbArgs<T> args{.rows = 1,
                                         .vocab = vocab,
                                         .logits = d_logits.data(),
                                         .ids = d_ids.data(),
                                         .inv_temperature = scale,
                                         .logprob = logprob.data(),
                                         .entropy = entropy.data()};
  RunKernel("formula", [&](Launcher& l) { return TokenLogProb(args, l); });
  const double want = (AsFloat(logits[static_cast<size_t>(ids[0])]) - max) * scale - std::log(sum);
  EXPECT_NEAR(logprob.Read()[0], want, 2e-5 * (1 + std::abs(want))) << TypeName<T>() << ", " << vocab;
  EXPECT_NEAR(entropy.Read()[0], std::log(sum) - weighted / sum, 1e-4) << TypeName<T>() << ", " << vocab;
}
TEST(TokenLogProbKernelTest, IsTheFormulaForRealVocabularies) {
  TP_NEEDS_DEVICE();
  for (const int64_t vocab : {49152, 151936}) {
    CompareWithFormula<float>(7, vocab);
    CompareWithFormula<BF16>(8, vocab);
  }
}

TEST(TokenLogProbKernelTest, NaNAndForeignIdsGiveNaN) {
  TP_NEEDS_DEVICE();
  const DeviceArray<float> logits(std::vector<float>{0, 1, 2, NAN, 1, 2}), out(2);
  const DeviceArray<int32_t> ids(std::vector<int32_t>{3, 1});
  device::TokenLogProbArgs<float> args{
      .rows = 2, .vocab = 3, .logits = logits.data(), .ids = ids.data(), .logprob = out.data()};
  RunKernel("NaN", [&](Launcher& l) { return TokenLogProb(args, l); });
  EXPECT_TRUE(std::isnan(out.Read()[0]));
  EXPECT_TRUE(std::isnan(out.Read()[1]));
  TestLauncher launcher;  // sizes that the kernel does not take are refused, not read past their end
  args.vocab = 0;
  EXPECT_FALSE(TokenLogProb(args, launcher) == 0);
  args.vocab = 3, args.inv_temperature = 0;
  EXPECT_FALSE(TokenLogProb(args, launcher) == 0);
  args.inv_temperature = 1, args.rows = 0;
  EXPECT_TRUE(TokenLogProb(args, launcher) == 0);
}

}  // namespace
}  // namespace tidepool::cuda
