#pragma once
// The engine's state, shared by engine.cc (commands) and engine_step.cc (the step).

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/engine/engine.h"
#include "core/engine/kv_arena.h"
#include "core/engine/placement.h"
#include "core/engine/row_batch.h"
#include "core/engine/sampler.h"
#include "core/model/decoder.h"

namespace tidepool::engine {

// What a library's exception says, without its stack.
inline std::string FirstLine(const std::exception& e) {
  const std::string text = e.what();
  return text.substr(0, std::min<size_t>(text.find('\n'), 300));
}

// One token to draw: for whom, and from which row of the selected hidden states.
struct Pick {
  Sequence* s = nullptr;
  int64_t source = 0;
  int32_t id = -1;
  float logprob = 0;
  float log_kept = 0;
};

struct Engine::Impl {
  Impl(const model::Weights& weights_in, EngineOptions options_in)
      : weights(weights_in),
        options(std::move(options_in)),
        decoder(weights_in, {.deterministic = options.deterministic}),
        blocks(options.kv_cache_tokens / options.block_tokens),
        arena(weights_in.spec(), weights_in.dtype(), blocks * options.block_tokens),
        placement(blocks, options.block_tokens,
                  [this](int64_t from, int64_t to, int64_t count) { arena.Copy(from, to, count); }) {}

  using Owned = std::unique_ptr<Sequence>;

  void Admit(EngineStats& stats);
  void Compute(EngineStats& stats);  // may throw from tensor math
  void SampleAll(std::vector<Pick>& picks, EngineStats& stats);
  void SampleSlice(std::span<Pick> picks, EngineStats& stats);
  void AttachFollowers(EngineStats& stats);
  at::Tensor SelectHidden(std::span<Pick> picks);
  FinishReason Append(Sequence& s, int32_t id);
  void BackToWaiting(const std::vector<bool>& which);
  void Unplace();
  Delta DeltaFor(const Sequence& s) const {
    Delta delta;
    delta.tid = s.tid;
    delta.attempt = s.attempt;
    delta.version = options.version;
    return delta;
  }
  [[nodiscard]] std::vector<Sequence*> Running() const {
    std::vector<Sequence*> out;
    out.reserve(running.size());
    for (const Owned& s : running) out.push_back(s.get());
    return out;
  }

  const model::Weights& weights;
  EngineOptions options;
  model::Decoder decoder;
  const int64_t blocks;
  KvArena arena;
  Placement placement;
  std::vector<Owned> running;  // in order of admission
  std::deque<Owned> waiting;
  std::set<std::pair<SampleId, int32_t>> known;  // (tid, attempt) of all of them
  RowBatch batch;
  at::Tensor hidden;  // [rows, hidden] of the current step
  std::vector<SamplerScratch> scratch;
};

}  // namespace tidepool::engine
