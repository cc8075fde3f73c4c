#include "core/model/forward_invariance.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/model/decoder.h"
#include "core/model/graph_rows.h"
#include "core/model/weights.h"

namespace tidepool::model {
namespace {

// The first passes an edge of 256 keys, where attention of few rows is divided.
constexpr int32_t kLengths[] = {261, 40, 9};
constexpr int32_t kDecoded = 4;  // the last tokens of each
constexpr int32_t kRoom = 320;   // slots of a sequence

ModelSpec OneBlock(ModelSpec spec) {
  constexpr int64_t kWidth = 512;
  spec.layers = 1;
  spec.vocab_size = std::min<int64_t>(spec.vocab_size, 64);
  spec.max_position = std::max<int64_t>(spec.max_position, kRoom);
  spec.intermediate_size = std::min(spec.intermediate_size, kWidth);
  spec.eos_token_ids.clear();
  spec.bos_token_id = spec.pad_token_id = -1;
  MoeSpec& moe = spec.moe;
  if (moe.experts > 0) {
    moe.experts = std::min<int64_t>(moe.experts, std::max<int64_t>(8, moe.experts_per_token));
    moe.intermediate_size = std::min(moe.intermediate_size, kWidth);
    moe.shared_intermediate_size = std::min(moe.shared_intermediate_size, kWidth);
    moe.sparse_step = 1;
    moe.dense_layers.clear();
  }
  return spec;
}

// Tokens of some of the sequences, those of one behind each other.
struct Piece {
  size_t sequence;
  int32_t from, end;
};

class Trial {
 public:
  Trial(const Weights& weights, const std::shared_ptr<device::Device>& device)
      : decoder_(weights, device), spec_(weights.spec()), device_(*device) {
    const int64_t slots = spec_.layers * (kRoom * std::ssize(kLengths) + kFillRowsMax);
    for (device::Array* a : {&k_, &v_})
      *a = device_.Take(slots, spec_.kv_heads * spec_.head_size, weights.dtype());
  }

  // Hidden states of the tokens, one after the other, by their bytes.
  std::vector<std::vector<char>> Run(std::span<const Piece> pieces, bool recorded) {
    std::vector<int32_t> ids, positions, slots, first_run, lengths;
    std::vector<device::KvRun> runs;
    for (const Piece& piece : pieces) {
      const auto first = static_cast<int32_t>(piece.sequence) * kRoom;
      for (int32_t t = piece.from; t < piece.end; ++t) {
        ids.push_back(static_cast<int32_t>((t * 31 + first * 7 + t * t % 11) % spec_.vocab_size));
        positions.push_back(t);
        slots.push_back(first + t);
        first_run.push_back(static_cast<int32_t>(runs.size()));
        lengths.push_back(t + 1);
      }
      runs.push_back({.start = first, .count = piece.end});
    }
    const device::Array hidden =
        decoder_.Forward({.ids = ids,
                          .positions = positions,
                          .slots = slots,
                          .first_run = first_run,
                          .lengths = lengths,
                          .runs = runs,
                          .fill_slot = recorded ? kRoom * static_cast<int32_t>(std::size(kLengths)) : -1},
                         {k_.view, v_.view});
    const int64_t width = hidden.view.bytes() / hidden.view.rows;
    const std::vector<char> all =
        device_.Read(static_cast<const char*>(hidden.view.data), hidden.view.bytes());
    std::vector<std::vector<char>> rows;
    for (auto at = all.begin(); at != all.end(); at += width) rows.emplace_back(at, at + width);
    return rows;
  }

 private:
  const Decoder decoder_;
  const ModelSpec spec_;
  device::Device& device_;
  device::Array k_, v_;
};

// Which token is another one, and computed how; nothing: none.
std::optional<std::string> Difference(Trial& trial, bool graphs) {
  constexpr size_t kAll = std::size(kLengths);
  std::vector<std::vector<char>> whole[kAll];
  std::vector<Piece> begins;
  for (size_t s = 0; s < kAll; ++s) {
    const Piece all{s, 0, kLengths[s]};
    whole[s] = trial.Run({&all, 1}, false);
    begins.push_back({s, 0, kLengths[s] - kDecoded});
  }
  const auto compare = [&](std::span<const Piece> pieces, bool recorded,
                           const char* how) -> std::optional<std::string> {
    const std::vector<std::vector<char>> rows = trial.Run(pieces, recorded);
    size_t row = 0;
    for (const Piece& piece : pieces) {
      for (int32_t t = piece.from; t < piece.end; ++t, ++row) {
        if (rows[row] != whole[piece.sequence][static_cast<size_t>(t)])
          return "token " + std::to_string(t) + " of " + std::to_string(kLengths[piece.sequence]) + " " + how;
      }
    }
    return std::nullopt;
  };
  if (auto other = compare(begins, false, "of several prompts in one batch")) return other;
  for (int32_t t = -kDecoded; t < 0; ++t) {
    std::vector<Piece> step;
    for (size_t s = 0; s < kAll; ++s) step.push_back({s, kLengths[s] + t, kLengths[s] + t + 1});
    for (const bool recorded : {false, true}) {
      if (recorded && !graphs) continue;
      if (auto other = compare(step, recorded, recorded ? "decoded in a recorded step" : "decoded"))
        return other;
      // Alone it writes the keys and values that are there already.
      if (auto other = compare({&step.front(), 1}, recorded,
                               recorded ? "decoded alone in a recorded step" : "decoded alone"))
        return other;
    }
  }
  return std::nullopt;
}

}  // namespace

Status TryForwardInvariance(const std::shared_ptr<device::Device>& device, const ModelSpec& spec,
                            DType dtype) {
  TP_ASSIGN_OR_RETURN(const std::unique_ptr<Weights> weights, Weights::Create(OneBlock(spec), dtype));
  weights->Initialize(1, 0.1);
  Trial trial(*weights, device);
  const std::optional<std::string> other = Difference(trial, device->has_graphs());
  if (!other) return OkStatus();
  return FailedPrecondition("a block in " + std::string(Name(dtype)) + " on " + device->name() +
                            " gives a token other bits in another batch: " + *other +
                            "; set deterministic: false, or write cluster.device: cpu");
}

}  // namespace tidepool::model
