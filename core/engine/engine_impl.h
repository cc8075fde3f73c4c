#pragma once
// The engine's state, shared by engine.cc (commands) and engine_step.cc (the step).

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/engine/engine.h"
#include "core/engine/kv_arena.h"
#include "core/engine/kv_blocks.h"
#include "core/engine/ranks.h"
#include "core/engine/row_batch.h"
#include "core/engine/sampling.h"
#include "core/model/decoder.h"
#include "core/model/graph_rows.h"
#include "core/model/routing.h"
#include "core/model/row_operations.h"

namespace tidepool::engine {

// What a library's exception says, without its stack.
inline std::string FirstLine(const std::exception& e) {
  const std::string text = e.what();
  return text.substr(0, std::min<size_t>(text.find('\n'), 300));
}

// One token to draw: for whom, and from which row of the selected hidden states.
struct Pick {
  Sequence* s = nullptr;
  int32_t source = 0;
  int32_t id = -1;
  float logprob = 0;
  float log_kept = 0;
};

struct Engine::Impl {
  Impl(const model::Weights& weights_in, EngineOptions options_in)
      : weights(weights_in),
        options(std::move(options_in)),
        device(options.device),
        decoder(weights_in, device, options.ranks == nullptr ? model::Part() : options.ranks->part()),
        blocks(options.kv_cache_tokens / options.block_tokens),
        fill_slots(options.graphs && device->has_graphs() ? model::kFillRowsMax : 0),
        routing_bytes(options.record_routing ? model::RoutingBytes(weights_in.spec()) : 0),
        arena(decoder.spec(), weights_in.dtype(), blocks * options.block_tokens + fill_slots, *device,
              routing_bytes),
        kv_blocks(blocks, options.block_tokens,
                  [this](int64_t from, int64_t to, int64_t count) { Copy(from, to, count); }) {
    if (options.ranks != nullptr) decoder.UsePeers(&options.ranks->peers());
    adapters[kOwnWeights] = {.version = options.version, .seed = options.seed};
  }

  using Owned = std::unique_ptr<Sequence>;

  void Copy(int64_t from_slot, int64_t to_slot, int64_t count);
  void Admit(EngineStats& stats);
  void Compute(EngineStats& stats);  // may throw
  void SampleAll(std::vector<Pick>& picks, EngineStats& stats);
  void SampleSlice(std::span<Pick> picks, EngineStats& stats);
  void AttachFollowers(EngineStats& stats);
  device::Array LogitsOf(std::span<Pick> picks);
  FinishReason Append(Sequence& s, int32_t id);
  void NoteRouting(const model::RaggedBatch& rows);  // from `routed` to the slots
  std::string TakeRouting(Sequence& s);              // of the rows that were not handed out yet
  void BackToWaiting(const std::vector<bool>& which);
  void Unplace();
  void Unplace(int32_t adapter);  // the requests of one
  Delta DeltaFor(const Sequence& s) const {
    Delta delta;
    delta.tid = s.tid;
    delta.attempt = s.attempt;
    delta.adapter = s.adapter;
    delta.version = adapters.at(s.adapter).version;
    return delta;
  }
  [[nodiscard]] std::vector<Sequence*> Running() const {
    std::vector<Sequence*> out;
    out.reserve(running.size());
    for (const Owned& s : running) out.push_back(s.get());
    return out;
  }
  // By running request.
  [[nodiscard]] std::vector<bool> Which(const std::function<bool(const Sequence&)>& wanted) const {
    std::vector<bool> which;
    for (const Owned& s : running) which.push_back(wanted(*s));
    return which;
  }

  const model::Weights& weights;
  EngineOptions options;
  const std::shared_ptr<device::Device> device;
  model::Decoder decoder;
  const int64_t blocks;
  const int64_t fill_slots;     // behind the blocks, for rows that fill up a graph
  const int64_t routing_bytes;  // of a row; 0: not recorded
  KvArena arena;                // the note of a slot is its row's routing
  KvBlocks kv_blocks;
  std::vector<Owned> running;  // in order of admission
  std::deque<Owned> waiting;
  struct Attempt {
    int32_t adapter = kOwnWeights;
    SampleId tid;
    int32_t attempt = 0;
    friend auto operator<=>(const Attempt&, const Attempt&) = default;
  };
  std::set<Attempt> known;  // of all of them
  struct Adapter {
    Version version;
    uint64_t seed = 0;
  };
  std::map<int32_t, Adapter> adapters;  // kOwnWeights, too
  std::vector<SlotCopy> untold;         // since the last forward, for the other ranks
  RowBatch batch;
  device::Array hidden;         // [rows, hidden] of the current step
  std::vector<int32_t> routed;  // experts of its rows, [sparse layers, rows, K]
};

}  // namespace tidepool::engine
