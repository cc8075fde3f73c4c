#pragma once
// Structs with listed fields (core/base/fields.h) as bytes, the one format of the journal and of the wire:
// fields in their order; numbers little-endian, enums and flags one byte, ids i64; strings {u32 length,
// bytes}; lists {u32 count, items}; maps as lists of pairs; pairs and structs their parts.
//
// The wire is kShort: signed numbers, ids, lengths and counts there are varints, LEB128 in as few bytes as
// they need, of 2x where x >= 0 and of -2x - 1 below. Most of a message are small numbers. What is unsigned
// stays as it is: digests and random words.
//
// FieldWriter and FieldReader are the parts of two visitors: `Self` is the visitor, which derives from them,
// has operator() for a field, and a Put or Get of its own for what only it has.

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "core/base/fields.h"
#include "core/base/ids.h"
#include "core/base/little_endian.h"
#include "core/base/words.h"

namespace tidepool {

template <typename T>
inline constexpr bool kIsStrongId = false;
template <typename Tag>
inline constexpr bool kIsStrongId<StrongId<Tag>> = true;
template <typename T>
concept NumberField = std::is_arithmetic_v<T> && !std::same_as<T, bool>;
template <typename T>
concept PairField = requires {
  typename T::first_type;
};
template <typename T>
concept ListField = requires(T& x) {
  x.emplace_back();
}
&&!std::same_as<T, std::string>;
template <typename T>
concept MapField = requires {
  typename T::mapped_type;
};

inline void PutShort(std::string& out, int64_t x) {
  uint64_t bits = (static_cast<uint64_t>(x) << 1) ^ static_cast<uint64_t>(x >> 63);
  for (; bits >= 0x80; bits >>= 7) out.push_back(static_cast<char>(bits | 0x80));
  out.push_back(static_cast<char>(bits));
}
// In other than its fewest bytes the reader is failed.
inline int64_t GetShort(ByteReader& reader) {
  uint64_t bits = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    const auto byte = reader.Number<uint8_t>();
    if (shift == 63 && byte > 1) break;
    bits |= static_cast<uint64_t>(byte & 0x7FU) << shift;
    if (byte < 0x80) {
      if (byte == 0 && shift > 0) break;
      return static_cast<int64_t>(bits >> 1) ^ -static_cast<int64_t>(bits & 1);
    }
  }
  reader.Fail();
  return 0;
}

template <typename Self, bool kShort = false>
struct FieldWriter {
  std::string& out;

  template <typename T>
  void Put(const T& x) {
    Self& self = static_cast<Self&>(*this);
    if constexpr (kShort && std::signed_integral<T>) {
      PutShort(out, x);
    } else if constexpr (NumberField<T>) {
      PutNumber(out, x);
    } else if constexpr (std::same_as<T, bool> || std::is_enum_v<T>) {
      PutNumber(out, static_cast<uint8_t>(x));
    } else if constexpr (std::same_as<T, std::string>) {
      PutText(x);
    } else if constexpr (kIsStrongId<T>) {
      self.Put(x.value);
    } else if constexpr (PairField<T>) {
      self.Put(x.first);
      self.Put(x.second);
    } else if constexpr (ListField<T> || MapField<T>) {
      PutCount(x.size());
      for (const auto& item : x) self.Put(item);
    } else {
      VisitFields(x, self);
    }
  }
  void PutText(std::string_view text) {
    PutCount(text.size());
    out.append(text);
  }
  void PutCount(size_t n) {
    if constexpr (kShort) {
      PutShort(out, static_cast<int64_t>(n));
    } else {
      PutNumber(out, static_cast<uint32_t>(n));
    }
  }
};

// After the last field: reader.ok(), and in_range where an enum or a flag may have no other value than it
// knows.
template <typename Self, bool kShort = false>
struct FieldReader {
  ByteReader reader;
  bool in_range = true;
  int depth = 0;  // of structs within the one that is read

  template <typename T>
  void Get(T& x) {
    Self& self = static_cast<Self&>(*this);
    if constexpr (kShort && std::signed_integral<T>) {
      const int64_t wide = GetShort(reader);
      x = static_cast<T>(wide);
      if (x != wide) reader.Fail();
    } else if constexpr (NumberField<T>) {
      x = reader.Number<T>();
    } else if constexpr (std::same_as<T, bool>) {
      x = Byte(2) != 0;
    } else if constexpr (std::is_enum_v<T>) {
      x = static_cast<T>(Byte(kWords<T>.size()));
    } else if constexpr (std::same_as<T, std::string>) {
      x = GetText();
    } else if constexpr (kIsStrongId<T>) {
      self.Get(x.value);
    } else if constexpr (PairField<T>) {
      self.Get(x.first);
      self.Get(x.second);
    } else if constexpr (ListField<T>) {
      GetList(x);
    } else if constexpr (MapField<T>) {
      x.clear();
      for (size_t left = GetCount(1); left > 0 && reader.ok(); --left) {
        typename T::key_type key;
        self.Get(key);
        self.Get(x[std::move(key)]);
      }
    } else {
      ++depth;
      VisitFields(x, self);
      --depth;
    }
  }

  // A list of more items than `most` fails.
  template <typename T>
  void GetList(T& x, size_t most = SIZE_MAX) {
    using Item = typename T::value_type;
    // Items that are no numbers are small, and each is read before there is room for the next: a wild count
    // allocates nothing.
    constexpr bool kFixed = NumberField<Item> && !(kShort && std::signed_integral<Item>);
    const size_t count = GetCount(kFixed ? sizeof(Item) : 1);
    if (count > most) reader.Fail();
    x.clear();
    if constexpr (NumberField<Item>) x.reserve(reader.ok() ? count : 0);
    for (size_t i = 0; i < count && reader.ok(); ++i) static_cast<Self&>(*this).Get(x.emplace_back());
  }

  std::string_view GetText() { return reader.Bytes(GetCount(1)); }
  // Of items of at least so many bytes: one that cannot fit what is left fails.
  size_t GetCount(size_t item_bytes) {
    if constexpr (!kShort) return reader.Count(item_bytes);
    const int64_t n = GetShort(reader);
    if (n >= 0 && static_cast<uint64_t>(n) <= reader.left() / item_bytes) return static_cast<size_t>(n);
    reader.Fail();
    return 0;
  }

  // One of so many values.
  uint8_t Byte(size_t values) {
    const auto byte = reader.Number<uint8_t>();
    in_range = in_range && byte < values;
    return byte;
  }
};

}  // namespace tidepool
