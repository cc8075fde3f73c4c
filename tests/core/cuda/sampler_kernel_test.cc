// Draws on the device against device::DrawToken: the same token, bit for bit the same arithmetic.

#include <algorithm>

#include "core/device/cpu/sampler.h"
#include "tests/core/cuda/device_array.h"

namespace tidepool::cuda {
namespace {

template <typename T>
void CompareDraws(uint64_t seed) {
  TP_NEEDS_DEVICE();
  FuzzRng rng(seed + 7777);
  const int64_t rows = rng.Between(1, 3), logit_rows = rng.Between(1, 3),
                vocab = rng.OneOf({1, 5, 255, 256, 300, 1000, 4099});
  const std::string what =
      std::string(TypeName<T>()) + ", seed " + std::to_string(seed) + ", vocab " + std::to_string(vocab);
  const float scale = rng.OneOf({0, 1, 4, 20}) * 1.0F;  // 0: all logits are equal
  std::vector<T> logits = RandomValues<T>(rng, logit_rows * vocab, scale);
  if (rng.Below(2) == 0) {  // many equal logits: edges of the cuts
    for (T& z : logits) RoundTo(std::round(AsFloat(z)), &z);
  }
  if (rng.Below(3) == 0) {  // one token has nearly all mass: cuts leave whole tiles empty
    RoundTo(30.0F, &logits[static_cast<size_t>(vocab - 1 - rng.Below(std::min<int64_t>(vocab, 3)))]);
  }
  std::vector<device::SampleRow> how;
  for (int64_t r = 0; r < rows; ++r) {
    device::SampleRow p;
    p.temperature = rng.Below(8) == 0 ? 0.0F : rng.Below(8) == 0 ? 1e-39F : 0.3F + rng.Uniform();
    if (rng.Below(2) == 0)
      p.top_k = static_cast<int32_t>(rng.Below(2) == 0 ? rng.Between(1, 4) : rng.Between(1, vocab + 1));
    if (rng.Below(2) == 0) p.top_p = 0.05F + 0.9F * rng.Uniform();
    if (rng.Below(3) == 0) p.min_p = 0.9F * rng.Uniform();
    p.log_min_p = std::log(p.min_p);
    p.uniform = rng.Below(3) == 0 ? 0.0F : rng.Below(6) == 0 ? 0x1.fffffep-1F : rng.Uniform();
    how.push_back(p);
  }
  if (rng.Below(6) == 0)
    RoundTo(rng.Below(2) == 0 ? NAN : INFINITY, &logits[static_cast<size_t>(rng.Below(vocab))]);

  std::vector<device::Draw> want;
  std::vector<int32_t> source;
  device::SamplerScratch scratch;
  for (int64_t r = 0; r < rows; ++r) {
    const auto i = static_cast<size_t>(r);
    source.push_back(static_cast<int32_t>(rng.Below(logit_rows)));
    want.push_back(device::DrawToken(logits.data() + source[i] * vocab, vocab, how[i], scratch));
  }
  const DeviceArray<T> d_logits(logits);
  const DeviceArray<int32_t> d_source(source);
  const DeviceArray<device::SampleRow> d_how(how);
  SameInEveryOrder(seed, what, [&] {
    const DeviceArray<int32_t> ids(rows);
    const DeviceArray<float> kept(rows), logprob(rows), again(logit_rows);
    const device::SampleArgs<T> a{.rows = rows,
                                  .logit_rows = logit_rows,
                                  .vocab = vocab,
                                  .logits = d_logits.data(),
                                  .source = d_source.data(),
                                  .how = d_how.data(),
                                  .ids = ids.data(),
                                  .log_kept = kept.data(),
                                  .logprob = logprob.data()};
    RunKernel(what, [&](Launcher& l) { return Sample(a, l); });
    const std::vector<int32_t> got = ids.Read();
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i], want[i].id) << what << ", row " << i << ", " << got[i] << " for " << want[i].id;
      EXPECT_NEAR(kept.Read()[i], want[i].log_kept, 2e-7F * (1 + std::abs(want[i].log_kept))) << what;
    }
    // Of each draw the very bits that a trainer computes again.
    for (size_t i = 0; i < want.size(); ++i) {
      std::vector<int32_t> id(static_cast<size_t>(logit_rows), -1);
      id[static_cast<size_t>(source[i])] = got[i];
      const DeviceArray<int32_t> d_id(id);
      const device::TokenLogProbArgs<T> of{.rows = logit_rows,
                                           .vocab = vocab,
                                           .logits = d_logits.data(),
                                           .ids = d_id.data(),
                                           .inv_temperature = device::InverseTemperature(how[i].temperature),
                                           .logprob = again.data()};
      RunKernel(what, [&](Launcher& l) { return TokenLogProb(of, l); });
      EXPECT_EQ(std::bit_cast<uint32_t>(again.Read()[static_cast<size_t>(source[i])]),
                std::bit_cast<uint32_t>(logprob.Read()[i]))
          << what << ", row " << i;
    }
    return BytesOf(got, kept.Read());
  });
}

TEST(SamplerKernelTest, DrawsWhatTheCpuDraws) {
  for (int64_t seed = 0; seed < FuzzSeeds(60); ++seed) {
    CompareDraws<float>(static_cast<uint64_t>(seed));
    CompareDraws<BF16>(static_cast<uint64_t>(seed));
  }
}

// The row of sampler_test.cc whose second group ends a rounding apart, by tiles and as a whole.
TEST(SamplerKernelTest, ADrawBetweenTwoRoundingsOfAGroupIsATokenWithMass) {
  TP_NEEDS_DEVICE();
  constexpr int64_t kGroup = int64_t{32} * 256;
  std::vector<BF16> z(3 * kGroup, BF16{0});
  for (int64_t i = kGroup; i < 2 * kGroup; ++i)
    RoundTo(i % 256 == 0 && i + 256 < 2 * kGroup ? -28.5F : -100.0F, &z[static_cast<size_t>(i)]);
  const DeviceArray<BF16> logits(z);
  const DeviceArray<int32_t> source(std::vector<int32_t>{0}), id(1);
  const DeviceArray<device::SampleRow> how(std::vector<device::SampleRow>{{.uniform = 0.5F}});
  const DeviceArray<float> kept(1), logprob(1);
  const device::SampleArgs<BF16> a{.rows = 1,
                                   .logit_rows = 1,
                                   .vocab = 3 * kGroup,
                                   .logits = logits.data(),
                                   .source = source.data(),
                                   .how = how.data(),
                                   .ids = id.data(),
                                   .log_kept = kept.data(),
                                   .logprob = logprob.data()};
  RunKernel("two roundings", [&](Launcher& l) { return Sample(a, l); });
  EXPECT_EQ(id.Read()[0], 2 * kGroup - 2 * 256);
}

}  // namespace
}  // namespace tidepool::cuda
