#pragma once
// Packing of numbers and strings in little-endian order, and its bounded inverse. Used by the formats of
// journal, payload and trajectories; both sides run on any byte order.

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace tidepool {

template <typename T>
requires std::is_arithmetic_v<T>
void PutNumber(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  if constexpr (std::endian::native == std::endian::big) {
    for (size_t i = 0; i < sizeof(T) / 2; ++i) std::swap(bytes[i], bytes[sizeof(T) - 1 - i]);
  }
  out.append(bytes, sizeof(T));
}

// u32 length, then the bytes.
inline void PutString(std::string& out, std::string_view text) {
  PutNumber(out, static_cast<uint32_t>(text.size()));
  out.append(text);
}

// Reads what Put* wrote. Past the end it returns zeros and ok() is false from then on, so a whole
// structure can be read before one check.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  requires std::is_arithmetic_v<T> T Number() {
    T value{};
    if (bytes_.size() < sizeof(T)) {
      Fail();
      return value;
    }
    char raw[sizeof(T)];
    std::memcpy(raw, bytes_.data(), sizeof(T));
    if constexpr (std::endian::native == std::endian::big) {
      for (size_t i = 0; i < sizeof(T) / 2; ++i) std::swap(raw[i], raw[sizeof(T) - 1 - i]);
    }
    std::memcpy(&value, raw, sizeof(T));
    bytes_.remove_prefix(sizeof(T));
    return value;
  }

  std::string_view Bytes(size_t n) {
    if (bytes_.size() < n) {
      Fail();
      return {};
    }
    const std::string_view out = bytes_.substr(0, n);
    bytes_.remove_prefix(n);
    return out;
  }
  std::string_view String() { return Bytes(Number<uint32_t>()); }

  // A count of items of at least `item_bytes` bytes each: a count that cannot fit what is left fails,
  // so that it is safe to allocate for it.
  size_t Count(size_t item_bytes) {
    const uint32_t n = Number<uint32_t>();
    if (n > bytes_.size() / item_bytes) {
      Fail();
      return 0;
    }
    return n;
  }

  [[nodiscard]] bool ok() const { return ok_; }
  [[nodiscard]] size_t left() const { return bytes_.size(); }
  // What was read makes no sense.
  void Fail() {
    ok_ = false;
    bytes_ = {};
  }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace tidepool
