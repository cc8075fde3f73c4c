#pragma once
// Hashes and digests. None depends on machine or run. Pure functions; thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tidepool {

// Finaliser of SplitMix64: a bijection of 64-bit words.
constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// Fast, not cryptographic. For keys and payload digests.
uint64_t Hash64(std::string_view bytes, uint64_t seed = 0);
inline uint64_t Hash64(std::span<const std::byte> bytes, uint64_t seed = 0) {
  return Hash64(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()), seed);
}

// CRC-32C (Castagnoli), as in iSCSI; `crc` continues an earlier one.
uint32_t Crc32c(std::string_view bytes, uint32_t crc = 0);

// Digest of weights: the position-salted sum over 8-byte words (a short last word is zero-filled),
// sum_i Mix64(word_i ^ Mix64(salt + i)). A sum has no order, so it may be taken in parallel and in
// pieces: `first_word` is the place of the first word of this piece.
uint64_t SaltedSum(std::span<const std::byte> bytes, uint64_t salt, uint64_t first_word = 0);

// FIPS 180-4.
class Sha256 {
 public:
  Sha256();
  void Update(std::string_view bytes);
  void Update(std::span<const std::byte> bytes) {
    Update(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  std::array<uint8_t, 32> Finish();  // once
 private:
  void Block(const uint8_t* p);
  std::array<uint32_t, 8> h_;
  std::array<uint8_t, 64> buffer_;
  uint64_t total_ = 0;
};
std::string Sha256Hex(std::string_view bytes);
// RFC 2104, lower-case hex.
std::string HmacSha256Hex(std::string_view key, std::string_view message);
std::string Hex(std::span<const uint8_t> bytes);
// Compares without an early exit, so that time does not tell where a secret differs.
bool ConstantTimeEqual(std::string_view a, std::string_view b);

}  // namespace tidepool
