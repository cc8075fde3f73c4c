#pragma once
// Room for numbers that code of others writes, with a fence behind it: memory that nobody may touch. Who
// writes far beyond the end crashes there and then, in the call that does it, and nothing else is
// overwritten.

#include <cstddef>
#include <span>

namespace tidepool::environments {

class FencedRoom {
 public:
  FencedRoom() = default;
  ~FencedRoom();
  FencedRoom(const FencedRoom&) = delete;
  FencedRoom& operator=(const FencedRoom&) = delete;

  // At least `numbers` of them, up to the fence; the beginning is aligned to 16 bytes. Empty: the system
  // gives no memory. The same room as long as the number is the same.
  std::span<float> Take(size_t numbers);

 private:
  // A write that begins so far behind the end is not noticed.
  static constexpr size_t kFenceBytes = size_t{1} << 20;
  void* base_ = nullptr;
  size_t bytes_ = 0;  // with the fence
  std::span<float> room_;
};

}  // namespace tidepool::environments
