#pragma once
// Bytes with the host or in a device's memory, for those who move them: to files, sockets, shared memory.
//
// What the host may touch is handed over where it stands. The rest is copied piece by piece, so that a state
// of many gigabytes needs no second memory. Neither owns the bytes. Several threads may read at a time, as
// long as Device::Download allows it.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "core/base/status.h"
#include "core/device/device.h"

namespace tidepool::device {

class ByteSource {
 public:
  // Bytes of the host, which outlive this.
  template <std::convertible_to<std::span<const std::byte>> Bytes>
  ByteSource(Bytes&& of_host) : ByteSource(std::span<const std::byte>(of_host), nullptr) {}
  // `size` bytes of the device's memory from `data` on; both outlive this.
  ByteSource(Device& device, const void* data, int64_t size);

  [[nodiscard]] size_t size() const { return size_; }
  // The bytes from `at` on.  requires that there are so many
  void CopyTo(size_t at, std::span<std::byte> out) const;
  // Hands over all bytes, in order, in pieces of whole 8-byte words and the rest. Ends with the first error.
  Status Each(const std::function<Status(std::span<const std::byte>)>& take) const;

 protected:
  static constexpr size_t kPiece = size_t{4} << 20;
  [[nodiscard]] std::byte* At(size_t at, size_t n) const;  // requires that they are there
  Device* device_;                                         // null: they are the host's
  std::byte* data_;
  size_t size_;

 private:
  ByteSource(std::span<const std::byte> bytes, Device* device)
      : device_(device), data_(const_cast<std::byte*>(bytes.data())), size_(bytes.size()) {}
};

// The same, to be written too.
class ByteStore : public ByteSource {
 public:
  template <std::convertible_to<std::span<std::byte>> Bytes>
  ByteStore(Bytes&& of_host) : ByteSource(std::span<std::byte>(of_host)) {}
  ByteStore(Device& device, void* data, int64_t size) : ByteSource(device, data, size) {}
  // `writes` is called before bytes are written.
  ByteStore(std::span<std::byte> of_host, std::function<void()> writes)
      : ByteSource(of_host), writes_(std::move(writes)) {}

  void CopyFrom(size_t at, std::span<const std::byte> in) const;
  // Asks for all bytes, as Each hands them over.
  Status Fill(const std::function<Status(std::span<std::byte>)>& give) const;

 private:
  std::function<void()> writes_;  // may be null
};

}  // namespace tidepool::device
