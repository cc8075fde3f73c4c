#include "core/device/page_buffer.h"

#include <sys/mman.h>

#include <string>
#include <utility>

#include "core/base/check.h"

namespace tidepool::device {

StatusOr<PageBuffer> PageBuffer::Create(size_t bytes) {
  PageBuffer buffer;
  if (bytes == 0) return buffer;
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    return ResourceExhausted("cannot allocate " + std::to_string(bytes) +
                             " bytes; use a smaller model or batch, or a machine with more memory");
  }
  constexpr size_t kHugeFrom = size_t{8} << 20;
  if (bytes >= kHugeFrom)
    ::madvise(p, bytes, MADV_HUGEPAGE);  // advice: a kernel without huge pages ignores it
  buffer.data_ = static_cast<std::byte*>(p);
  buffer.size_ = bytes;
  return buffer;
}

PageBuffer::PageBuffer(PageBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

PageBuffer& PageBuffer::operator=(PageBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void PageBuffer::Discard() {
  // Private anonymous pages read as zeros after this. It cannot fail on a range that we mapped.
  if (data_ != nullptr)
    TP_CHECK(::madvise(data_, size_, MADV_DONTNEED) == 0) << "madvise of " << size_ << " bytes";
}

PageBuffer::~PageBuffer() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace tidepool::device
