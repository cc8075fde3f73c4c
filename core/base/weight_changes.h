#pragma once
// What differs between two versions of the same weights, in few bytes. A step of a small learning rate leaves
// nearly all bfloat16 weights as they were, and changes float32 ones in their last digits (docs/perf.md).
//
// Words are little-endian, of 2 bytes (bfloat16) or 4 (float32); the last one is filled up with zeros. The
// coding is a row of entries, each of varints (7 bits a byte, lowest first, the highest bit: another byte
// follows):
//   2 * gap (+ 1: a run)   words that are the same, since the entry before
//   count - 1              of a run alone: words in a row that differ; else it is one
//   change, `count` times  new - old, modulo the word; 0, -1, 1, -2 .. are 0, 1, 2, 3 ..
// Pure.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tidepool {

// Writes the coding over `coded`, whose memory is used again. False: it would not be shorter than `now`, and
// `coded` is then of no use.  requires base and now of one size, word_bytes 2 or 4
[[nodiscard]] bool CodeChanges(std::span<const std::byte> base, std::span<const std::byte> now,
                               int64_t word_bytes, std::string& coded);
// Makes `now` of `base`; takes time by the sizes of its arguments, whatever `coded` is. False: that is no
// coding of changes to `base`; `now` then holds anything.  requires as above
[[nodiscard]] bool ApplyChanges(std::span<const std::byte> coded, std::span<const std::byte> base,
                                int64_t word_bytes, std::span<std::byte> now);

}  // namespace tidepool
