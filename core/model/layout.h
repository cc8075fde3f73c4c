#pragma once
// The frozen list of parameters of a model, as a pure function of its spec. No LibTorch.
//
// Names, in module order (`N.` is a layer, [] what only some families have):
//   embedding [vocab, d]
//   layers.N.attention_norm [d], qkv [(Hq + 2 Hkv) D, d], [qkv_bias], [q_norm, k_norm [D]], o [d, Hq D],
//   [o_bias [d]], mlp_norm [d]
//     dense:   gate_up [2 ff, d], [gate_up_bias], down [d, ff], [down_bias]
//     sparse:  router [E, d], experts_gate_up [E 2 m, d] (gate, then up, of each expert), experts_down [E d,
//     m],
//              [shared_gate_up [2 s, d], shared_down [d, s], shared_gate [1, d]]
//   final_norm [d], [head [vocab, d], unless tied], or [score [1, d]] of a model with a value head, which has
//   no head

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/model/spec.h"

namespace tidepool::model {

struct Parameter {
  std::string name;    // "layers.3.qkv"; HF names map to row ranges of it (hugging_face.h)
  int64_t offset = 0;  // elements from the arena's start, multiple of 64
  std::vector<int64_t> shape;
  int64_t product_rows = 0;  // rows of each matrix in it that hidden states are multiplied with; 0: none
  [[nodiscard]] int64_t numel() const;
};

// kInvalidArgument if a size is out of range, kUnimplemented for another architecture.
Status CheckSpec(const ModelSpec& spec);

// The frozen list of parameters of a spec: a pure function of it.
std::vector<Parameter> Layout(const ModelSpec& spec);
int64_t LayoutElements(const ModelSpec& spec);  // size of the index space, a multiple of 64
// Where the parts of the space begin whose gradients a backward has one after the other, the last part first:
// the embedding, each block, the last norm with the head. Behind them the end of the space.
std::vector<int64_t> GradientParts(const std::vector<Parameter>& layout);

}  // namespace tidepool::model
