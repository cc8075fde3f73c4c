#include "core/device/byte_store.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace tidepool::device {

ByteSource::ByteSource(Device& device, const void* data, int64_t size)
    : ByteSource({static_cast<const std::byte*>(data), static_cast<size_t>(size)},
                 device.host_memory() ? nullptr : &device) {}

std::byte* ByteSource::At(size_t at, size_t n) const {
  TP_CHECK(at <= size_ && n <= size_ - at) << n << " bytes from " << at << " on of " << size_;
  return data_ + at;
}

void ByteSource::CopyTo(size_t at, std::span<std::byte> out) const {
  const std::byte* from = At(at, out.size());
  if (out.empty()) return;
  if (device_ == nullptr) {
    std::memcpy(out.data(), from, out.size());
  } else {
    device_->Download(out.data(), from, static_cast<int64_t>(out.size()));
  }
}

Status ByteSource::Each(const std::function<Status(std::span<const std::byte>)>& take) const {
  if (device_ == nullptr) return take({data_, size_});
  std::vector<std::byte> piece(std::min(kPiece, size_));
  for (size_t at = 0; at < size_; at += piece.size()) {
    const std::span<std::byte> now = std::span(piece).first(std::min(piece.size(), size_ - at));
    CopyTo(at, now);
    TP_RETURN_IF_ERROR(take(now));
  }
  return OkStatus();
}

void ByteStore::CopyFrom(size_t at, std::span<const std::byte> in) const {
  std::byte* to = At(at, in.size());
  if (in.empty()) return;
  if (writes_ != nullptr) writes_();
  if (device_ == nullptr) {
    std::memcpy(to, in.data(), in.size());
  } else {
    device_->Upload(to, static_cast<const void*>(in.data()), static_cast<int64_t>(in.size()));
  }
}

Status ByteStore::Fill(const std::function<Status(std::span<std::byte>)>& give) const {
  if (writes_ != nullptr) writes_();
  if (device_ == nullptr) return give({data_, size_});
  std::vector<std::byte> piece(std::min(kPiece, size_));
  for (size_t at = 0; at < size_; at += piece.size()) {
    const std::span<std::byte> now = std::span(piece).first(std::min(piece.size(), size_ - at));
    TP_RETURN_IF_ERROR(give(now));
    CopyFrom(at, now);
  }
  return OkStatus();
}

}  // namespace tidepool::device
