#pragma once
// Token bytes of samples on their way: the controller's decisions know only lengths and versions, this
// holds what was generated, until the payload is on disk and the row has been trained on.
// Owned by the controller thread.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/storage/payload.h"
#include "workers/controller/row_source.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

struct StoredSample {
  int32_t att = -1;
  TokenRecord tokens;
  storage::FinishReason finish = storage::FinishReason::kEos;
  // Episodes (workers/controller/turns.h): 1 on what the policy said; turns that are answered; the hash of
  // what the environment has said; how much of the record had been said before the newest answer, and its
  // hash.
  std::vector<uint8_t> loss_mask;
  int64_t turns = 0, sealed = 0;
  uint64_t history = 0, seal = 0;
};

class SampleStore {
 public:
  // Rows by ordinal (a group shares its row), evaluation rows by question.
  void PutRow(int64_t ordinal, bool eval, EncodedRow row) { rows_[{eval, ordinal}] = std::move(row); }
  [[nodiscard]] const EncodedRow* FindRow(const SampleId& tid) const;
  void DropRow(int64_t ordinal, bool eval) { rows_.erase({eval, ordinal}); }

  // The record of this attempt; a new attempt begins empty.
  StoredSample& Get(const SampleId& tid, int32_t att);
  [[nodiscard]] const StoredSample* Find(const SampleId& tid) const;
  [[nodiscard]] StoredSample* Change(const SampleId& tid);
  void Put(const SampleId& tid, StoredSample sample) { samples_[tid] = std::move(sample); }
  void Drop(const SampleId& tid) { samples_.erase(tid); }
  [[nodiscard]] size_t size() const { return samples_.size(); }

  [[nodiscard]] storage::Payload ToPayload(const SampleId& tid) const;  // requires both parts here
  static StoredSample FromPayload(const storage::Payload& payload);

 private:
  std::map<std::pair<bool, int64_t>, EncodedRow> rows_;
  std::map<SampleId, StoredSample> samples_;
};

}  // namespace tidepool::workers
