#pragma once
// Low-rank adapters (LoRA, arXiv:2106.09685): what is trained in place of a frozen model's matrices. No
// LibTorch.
//
// A target W [n, k] of a block computes y = x W^T + scale (x A^T) B^T, with A [rank, k] and B [n, rank].
// Targets that read the same rows (q, k, v; gate, up) are one matrix of the model, and their A stand in one
// matrix, too, in the order of the targets. B is stored as its transpose, [rank, n], so that every product
// runs along rows. Names, in module order, of each layer what the targets need:
//   layers.N.qkv.a [rank * targets among q, k, v; d], q.b [rank, Hq D], k.b, v.b [rank, Hkv D],
//   o.a [rank, Hq D], o.b [rank, d], gate_up.a [rank * targets among gate, up; d], gate.b, up.b [rank, ff],
//   down.a [rank, ff], down.b [rank, d]
// Of experts each has an A and a B of its own, expert after expert, gate and up together:
//   experts_gate_up.a [E rank, d], .b [E rank, 2 m], experts_down.a [E rank, m], .b [E rank, d]
// The embedding, x = W[id], adds scale A[id] B, so its A is a table, too; it is first, the head is last:
//   embedding.a [vocab, rank], embedding.b [rank, d], head.a [rank, d], head.b [rank, vocab]
// With a value head that is trained whole, a reward model's, in the place of the head: score [1, d].
// Where the model has one matrix for both, each still has an adapter of its own, or none.

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/choices.h"
#include "core/base/config.h"
#include "core/base/status.h"
#include "core/model/adapter_target.h"
#include "core/model/layout.h"
#include "core/model/spec.h"

namespace tidepool::model {

struct AdapterSpec {
  int64_t rank = 0;
  double alpha = 0;
  bool rslora = false;                 // scale is alpha / sqrt(rank) (arXiv:2312.03732), else alpha / rank
  std::vector<AdapterTarget> targets;  // ascending, each once
  AdapterInit init = AdapterInit::kKaiming;
  bool score = false;  // a value head is trained with it, so the two together are a reward model
  [[nodiscard]] double scale() const;
  [[nodiscard]] bool Has(AdapterTarget target) const;
  friend bool operator==(const AdapterSpec&, const AdapterSpec&) = default;
};

// Of a config that config::LoadConfig has accepted; empty: the job trains the whole model.
std::optional<AdapterSpec> AdapterOf(const LoraConfig& config);
std::optional<AdapterSpec> AdapterOf(const JobConfig& config);  // of a reward model: with its value head

// kInvalidArgument: a rank above the smaller side of a target, a scale that is not finite, no target, targets
// out of order, the head of what has a value head, or experts of a model that has none. kUnimplemented: gate,
// up or down of a block whose feed-forward is experts; a model with a value head that is not trained with it.
Status CheckAdapter(const ModelSpec& spec, const AdapterSpec& adapter);

// Where a target stands: `matrix` is the model's ("qkv", "o", "gate_up", "down", "head", of experts as the
// target is called), of which it has rows [row, row + n). Of the "embedding" the sides are those of its
// transpose: [d, vocab].
struct AdapterPlace {
  const char* matrix;
  int64_t row = 0, n = 0, k = 0;
  int64_t count = 1;  // so many of them, one below another, each with an A and a B: experts
};
AdapterPlace PlaceOf(const ModelSpec& spec, AdapterTarget target);

// What an adapter changes of a model, in module order. layer: -1 outside of the blocks.
struct AdapterSite {
  int64_t layer = 0;
  AdapterTarget target = AdapterTarget::kQ;
  friend auto operator<=>(const AdapterSite&, const AdapterSite&) = default;
};
std::vector<AdapterSite> SitesOf(const ModelSpec& spec, const std::vector<AdapterTarget>& targets);

// The parameters, a pure function: offsets ascend and are multiples of 64. requires CheckAdapter.
std::vector<Parameter> AdapterLayout(const ModelSpec& spec, const AdapterSpec& adapter);
int64_t AdapterElements(const ModelSpec& spec, const AdapterSpec& adapter);  // size of the index space

}  // namespace tidepool::model
