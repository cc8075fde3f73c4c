#include "core/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tidepool::model {
namespace {

float Llama3(const RopeSpec& r, float w) {
  const auto factor = static_cast<float>(r.factor);
  const double low = r.original_max_position / r.low_frequency_factor;
  const double high = r.original_max_position / r.high_frequency_factor;
  const float wavelength = static_cast<float>(2 * std::numbers::pi) / w;
  if (wavelength > static_cast<float>(low)) return w / factor;
  if (wavelength < static_cast<float>(high)) return w;
  const float smooth = (static_cast<float>(r.original_max_position) / wavelength -
                        static_cast<float>(r.low_frequency_factor)) /
                       static_cast<float>(r.high_frequency_factor - r.low_frequency_factor);
  return (1.0F - smooth) * w / factor + smooth * w;
}

// The dimension that makes `rotations` turns over the original length.
double CorrectionDimension(const ModelSpec& s, double rotations) {
  return static_cast<double>(s.head_size) *
         std::log(s.rope.original_max_position / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(s.rope_theta));
}

}  // namespace

std::vector<float> RopeFrequencies(const ModelSpec& s) {
  const int64_t half = s.head_size / 2;
  const RopeSpec& r = s.rope;
  double low = 0, high = 0;
  if (r.type == RopeType::kYarn) {
    low = CorrectionDimension(s, r.beta_fast);
    high = CorrectionDimension(s, r.beta_slow);
    if (r.truncate) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0);
    high = std::min(high, static_cast<double>(s.head_size - 1));
    if (low == high) high += 0.001;
  }
  std::vector<float> out(static_cast<size_t>(half));
  for (int64_t i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(s.head_size);
    const auto power = static_cast<float>(std::pow(s.rope_theta, static_cast<double>(exponent)));
    const float w = 1.0F / power;
    float& f = out[static_cast<size_t>(i)];
    f = w;
    if (r.type == RopeType::kLinear) f = w / static_cast<float>(r.factor);
    if (r.type == RopeType::kLlama3) f = Llama3(r, w);
    if (r.type == RopeType::kYarn) {
      const float ramp = std::clamp(
          (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0F, 1.0F);
      const float own = 1.0F - ramp, slow = 1.0F / (static_cast<float>(r.factor) * power);
      f = slow * (1.0F - own) + w * own;
    }
  }
  return out;
}

double YarnAttentionFactor(double factor, double mscale, double mscale_all_dim) {
  const auto term = [factor](double scale) {
    return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
  };
  return mscale != 0 && mscale_all_dim != 0 ? term(mscale) / term(mscale_all_dim) : term(1);
}

}  // namespace tidepool::model
