#include "core/model/layout.h"

#include <cmath>
#include <functional>
#include <initializer_list>
#include <numeric>

#include "core/model/families/family.h"

namespace tidepool::model {
namespace {

constexpr int64_t kAlign = 64;  // elements

std::string Text(int64_t v) { return std::to_string(v); }
int64_t RoundUpTo(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

Status CheckRope(const ModelSpec& s) {
  if (!(s.rope_theta > 0) || !std::isfinite(s.rope_theta)) {
    return InvalidArgument("model: rope_theta must be positive and finite");
  }
  const RopeSpec& r = s.rope;
  if (r.type == RopeType::kDefault) return OkStatus();
  for (const double v : {r.factor, r.low_frequency_factor, r.high_frequency_factor, r.beta_fast, r.beta_slow,
                         r.attention_factor}) {
    if (!(v > 0) || !std::isfinite(v))
      return InvalidArgument("model: the numbers of the rope scaling must be positive and finite");
  }
  if (r.type != RopeType::kLinear &&
      !(r.original_max_position >= 1 && r.original_max_position <= double{1 << 24})) {
    return InvalidArgument("model: original_max_position_embeddings of the rope scaling must be 1 to 2^24");
  }
  if (r.type == RopeType::kLlama3 && r.low_frequency_factor == r.high_frequency_factor) {
    return InvalidArgument("model: low_freq_factor and high_freq_factor of the rope scaling are equal");
  }
  if (r.type == RopeType::kYarn && s.rope_theta <= 1) {
    return InvalidArgument("model: rope scaling of type yarn needs a rope_theta above 1");
  }
  return OkStatus();
}

struct Bound {
  const char* name;
  int64_t value, lo, hi;
};
Status CheckBounds(std::initializer_list<Bound> bounds) {
  for (const Bound& b : bounds) {
    if (b.value < b.lo || b.value > b.hi) {
      return InvalidArgument("model: " + std::string(b.name) + " is " + Text(b.value) + ", expected " +
                             Text(b.lo) + " to " + Text(b.hi));
    }
  }
  return OkStatus();
}

Status CheckMoe(const MoeSpec& m) {
  if (m.experts == 0) return OkStatus();
  return CheckBounds({{"experts", m.experts, 1, 4096},
                      {"experts per token", m.experts_per_token, 1, m.experts},
                      {"moe_intermediate_size", m.intermediate_size, 1, int64_t{1} << 20},
                      {"shared_expert_intermediate_size", m.shared_intermediate_size, 0, int64_t{1} << 20},
                      {"decoder_sparse_step", m.sparse_step, 1, int64_t{1} << 20}});
}

}  // namespace

int64_t Parameter::numel() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

Status CheckSpec(const ModelSpec& s) {
  TP_RETURN_IF_ERROR(CheckBounds({{"vocab_size", s.vocab_size, 1, int64_t{1} << 24},
                                  {"hidden_size", s.hidden_size, 1, int64_t{1} << 17},
                                  {"intermediate_size", s.intermediate_size, 1, int64_t{1} << 20},
                                  {"layers", s.layers, 1, 4096},
                                  {"heads", s.heads, 1, 4096},
                                  {"kv_heads", s.kv_heads, 1, 4096},
                                  {"head_size", s.head_size, 2, kHeadSizeMost},
                                  {"max_position", s.max_position, 1, int64_t{1} << 24}}));
  if (s.heads % s.kv_heads != 0) {
    return InvalidArgument("model: heads " + Text(s.heads) + " is not a multiple of kv_heads " +
                           Text(s.kv_heads));
  }
  if (s.head_size % 2 != 0) {
    return InvalidArgument("model: head_size " + Text(s.head_size) +
                           " is odd; rotary positions need an even one");
  }
  TP_RETURN_IF_ERROR(CheckRope(s));
  if (!(s.rms_norm_eps >= 0) || !std::isfinite(s.rms_norm_eps)) {
    return InvalidArgument("model: rms_norm_eps must be non-negative and finite");
  }
  TP_RETURN_IF_ERROR(CheckMoe(s.moe));
  if (FindFamily(s.architecture) == nullptr) {
    return Unimplemented("model: architecture '" + s.architecture + "' is not one of " + FamilyNames());
  }
  // Far beyond any machine here, and far below where sizes in bytes overflow.
  if (LayoutElements(s) > int64_t{1} << 46) {
    return InvalidArgument("model: its sizes together give more than 2^46 parameters");
  }
  return OkStatus();
}

std::vector<Parameter> Layout(const ModelSpec& s) {
  std::vector<Parameter> list;
  int64_t offset = 0;
  const auto add = [&](std::string name, std::vector<int64_t> shape, int64_t product_rows = 0) {
    Parameter p{std::move(name), offset, std::move(shape), product_rows};
    offset += RoundUpTo(p.numel(), kAlign);
    list.push_back(std::move(p));
  };
  const int64_t d = s.hidden_size, qkv = (s.heads + 2 * s.kv_heads) * s.head_size;
  add("embedding", {s.vocab_size, d}, s.tie_embeddings && !s.value_head ? s.vocab_size : 0);
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string at = "layers." + Text(i) + ".";
    add(at + "attention_norm", {d});
    add(at + "qkv", {qkv, d}, qkv);
    if (s.qkv_bias) add(at + "qkv_bias", {qkv});
    if (s.qk_norm) {
      add(at + "q_norm", {s.head_size});
      add(at + "k_norm", {s.head_size});
    }
    add(at + "o", {d, s.heads * s.head_size}, d);
    if (s.o_bias) add(at + "o_bias", {d});
    add(at + "mlp_norm", {d});
    if (s.IsSparse(i)) {
      const int64_t experts = s.moe.experts, here = s.moe.experts_here(), m = s.moe.intermediate_size,
                    shared = s.moe.shared_intermediate_size;
      add(at + "router", {experts, d});
      add(at + "experts_gate_up", {here * 2 * m, d}, 2 * m);
      add(at + "experts_down", {here * d, m}, d);
      if (shared > 0) {
        add(at + "shared_gate_up", {2 * shared, d}, 2 * shared);
        add(at + "shared_down", {d, shared}, d);
        add(at + "shared_gate", {1, d});
      }
      continue;
    }
    add(at + "gate_up", {2 * s.intermediate_size, d}, 2 * s.intermediate_size);
    if (s.mlp_bias) add(at + "gate_up_bias", {2 * s.intermediate_size});
    add(at + "down", {d, s.intermediate_size}, d);
    if (s.mlp_bias) add(at + "down_bias", {d});
  }
  add("final_norm", {d});
  if (s.value_head) {
    add("score", {1, d});
  } else if (!s.tie_embeddings) {
    add("head", {s.vocab_size, d}, s.vocab_size);
  }
  return list;
}

int64_t LayoutElements(const ModelSpec& spec) { return GradientParts(Layout(spec)).back(); }

std::vector<int64_t> GradientParts(const std::vector<Parameter>& layout) {
  std::vector<int64_t> begins;
  for (const Parameter& p : layout) {
    if (p.name == "embedding" || p.name == "final_norm" || p.name.ends_with(".attention_norm"))
      begins.push_back(p.offset);
  }
  begins.push_back(layout.back().offset + RoundUpTo(layout.back().numel(), kAlign));
  return begins;
}

}  // namespace tidepool::model
