#include "core/engine/row_batch.h"

#include <algorithm>

#include "core/base/check.h"

namespace tidepool::engine {

std::vector<Sequence*> AssignRows(const std::vector<Sequence*>& running, int64_t max_rows) {
  std::vector<Sequence*> chosen;
  int64_t left = max_rows;
  for (Sequence* s : running) {
    s->rows = 0;
    if (s->leader != nullptr || s->missing() != 1 || left == 0) continue;
    s->rows = 1;
    --left;
    chosen.push_back(s);
  }
  for (Sequence* s : running) {
    if (left == 0) break;
    if (s->leader != nullptr || s->missing() <= 1) continue;
    s->rows = std::min(s->missing(), left);
    left -= s->rows;
    chosen.push_back(s);
  }
  std::ranges::stable_sort(chosen, {}, [](const Sequence* s) { return s->adapter; });
  return chosen;
}

void RowBatch::Clear() {
  ids_.clear();
  positions_.clear();
  slots_.clear();
  first_run_.clear();
  lengths_.clear();
  runs_.clear();
  adapters_.clear();
}

void RowBatch::Add(Sequence& s, int64_t block_tokens) {
  const int64_t end = s.computed + s.rows;
  TP_CHECK(end <= s.size() && end <= static_cast<int64_t>(s.blocks.size()) * block_tokens)
      << ToString(s.tid) << ": " << end << " tokens in " << s.blocks.size() << " blocks";
  const auto first_run = static_cast<int32_t>(runs_.size());
  for (int64_t b = 0; b * block_tokens < end; ++b) {
    const auto start = static_cast<int32_t>(s.blocks[static_cast<size_t>(b)] * block_tokens);
    const auto count = static_cast<int32_t>(std::min(block_tokens, end - b * block_tokens));
    if (b > 0 && runs_.back().start + runs_.back().count == start) {
      runs_.back().count += count;
    } else {
      runs_.push_back({.start = start, .count = count});
    }
  }
  s.first_row = rows();
  if (adapters_.empty() || adapters_.back().adapter != s.adapter) adapters_.push_back({.adapter = s.adapter});
  adapters_.back().rows += s.rows;
  for (int64_t t = s.computed; t < end; ++t) {
    ids_.push_back(s.tokens[static_cast<size_t>(t)]);
    positions_.push_back(static_cast<int32_t>(t));
    slots_.push_back(static_cast<int32_t>(s.blocks[static_cast<size_t>(t / block_tokens)] * block_tokens +
                                          t % block_tokens));
    first_run_.push_back(first_run);
    lengths_.push_back(static_cast<int32_t>(t + 1));
  }
}

}  // namespace tidepool::engine
