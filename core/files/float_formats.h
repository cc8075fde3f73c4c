#pragma once
// Conversions between float32 and the 16-bit formats, exact where the target is wider, else rounded
// to nearest, ties to even. Bit patterns are little-endian integers. Pure functions; thread-safe.

#include <bit>
#include <cstdint>
#include <span>

namespace tidepool::files {

// A NaN stays a NaN (made quiet), with its sign and upper bits.
constexpr uint16_t FloatToBf16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<uint16_t>((bits >> 16) | 0x40U);
  bits += 0x7FFFU + ((bits >> 16) & 1U);
  return static_cast<uint16_t>(bits >> 16);
}

constexpr float Bf16ToFloat(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

// IEEE binary16, subnormals included.
constexpr float Fp16ToFloat(uint16_t value) {
  const uint32_t sign = static_cast<uint32_t>(value & 0x8000U) << 16;
  const uint32_t exponent = (value >> 10) & 0x1FU;
  const uint32_t mantissa = value & 0x3FFU;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in float32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

// Above 65504 infinity, as rounding has it. A NaN stays one.
constexpr uint16_t FloatToFp16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7FFFFFFFU;
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const auto with = [sign](uint32_t rest) { return static_cast<uint16_t>(sign | rest); };
  if (magnitude > 0x7F800000U) return with(0x7E00U | ((magnitude >> 13) & 0x3FFU));
  if (magnitude >= 0x477FF000U) return with(0x7C00U);  // 65520
  if (magnitude < 0x38800000U)  // below 2^-14: the sum has a bit for each 2^-24, and is rounded to it
    return with(std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U);
  return with((magnitude + 0xFFFU + ((magnitude >> 13) & 1U) - 0x38000000U) >> 13);
}

// requires out.size() == in.size()
void FloatsToBf16(std::span<const float> in, std::span<uint16_t> out);

}  // namespace tidepool::files
