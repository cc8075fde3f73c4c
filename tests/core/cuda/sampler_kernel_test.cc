// Draws on the device against device::DrawToken: the same token, bit for bit the same arithmetic.

#include <algorithm>

#include "core/device/cpu/sampler.h"
#include "tests/core/cuda/device_array.h"

namespace tidepool::cuda {
namespace {

template <typename T>
void CompareDraws(uint64_t seed) {
  std::string why;
  const Launches<T>* device = DeviceKernels<T>(&why);
  if (device == nullptr) GTEST_SKIP() << why;
  FuzzRng rng(seed + 7777);
  const int64_t rows = rng.Between(1, 3), vocab = rng.OneOf({1, 5, 255, 256, 300, 1000, 4099});
  const std::string what =
      std::string(TypeName<T>()) + ", seed " + std::to_string(seed) + ", vocab " + std::to_string(vocab);
  const float scale = rng.OneOf({0, 1, 4, 20}) * 1.0F;  // 0: all logits are equal
  std::vector<T> logits = RandomValues<T>(rng, rows * vocab, scale);
  if (rng.Below(2) == 0) {  // many equal logits: edges of the cuts
    for (T& z : logits) RoundTo(std::round(AsFloat(z)), &z);
  }
  if (rng.Below(3) == 0) {  // one token has nearly all mass: cuts leave whole tiles empty
    RoundTo(30.0F, &logits[static_cast<size_t>(vocab - 1 - rng.Below(std::min<int64_t>(vocab, 3)))]);
  }
  std::vector<SampleRow> how;
  for (int64_t r = 0; r < rows; ++r) {
    SampleRow p;
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
  device::SamplerScratch scratch;
  for (int64_t r = 0; r < rows; ++r) {
    const auto i = static_cast<size_t>(r);
    want.push_back(device::DrawToken(logits.data() + r * vocab, vocab, how[i], scratch));
  }
  const DeviceArray<T> d_logits(logits);
  const DeviceArray<SampleRow> d_how(how);
  SameInEveryOrder(seed, what, [&] {
    const DeviceArray<int32_t> ids(rows);
    const DeviceArray<float> logprobs(rows), kept(rows);
    const SampleArgs<T> a{.rows = rows,
                          .vocab = vocab,
                          .logits = d_logits.data(),
                          .how = d_how.data(),
                          .ids = ids.data(),
                          .logprobs = logprobs.data(),
                          .log_kept = kept.data()};
    ExpectOk(device->sample(a, nullptr), what);
    const std::vector<int32_t> got = ids.Read();
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i], want[i].id) << what << ", row " << i << ", " << got[i] << " for " << want[i].id;
      EXPECT_NEAR(kept.Read()[i], want[i].log_kept, 2e-7F * (1 + std::abs(want[i].log_kept))) << what;
      if (got[i] < 0) continue;
      // What the trainer computes for this token has the bits that the sampler reports.
      const float t = how[i].temperature;
      const DeviceArray<float> logprob(1);
      ExpectOk(device->token_logprob(1, vocab, d_logits.data() + static_cast<int64_t>(i) * vocab,
                                     ids.data() + i, t == 0.0F ? 1.0F : std::fmin(1.0F / t, 3.0e38F),
                                     logprob.data(), nullptr, nullptr, nullptr),
               what);
      EXPECT_EQ(std::bit_cast<uint32_t>(logprob.Read()[0]), std::bit_cast<uint32_t>(logprobs.Read()[i]))
          << what;
    }
    Bytes bytes;
    Append(&bytes, got);
    Append(&bytes, logprobs.Read());
    Append(&bytes, kept.Read());
    return bytes;
  });
}

TEST(SamplerKernelTest, DrawsWhatTheCpuDraws) {
  for (int64_t seed = 0; seed < FuzzSeeds(60); ++seed) {
    CompareDraws<float>(static_cast<uint64_t>(seed));
    CompareDraws<BF16>(static_cast<uint64_t>(seed));
  }
}

}  // namespace
}  // namespace tidepool::cuda
