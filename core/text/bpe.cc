#include "core/text/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <queue>
#include <utility>

#include "core/base/hash.h"

namespace tidepool::text {
namespace {

// Up to this length the pair to merge is found by looking at all of them, which beats a heap.
constexpr size_t kShortSymbols = 40;

uint64_t HashWord(std::string_view word) {
  uint64_t hash = word.size() * 0x9E3779B97F4A7C15ULL;
  const char* p = word.data();
  size_t left = word.size();
  for (; left >= 8; p += 8, left -= 8) {
    uint64_t chunk = 0;
    std::memcpy(&chunk, p, 8);
    hash = (hash ^ chunk) * 0xBF58476D1CE4E5B9ULL;
    hash ^= hash >> 29;
  }
  uint64_t rest = 0;
  std::memcpy(&rest, p, left);
  hash = (hash ^ rest) * 0x94D049BB133111EBULL;
  return hash ^ (hash >> 32);
}

uint64_t Key(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

}  // namespace

std::unique_ptr<Bpe> Bpe::Create(std::vector<BpeToken> tokens, std::span<const BpeMerge> merges,
                                 BpeOptions options) {
  auto bpe = std::unique_ptr<Bpe>(new Bpe());
  bpe->options_ = options;
  bpe->tokens_ = std::move(tokens);
  bpe->byte_ids_.fill(-1);
  for (const BpeToken& token : bpe->tokens_) {
    if (token.bytes.size() == 1) bpe->byte_ids_[static_cast<unsigned char>(token.bytes[0])] = token.id;
  }
  bpe->pairs_.resize(std::bit_ceil(2 * merges.size() + 1));
  for (size_t rank = 0; rank < merges.size(); ++rank) bpe->AddPair(merges[rank], static_cast<int32_t>(rank));
  bpe->words_.resize(std::bit_ceil(2 * bpe->tokens_.size() + 1));
  std::vector<int32_t> ids;
  for (size_t i = 0; i < bpe->tokens_.size(); ++i) {
    const BpeToken& token = bpe->tokens_[i];
    if (token.bytes.empty()) continue;
    if (!options.ignore_merges) {
      ids.clear();
      bpe->Merge(token.bytes, &ids);
      if (ids.size() != 1 || ids[0] != token.id) continue;
    }
    bpe->AddWord(static_cast<int32_t>(i));
  }
  return bpe;
}

void Bpe::AddPair(const BpeMerge& merge, int32_t rank) {
  const uint64_t key = Key(merge.left, merge.right);
  for (size_t at = Mix64(key);; ++at) {
    Pair& pair = pairs_[at & (pairs_.size() - 1)];
    if (pair.key != kEmpty && pair.key != key) continue;
    pair = {key, rank, merge.merged};  // a pair that is listed twice has its last rank, as in the reference
    return;
  }
}

const Bpe::Pair* Bpe::FindPair(int32_t left, int32_t right) const {
  const uint64_t key = Key(left, right);
  for (size_t at = Mix64(key);; ++at) {
    const Pair& pair = pairs_[at & (pairs_.size() - 1)];
    if (pair.key == key) return &pair;
    if (pair.key == kEmpty) return nullptr;
  }
}

void Bpe::AddWord(int32_t token) {
  const uint64_t hash = HashWord(tokens_[static_cast<size_t>(token)].bytes);
  for (size_t at = hash;; ++at) {
    Word& word = words_[at & (words_.size() - 1)];
    if (word.token >= 0) continue;
    word = {hash, token};
    return;
  }
}

const BpeToken* Bpe::FindWord(std::string_view text) const {
  const uint64_t hash = HashWord(text);
  for (size_t at = hash;; ++at) {
    const Word& word = words_[at & (words_.size() - 1)];
    if (word.token < 0) return nullptr;
    if (word.hash == hash && tokens_[static_cast<size_t>(word.token)].bytes == text) {
      return &tokens_[static_cast<size_t>(word.token)];
    }
  }
}

size_t Bpe::Encode(std::string_view word, std::vector<int32_t>* ids) const {
  if (word.empty()) return std::string_view::npos;
  if (const BpeToken* token = FindWord(word)) {
    ids->push_back(token->id);
    return std::string_view::npos;
  }
  return Merge(word, ids);
}

size_t Bpe::Merge(std::string_view word, std::vector<int32_t>* ids) const {
  static thread_local std::vector<int32_t> symbols;  // scratch: saves an allocation a word
  symbols.clear();
  bool unknown_before = false;
  size_t left_out = std::string_view::npos;
  for (size_t i = 0; i < word.size(); ++i) {
    const int32_t id = byte_ids_[static_cast<unsigned char>(word[i])];
    if (id >= 0) {
      symbols.push_back(id);
    } else if (!options_.unknown_id) {
      left_out = std::min(left_out, i);
    } else if (!(options_.fuse_unknown && unknown_before)) {
      symbols.push_back(*options_.unknown_id);
    }
    unknown_before = id < 0;
  }
  if (symbols.size() <= kShortSymbols) {
    MergeShort(symbols);
  } else {
    MergeLong(symbols);
  }
  ids->insert(ids->end(), symbols.begin(), symbols.end());
  if (symbols.capacity() > 65536) symbols = {};  // do not keep the memory of one giant word
  return left_out;
}

void Bpe::MergeShort(std::vector<int32_t>& symbols) const {
  constexpr int32_t kNone = INT32_MAX;
  std::array<int32_t, kShortSymbols> ranks;   // NOLINT: of the pair (i, i + 1); set before it is read
  std::array<int32_t, kShortSymbols> merged;  // NOLINT: likewise
  size_t count = symbols.size();
  const auto rate = [&](size_t i) {
    const Pair* pair = FindPair(symbols[i], symbols[i + 1]);
    ranks[i] = pair == nullptr ? kNone : pair->rank;
    merged[i] = pair == nullptr ? 0 : pair->merged;
  };
  for (size_t i = 0; i + 1 < count; ++i) rate(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNone) break;
    symbols[best] = merged[best];
    for (size_t i = best + 1; i + 1 < count; ++i) {
      symbols[i] = symbols[i + 1];
      ranks[i] = ranks[i + 1];
      merged[i] = merged[i + 1];
    }
    --count;
    if (best > 0) rate(best - 1);
    if (best + 1 < count) rate(best);
  }
  symbols.resize(count);
}

void Bpe::MergeLong(std::vector<int32_t>& symbols) const {
  // A linked list of symbols and a heap of candidate merges; a candidate whose pair has changed since
  // is passed over.
  struct Candidate {
    int32_t rank;
    int32_t at;
    uint64_t key;
    int32_t merged;
    bool operator>(const Candidate& other) const {
      return std::pair{rank, at} > std::pair{other.rank, other.at};
    }
  };
  const auto count = static_cast<int32_t>(symbols.size());
  std::vector<int32_t> next(symbols.size());
  std::vector<int32_t> previous(symbols.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  const auto offer = [&](int32_t at) {
    const int32_t right = next[static_cast<size_t>(at)];
    if (right >= count) return;
    const int32_t a = symbols[static_cast<size_t>(at)];
    const int32_t b = symbols[static_cast<size_t>(right)];
    if (const Pair* pair = FindPair(a, b)) heap.push({pair->rank, at, pair->key, pair->merged});
  };
  for (int32_t i = 0; i < count; ++i) {
    next[static_cast<size_t>(i)] = i + 1;
    previous[static_cast<size_t>(i)] = i - 1;
  }
  for (int32_t i = 0; i + 1 < count; ++i) offer(i);
  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    const auto at = static_cast<size_t>(top.at);
    if (symbols[at] < 0) continue;  // merged into its left neighbour
    const int32_t right = next[at];
    if (right >= count || Key(symbols[at], symbols[static_cast<size_t>(right)]) != top.key) continue;
    symbols[at] = top.merged;
    symbols[static_cast<size_t>(right)] = -1;
    next[at] = next[static_cast<size_t>(right)];
    if (next[at] < count) previous[static_cast<size_t>(next[at])] = top.at;
    if (previous[at] >= 0) offer(previous[at]);
    offer(top.at);
  }
  std::erase_if(symbols, [](int32_t id) { return id < 0; });
}

}  // namespace tidepool::text
