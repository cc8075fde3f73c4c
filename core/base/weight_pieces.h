#pragma once
// The digest of weights in pieces, so that weights on their way can be checked, used and passed on before the
// last byte is here: sums of pieces add up to those of the digest's buckets, and these make up the digest
// (Weights::Digest). Pure.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tidepool {

inline constexpr int64_t kDigestBucketBytes = int64_t{64} << 20;
uint64_t DigestOfBuckets(std::span<const uint64_t> sums);

struct WeightPieces {
  int64_t total = 0;           // bytes of the weights
  int64_t piece_bytes = 0;     // of each, but for the last; divides kDigestBucketBytes
  std::vector<uint64_t> sums;  // of each piece

  // 4 MiB; of very large weights a whole bucket, so that the list stays below a message's limit.
  static int64_t SizeFor(int64_t total);
  // The number of sums is that of the pieces, and piece_bytes is one that SizeFor may give.
  [[nodiscard]] bool sound() const;
  [[nodiscard]] int64_t begin(size_t piece) const { return static_cast<int64_t>(piece) * piece_bytes; }
  [[nodiscard]] int64_t end(size_t piece) const;
  [[nodiscard]] uint64_t Digest() const;  // Weights::Digest of the whole.  requires sound()
  // `bytes`: those of this piece.
  [[nodiscard]] bool Has(size_t piece, std::span<const std::byte> bytes) const;
};
WeightPieces PiecesOf(std::span<const std::byte> weights);

}  // namespace tidepool
