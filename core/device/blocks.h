#pragma once
// Matrices of frozen models in blocks of 32 neighbouring values of a row, as GGUF files have them
// (core/files/gguf.h): d and m are float16, q integers of 8 or 4 bits, and the value is
//   Q8_0: d q     Q4_0: d (q - 8)     Q4_1: d q + m
// in float32, then rounded to the type of the arguments. Kernels compute with that, a piece at a time, so
// their results have the bits of those that read the rounded matrix. Rows of blocks follow each other without
// gaps.

#include <cstdint>

namespace tidepool::device {

enum class BlockType : uint8_t { kNone, kQ8_0, kQ4_0, kQ4_1 };
inline constexpr int64_t kBlockValues = 32;

// Of one block.
constexpr int64_t BlockBytes(BlockType type) {
  switch (type) {
    case BlockType::kNone:
      break;
    case BlockType::kQ8_0:
      return 34;
    case BlockType::kQ4_0:
      return 18;
    case BlockType::kQ4_1:
      return 20;
  }
  return 0;
}
// Of so many rows of k values. requires k % kBlockValues == 0
constexpr int64_t BlockRowBytes(BlockType type, int64_t rows, int64_t k) {
  return rows * (k / kBlockValues) * BlockBytes(type);
}
// How many elements of T so many rows take as they are stored, rounded up: for checks of bounds.
template <typename T>
constexpr int64_t MatrixElements(BlockType type, int64_t rows, int64_t k) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  return type == BlockType::kNone ? rows * k : (BlockRowBytes(type, rows, k) + kSize - 1) / kSize;
}
// The matrix behind so many rows.
template <typename T>
const T* SkipRows(const T* w, BlockType type, int64_t rows, int64_t k) {
  if (type == BlockType::kNone) return w + rows * k;
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(w) + BlockRowBytes(type, rows, k));
}

}  // namespace tidepool::device
