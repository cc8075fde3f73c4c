#pragma once
// Byte-pair merges: a word's bytes become token ids.
//
// Starting from single bytes, the adjacent pair of lowest rank is merged, the leftmost first among
// equals, until no pair has a rank (Sennrich et al., arXiv:1508.07909; GPT-2's byte-level form).
// A word that is one token is found by a single look-up: at creation every token's own bytes are
// encoded, and those that come out as the token itself are entered in a table of whole words.
// Words of n bytes cost O(n log n). Immutable; thread-safe.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace tidepool::text {

struct BpeToken {
  std::string bytes;
  int32_t id = 0;
};
struct BpeMerge {  // in order of rank
  int32_t left = 0;
  int32_t right = 0;
  int32_t merged = 0;
};
struct BpeOptions {
  bool ignore_merges = false;         // a word that is a token stays one, whatever the merges say
  std::optional<int32_t> unknown_id;  // for bytes without a token; none: they are left out
  bool fuse_unknown = false;          // one unknown_id for a run of such bytes
};

class Bpe {
 public:
  // requires ids >= 0
  static std::unique_ptr<Bpe> Create(std::vector<BpeToken> tokens, std::span<const BpeMerge> merges,
                                     BpeOptions options);

  // Appends the ids of a word. Returns where its first byte is that has no token and was left out, npos if
  // none was.
  size_t Encode(std::string_view word, std::vector<int32_t>* ids) const;
  // It has a token, or the unknown one stands for it.
  [[nodiscard]] bool Takes(unsigned char byte) const {
    return byte_ids_[byte] >= 0 || options_.unknown_id.has_value();
  }

 private:
  // Open addressing: (left, right) -> rank and merged id.
  struct Pair {
    uint64_t key = kEmpty;
    int32_t rank = 0;
    int32_t merged = 0;
  };
  struct Word {
    uint64_t hash = 0;
    int32_t token = -1;  // index into tokens_; -1: free
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};

  Bpe() = default;
  void AddPair(const BpeMerge& merge, int32_t rank);
  [[nodiscard]] const Pair* FindPair(int32_t left, int32_t right) const;
  void AddWord(int32_t token);
  [[nodiscard]] const BpeToken* FindWord(std::string_view word) const;
  size_t Merge(std::string_view word, std::vector<int32_t>* ids) const;
  void MergeShort(std::vector<int32_t>& symbols) const;
  void MergeLong(std::vector<int32_t>& symbols) const;

  BpeOptions options_;
  std::vector<BpeToken> tokens_;
  std::array<int32_t, 256> byte_ids_{};  // -1: no token for that byte
  std::vector<Pair> pairs_;              // size a power of two
  std::vector<Word> words_;              // size a power of two
};

}  // namespace tidepool::text
