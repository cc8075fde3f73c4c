#pragma once
// Frequencies of rotary positions (RoFormer, arXiv:2104.09864), and how long-context models scale them.
// No LibTorch.
//
//   default  w_i = theta^(-2 i / D)
//   linear   w_i / factor (position interpolation, arXiv:2306.15595)
//   llama3   by the wavelength 2 pi / w (Llama 3.1):
//              above original / low_freq_factor:   w / factor
//              below original / high_freq_factor:  w
//              between:  s w + (1 - s) w / factor,  s = (original / wavelength - low) / (high - low)
//   yarn     a ramp between w / factor and w over the dimensions;
//            cosines and sines times attention_factor (arXiv:2309.00071)
// In float32 and in the order of the reference library: at position 10 000 a frequency that differs in its
// last bit has moved an angle by 1e-3.

#include <vector>

#include "core/model/spec.h"

namespace tidepool::model {

// [D / 2]. requires CheckSpec(spec).
std::vector<float> RopeFrequencies(const ModelSpec& spec);

// attention_factor of yarn where the folder names none: 0.1 ln(factor) + 1, or the ratio of two such terms
// with mscale and mscale_all_dim (0: absent).
double YarnAttentionFactor(double factor, double mscale, double mscale_all_dim);

}  // namespace tidepool::model
