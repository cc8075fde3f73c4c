#pragma once
// Builds the ragged batch of a step: which tokens of which request are rows, and what they attend to.
// Bookkeeping only. Not thread-safe.

#include <cstdint>
#include <vector>

#include "core/engine/sequence.h"
#include "core/model/decoder.h"

namespace tidepool::engine {

// Rows per request for one step. Requests that miss one token (decoding) come first, one row each; then
// the others get pieces in order of admission, until `max_rows` rows are used. Followers get none.
// Sets Sequence::rows; returns the requests that got any, in the order of their rows: those of one adapter
// together, else as they got them.
std::vector<Sequence*> AssignRows(const std::vector<Sequence*>& running, int64_t max_rows);

class RowBatch {
 public:
  void Clear();
  // Appends s.rows rows for tokens [s.computed, s.computed + s.rows); sets s.first_row. requires
  // s.blocks to cover them. Neighbouring blocks become one run.
  void Add(Sequence& s, int64_t block_tokens);
  [[nodiscard]] int64_t rows() const { return static_cast<int64_t>(ids_.size()); }
  [[nodiscard]] model::RaggedBatch view() const {
    return {.ids = ids_,
            .positions = positions_,
            .slots = slots_,
            .first_run = first_run_,
            .lengths = lengths_,
            .runs = runs_,
            .adapters = adapters_};
  }

 private:
  std::vector<int32_t> ids_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> slots_;
  std::vector<int32_t> first_run_;
  std::vector<int32_t> lengths_;
  std::vector<device::KvRun> runs_;
  std::vector<model::AdapterRows> adapters_;
};

}  // namespace tidepool::engine
