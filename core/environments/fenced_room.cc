#include "core/environments/fenced_room.h"

#include <sys/mman.h>
#include <unistd.h>

namespace tidepool::environments {
namespace {

size_t RoundUp(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace

FencedRoom::~FencedRoom() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
}

std::span<float> FencedRoom::Take(size_t numbers) {
  numbers = RoundUp(numbers, 16 / sizeof(float));
  if (room_.size() == numbers) return room_;
  if (base_ != nullptr) ::munmap(base_, bytes_);
  base_ = nullptr;
  room_ = {};
  const size_t open = RoundUp(numbers * sizeof(float), static_cast<size_t>(::sysconf(_SC_PAGESIZE)));
  bytes_ = open + kFenceBytes;
  void* base = ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return {};
  base_ = base;
  if (::mprotect(base, open, PROT_READ | PROT_WRITE) != 0) return {};
  auto* end = reinterpret_cast<float*>(static_cast<char*>(base) + open);
  return room_ = {end - numbers, numbers};
}

}  // namespace tidepool::environments
