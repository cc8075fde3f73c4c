#include "core/base/weight_pieces.h"

#include <algorithm>

#include "core/base/hash.h"

namespace tidepool {
namespace {

constexpr int64_t kPieceBytes = int64_t{4} << 20;
constexpr int64_t kLarge = int64_t{64} << 30;

uint64_t SumAt(int64_t at, std::span<const std::byte> bytes) {
  return SaltedSum(bytes, static_cast<uint64_t>(at / kDigestBucketBytes),
                   static_cast<uint64_t>(at % kDigestBucketBytes) / 8);
}

}  // namespace

uint64_t DigestOfBuckets(std::span<const uint64_t> sums) {
  return SaltedSum(std::as_bytes(sums), /*salt=*/sums.size());
}

int64_t WeightPieces::SizeFor(int64_t total) { return total > kLarge ? kDigestBucketBytes : kPieceBytes; }

bool WeightPieces::sound() const {
  return total >= 0 && piece_bytes == SizeFor(total) &&
         static_cast<int64_t>(sums.size()) == (total + piece_bytes - 1) / piece_bytes;
}

int64_t WeightPieces::end(size_t piece) const { return std::min(total, begin(piece) + piece_bytes); }

uint64_t WeightPieces::Digest() const {
  std::vector<uint64_t> buckets(static_cast<size_t>((total + kDigestBucketBytes - 1) / kDigestBucketBytes),
                                0);
  for (size_t i = 0; i < sums.size(); ++i)
    buckets[static_cast<size_t>(begin(i) / kDigestBucketBytes)] += sums[i];
  return DigestOfBuckets(buckets);
}

bool WeightPieces::Has(size_t piece, std::span<const std::byte> bytes) const {
  return sums[piece] == SumAt(begin(piece), bytes);
}

WeightPieces PiecesOf(std::span<const std::byte> weights) {
  WeightPieces pieces{.total = static_cast<int64_t>(weights.size())};
  pieces.piece_bytes = WeightPieces::SizeFor(pieces.total);
  for (int64_t at = 0; at < pieces.total; at += pieces.piece_bytes) {
    const int64_t n = std::min(pieces.piece_bytes, pieces.total - at);
    pieces.sums.push_back(SumAt(at, weights.subspan(static_cast<size_t>(at), static_cast<size_t>(n))));
  }
  return pieces;
}

}  // namespace tidepool
