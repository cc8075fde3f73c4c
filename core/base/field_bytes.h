#pragma once
// Structs with listed fields (core/base/fields.h) as bytes, the one format of the journal and of the wire:
// fields in their order; numbers little-endian, enums and flags one byte, ids i64; strings {u32 length,
// bytes}; lists {u32 count, items}; maps as lists of pairs; pairs and structs their parts.
//
// FieldWriter and FieldReader are the parts of two visitors: `Self` is the visitor, which derives from them,
// has operator() for a field, and a Put or Get of its own for what only it has.

#include <concepts>
#include <cstdint>
#include <string>
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

template <typename Self>
struct FieldWriter {
  std::string& out;

  template <typename T>
  void Put(const T& x) {
    Self& self = static_cast<Self&>(*this);
    if constexpr (NumberField<T>) {
      PutNumber(out, x);
    } else if constexpr (std::same_as<T, bool> || std::is_enum_v<T>) {
      PutNumber(out, static_cast<uint8_t>(x));
    } else if constexpr (std::same_as<T, std::string>) {
      PutString(out, x);
    } else if constexpr (kIsStrongId<T>) {
      PutNumber(out, x.value);
    } else if constexpr (PairField<T>) {
      self.Put(x.first);
      self.Put(x.second);
    } else if constexpr (ListField<T> || MapField<T>) {
      PutNumber(out, static_cast<uint32_t>(x.size()));
      for (const auto& item : x) self.Put(item);
    } else {
      VisitFields(x, self);
    }
  }
};

// After the last field: reader.ok(), and in_range where an enum or a flag may have no other value than it
// knows.
template <typename Self>
struct FieldReader {
  ByteReader reader;
  bool in_range = true;
  int depth = 0;  // of structs within the one that is read

  template <typename T>
  void Get(T& x) {
    Self& self = static_cast<Self&>(*this);
    if constexpr (NumberField<T>) {
      x = reader.Number<T>();
    } else if constexpr (std::same_as<T, bool>) {
      x = Byte(2) != 0;
    } else if constexpr (std::is_enum_v<T>) {
      x = static_cast<T>(Byte(kWords<T>.size()));
    } else if constexpr (std::same_as<T, std::string>) {
      x = reader.String();
    } else if constexpr (kIsStrongId<T>) {
      x.value = reader.Number<int64_t>();
    } else if constexpr (PairField<T>) {
      self.Get(x.first);
      self.Get(x.second);
    } else if constexpr (ListField<T>) {
      GetList(x);
    } else if constexpr (MapField<T>) {
      x.clear();
      for (size_t left = reader.Count(1); left > 0 && reader.ok(); --left) {
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
    const size_t count = reader.Count(NumberField<Item> ? sizeof(Item) : 1);
    if (count > most) reader.Fail();
    x.clear();
    if constexpr (NumberField<Item>) x.reserve(count);
    for (size_t i = 0; i < count && reader.ok(); ++i) static_cast<Self&>(*this).Get(x.emplace_back());
  }

  // One of so many values.
  uint8_t Byte(size_t values) {
    const auto byte = reader.Number<uint8_t>();
    in_range = in_range && byte < values;
    return byte;
  }
};

}  // namespace tidepool
