#include "core/device/cpu/salted_sums.h"

#include <algorithm>
#include <span>
#include <vector>

#include "core/base/hash.h"
#include "core/device/cpu/parallel.h"

namespace tidepool::device {

void SaltedSums(const SaltedSumsArgs& a) {
  constexpr int64_t kPiece = int64_t{1}
                             << 17;  // words: a sum has no order, so a bucket may be summed in parts
  const int64_t parts = (a.bucket_words + kPiece - 1) / kPiece;
  std::vector<uint64_t> part(static_cast<size_t>(a.buckets() * parts), 0);
  ParallelItems(a.buckets() * parts, 8 * kPiece, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      const int64_t bucket = i / parts, first = i % parts * kPiece, begin = bucket * a.bucket_words + first,
                    end = std::min({begin + kPiece, (bucket + 1) * a.bucket_words, a.words});
      if (begin >= end) continue;
      part[static_cast<size_t>(i)] = SaltedSum(std::as_bytes(std::span(a.x + begin, a.x + end)),
                                               static_cast<uint64_t>(bucket), static_cast<uint64_t>(first));
    }
  });
  std::fill_n(a.sums, a.buckets(), 0);
  for (size_t i = 0; i < part.size(); ++i) a.sums[i / static_cast<size_t>(parts)] += part[i];
}

}  // namespace tidepool::device
