#include "core/base/weight_changes.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/base/check.h"

namespace tidepool {
namespace {

constexpr size_t kVarintBytes = 10;

template <typename Word>
Word Swapped(Word word) {
  if constexpr (std::endian::native == std::endian::big) {
    auto* bytes = reinterpret_cast<std::byte*>(&word);
    std::reverse(bytes, bytes + sizeof(Word));
  }
  return word;
}

// A row of words, whose last one may not be there as a whole.
template <typename Word, typename Byte>
struct Words {
  Byte* bytes;
  size_t size;

  [[nodiscard]] size_t count() const { return (size + sizeof(Word) - 1) / sizeof(Word); }
  [[nodiscard]] size_t SizeAt(size_t i) const { return std::min(sizeof(Word), size - i * sizeof(Word)); }
  [[nodiscard]] Word Get(size_t i) const {
    Word word = 0;
    if ((i + 1) * sizeof(Word) <= size) [[likely]]
      std::memcpy(&word, bytes + i * sizeof(Word), sizeof(Word));
    else
      std::memcpy(&word, bytes + i * sizeof(Word), SizeAt(i));
    return Swapped(word);
  }
  void Set(size_t i, Word word) const {
    word = Swapped(word);
    std::memcpy(bytes + i * sizeof(Word), &word, SizeAt(i));
  }
};

// The first word from `at` on that differs; their number: none does.
template <typename Word>
size_t NextChange(const Words<Word, const std::byte>& base, const Words<Word, const std::byte>& now,
                  size_t at) {
  constexpr size_t kStep = 64;  // most of them are the same: compilers make a few instructions of it
  const auto same = [&](size_t bytes) {
    uint64_t differ = 0;
    for (size_t i = 0; i < kStep; i += sizeof(uint64_t)) {
      uint64_t a = 0, b = 0;
      std::memcpy(&a, base.bytes + bytes + i, sizeof(a));
      std::memcpy(&b, now.bytes + bytes + i, sizeof(b));
      differ |= a ^ b;
    }
    return differ == 0;
  };
  while ((at * sizeof(Word)) + kStep <= now.size && same(at * sizeof(Word))) at += kStep / sizeof(Word);
  const size_t count = now.count();
  while (at < count && base.Get(at) == now.Get(at)) ++at;
  return at;
}

template <typename Word>
bool Code(const Words<Word, const std::byte>& base, const Words<Word, const std::byte>& now,
          std::string& coded) {
  coded.resize(now.size + 2 * kVarintBytes);
  auto* const begin = reinterpret_cast<uint8_t*>(coded.data());
  uint8_t* out = begin;
  const auto put = [&](uint64_t value) {
    if (value < uint64_t{1} << 14) [[likely]] {  // one byte or two, without a branch that goes either way
      const uint64_t two = (0x7f - value) >> 63;
      out[0] = static_cast<uint8_t>((value & 0x7f) | two << 7);
      out[1] = static_cast<uint8_t>(value >> 7);
      out += 1 + two;
      return;
    }
    for (; value >= 0x80; value >>= 7) *out++ = static_cast<uint8_t>(value | 0x80);
    *out++ = static_cast<uint8_t>(value);
  };
  const auto full = [&] { return static_cast<size_t>(out - begin) >= now.size; };
  const size_t count = now.count();
  size_t from = 0;
  for (size_t at = 0; (at = NextChange(base, now, at)) < count; from = at) {
    size_t end = at + 1;
    while (end < count && base.Get(end) != now.Get(end)) ++end;
    put(2 * (at - from) + (end - at > 1 ? 1 : 0));
    if (end - at > 1) put(end - at - 1);
    for (; at < end; ++at) {
      if (full()) return false;
      const auto change = static_cast<Word>(now.Get(at) - base.Get(at));
      const bool negative = (change >> (8 * sizeof(Word) - 1)) != 0;
      put(static_cast<Word>(static_cast<Word>(change << 1) ^
                            (negative ? static_cast<Word>(~Word{0}) : Word{0})));
    }
    if (full()) return false;
  }
  coded.resize(static_cast<size_t>(out - begin));
  return true;
}

template <typename Word>
bool Apply(std::span<const std::byte> coded, const Words<Word, std::byte>& now) {
  const auto* in = reinterpret_cast<const uint8_t*>(coded.data());
  const uint8_t* const end = in + coded.size();
  // False: there is none, or it is too large for what it may be.
  const auto get = [&](uint64_t most, uint64_t& value) {
    if (end - in >= 2 && (in[0] & in[1]) < 0x80) [[likely]] {
      const uint64_t two = in[0] >> 7;
      value = (in[0] & 0x7fU) | (two * in[1]) << 7;
      in += 1 + two;
      return value <= most;
    }
    value = 0;
    for (int shift = 0; in < end && shift < 63; shift += 7) {
      const uint8_t byte = *in++;
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value <= most;
    }
    return false;
  };
  const size_t count = now.count();
  for (size_t at = 0; in < end;) {
    uint64_t gap = 0, more = 0, change = 0;
    if (at >= count || !get(2 * (count - at - 1) + 1, gap)) return false;
    at += gap / 2;
    if (gap % 2 == 1 && !get(count - at - 1, more)) return false;
    for (const size_t to = at + more + 1; at < to; ++at) {
      if (!get(Word(~Word{0}), change)) return false;
      const auto back = static_cast<Word>((change >> 1) ^ (change % 2 == 1 ? ~uint64_t{0} : 0));
      now.Set(at, static_cast<Word>(now.Get(at) + back));
    }
  }
  return true;
}

}  // namespace

bool CodeChanges(std::span<const std::byte> base, std::span<const std::byte> now, int64_t word_bytes,
                 std::string& coded) {
  TP_CHECK(base.size() == now.size() && (word_bytes == 2 || word_bytes == 4));
  return word_bytes == 2 ? Code<uint16_t>({base.data(), base.size()}, {now.data(), now.size()}, coded)
                         : Code<uint32_t>({base.data(), base.size()}, {now.data(), now.size()}, coded);
}

bool ApplyChanges(std::span<const std::byte> coded, std::span<const std::byte> base, int64_t word_bytes,
                  std::span<std::byte> now) {
  TP_CHECK(base.size() == now.size() && (word_bytes == 2 || word_bytes == 4));
  std::ranges::copy(base, now.begin());
  return word_bytes == 2 ? Apply<uint16_t>(coded, {now.data(), now.size()})
                         : Apply<uint32_t>(coded, {now.data(), now.size()});
}

}  // namespace tidepool
