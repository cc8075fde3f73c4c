#include "core/base/hash.h"

#include <gtest/gtest.h>

#include <span>
#include <string>

#include "core/base/rng.h"

namespace tidepool {
namespace {

// Bit by bit, from the polynomial.
uint32_t PlainCrc32c(std::string_view bytes) {
  uint32_t crc = ~0U;
  for (const char b : bytes) {
    crc ^= static_cast<uint8_t>(b);
    for (int k = 0; k < 8; ++k) crc = (crc & 1U) != 0 ? 0x82F63B78U ^ (crc >> 1) : crc >> 1;
  }
  return ~crc;
}

std::string RandomBytes(Rng& rng, int64_t n) {
  std::string bytes;
  for (int64_t i = 0; i < n; ++i) bytes.push_back(static_cast<char>(rng.Next()));
  return bytes;
}

TEST(HashTest, Crc32cMatchesPublishedValuesAndThePolynomial) {
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283U);            // the check value of CRC-32C
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AAU);  // RFC 3720, B.4
  Rng rng(7);
  for (int i = 0; i < 200; ++i) {
    const std::string bytes = RandomBytes(rng, rng.Below(70));
    const auto cut = static_cast<size_t>(rng.InRange(0, static_cast<int64_t>(bytes.size())));
    EXPECT_EQ(Crc32c(bytes), PlainCrc32c(bytes));
    EXPECT_EQ(Crc32c(bytes.substr(cut), Crc32c(bytes.substr(0, cut))), PlainCrc32c(bytes))
        << "continued at " << cut;
  }
}

TEST(HashTest, SaltedSumMayBeTakenInPieces) {
  Rng rng(8);
  for (int i = 0; i < 100; ++i) {
    const std::string bytes = RandomBytes(rng, rng.Below(300));
    const auto whole = std::as_bytes(std::span(bytes));
    const auto words = static_cast<uint64_t>(rng.InRange(0, static_cast<int64_t>(bytes.size()) / 8));
    uint64_t plain = 0;
    for (size_t w = 0; 8 * w < bytes.size(); ++w) {
      uint64_t word = 0;
      for (size_t b = 0; b < 8 && 8 * w + b < bytes.size(); ++b) {
        word |= uint64_t{static_cast<uint8_t>(bytes[8 * w + b])} << (8 * b);
      }
      plain += Mix64(word ^ Mix64(5 + w));
    }
    EXPECT_EQ(SaltedSum(whole, 5), plain);
    EXPECT_EQ(SaltedSum(whole.first(8 * words), 5) + SaltedSum(whole.subspan(8 * words), 5, words), plain);
  }
}

TEST(HashTest, Sha256AndHmacMatchPublishedVectors) {
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(HmacSha256Hex("Jefe", "what do ya want for nothing?"),  // RFC 4231, case 2
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  Sha256 pieces;
  const std::string text(200, 'q');
  for (size_t i = 0; i < text.size(); i += 7) pieces.Update(std::string_view(text).substr(i, 7));
  EXPECT_EQ(Hex(pieces.Finish()), Sha256Hex(text));
}

TEST(HashTest, ConstantTimeEqualComparesWholeStrings) {
  EXPECT_TRUE(ConstantTimeEqual("secret", "secret"));
  EXPECT_FALSE(ConstantTimeEqual("secret", "secres"));
  EXPECT_FALSE(ConstantTimeEqual("secret", "secre"));
}

}  // namespace
}  // namespace tidepool
