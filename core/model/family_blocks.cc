#include <algorithm>
#include <string>

#include "core/model/families/blocks.h"
#include "core/model/rope.h"

namespace tidepool::model {
namespace {

using Json = nlohmann::json;

Status ReadScaling(const ConfigReader& top, const ConfigReader& r, const std::string& key,
                   const std::string& type, ModelSpec& s) {
  static constexpr std::pair<const char*, RopeType> kTypes[] = {
      {"linear", RopeType::kLinear}, {"llama3", RopeType::kLlama3}, {"yarn", RopeType::kYarn}};
  for (const auto& [name, value] : kTypes) {
    if (type == name) s.rope.type = value;
  }
  if (type != "dynamic" && s.rope.type == RopeType::kDefault)
    return top.Missing(key + " of type '" + type + "'");
  const auto need = [&](const char* name, double& out) -> Status {
    if (r.Find(name) == nullptr)
      return InvalidArgument(r.path() + ": " + name + " is missing, which type '" + type + "' needs");
    return r.Number(name, 0, out);
  };
  RopeSpec& rope = s.rope;
  TP_RETURN_IF_ERROR(need("factor", rope.factor));
  if (type == "dynamic") {
    // Up to max_position_embeddings its frequencies are the plain ones; beyond, they change with the length.
    s.ends_at_max_position = true;
    return OkStatus();
  }
  if (rope.type == RopeType::kLinear) return OkStatus();
  TP_RETURN_IF_ERROR(r.Number("original_max_position_embeddings", static_cast<double>(s.max_position),
                              rope.original_max_position));
  TP_RETURN_IF_ERROR(
      top.Number("original_max_position_embeddings", rope.original_max_position, rope.original_max_position));
  if (rope.type == RopeType::kLlama3) {
    TP_RETURN_IF_ERROR(need("low_freq_factor", rope.low_frequency_factor));
    return need("high_freq_factor", rope.high_frequency_factor);
  }
  double mscale = 0, mscale_all = 0;
  TP_RETURN_IF_ERROR(r.Number("mscale", 0, mscale));
  TP_RETURN_IF_ERROR(r.Number("mscale_all_dim", 0, mscale_all));
  TP_RETURN_IF_ERROR(r.Number("attention_factor", YarnAttentionFactor(rope.factor, mscale, mscale_all),
                              rope.attention_factor));
  TP_RETURN_IF_ERROR(r.Number("beta_fast", 32, rope.beta_fast));
  TP_RETURN_IF_ERROR(r.Number("beta_slow", 1, rope.beta_slow));
  if (rope.beta_fast == 0) rope.beta_fast = 32;  // as the reference: 0 is "not given"
  if (rope.beta_slow == 0) rope.beta_slow = 1;
  return r.Bool("truncate", true, rope.truncate);
}

// rope_theta from the three places where it may stand, and how frequencies are scaled.
Status ReadRope(const ConfigReader& top, ModelSpec& s) {
  TP_RETURN_IF_ERROR(top.Number("rope_theta", 10000.0, s.rope_theta));
  double partial = 1;
  TP_RETURN_IF_ERROR(top.Number("partial_rotary_factor", 1.0, partial));
  // Both may be there; the older key comes first unless it is empty.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* v = top.Find(key);
    if (v == nullptr) continue;
    if (!v->is_object()) return top.Wrong(key, "an object", *v);
    if (v->empty()) continue;
    for (const auto& [name, value] : v->items()) {
      if (value.is_object())
        return top.Missing(std::string(key) + "." + name + " (rotary parameters by layer type)");
    }
    const ConfigReader inner(top.path() + ": " + key, *v);
    std::string type, old_type;
    TP_RETURN_IF_ERROR(inner.Text("type", "default", old_type));
    TP_RETURN_IF_ERROR(inner.Text("rope_type", old_type, type));
    TP_RETURN_IF_ERROR(inner.Number("rope_theta", s.rope_theta, s.rope_theta));
    TP_RETURN_IF_ERROR(inner.Number("partial_rotary_factor", partial, partial));
    if (type != "default") TP_RETURN_IF_ERROR(ReadScaling(top, inner, key, type, s));
    break;
  }
  if (partial != 1) return top.Missing("partial_rotary_factor " + std::to_string(partial));
  return OkStatus();
}

Status AcceptUnreached(const ConfigReader& r, int64_t window, ModelSpec& s) {
  if (window < s.max_position) {
    return r.Missing("sliding_window " + std::to_string(window) + " (below max_position_embeddings " +
                     std::to_string(s.max_position) + ")");
  }
  s.ends_at_max_position = true;
  return OkStatus();
}

}  // namespace

Status ReadDecoder(const ConfigReader& r, const DecoderDefaults& d, ModelSpec& s) {
  TP_RETURN_IF_ERROR(r.Int("vocab_size", d.vocab_size, s.vocab_size));
  TP_RETURN_IF_ERROR(r.Int("hidden_size", d.hidden_size, s.hidden_size));
  TP_RETURN_IF_ERROR(r.Int("intermediate_size", d.intermediate_size, s.intermediate_size));
  TP_RETURN_IF_ERROR(r.Int("num_hidden_layers", d.layers, s.layers));
  TP_RETURN_IF_ERROR(r.Int("num_attention_heads", d.heads, s.heads));
  TP_RETURN_IF_ERROR(r.Int("num_key_value_heads",
                           d.kv_heads == 0 || r.Has("num_key_value_heads") ? s.heads : d.kv_heads,
                           s.kv_heads));
  TP_RETURN_IF_ERROR(r.Int("max_position_embeddings", d.max_position, s.max_position));
  TP_RETURN_IF_ERROR(r.Number("rms_norm_eps", 1e-6, s.rms_norm_eps));
  TP_RETURN_IF_ERROR(r.Bool("tie_word_embeddings", false, s.tie_embeddings));
  if (r.Find("head_dim") != nullptr) {
    TP_RETURN_IF_ERROR(r.Int("head_dim", 0, s.head_size));
  } else if (d.head_size != 0 && !r.Has("head_dim")) {
    s.head_size = d.head_size;
  } else {
    if (s.heads < 1 || s.hidden_size % s.heads != 0) {
      return InvalidArgument(r.path() + ": hidden_size " + std::to_string(s.hidden_size) +
                             " is not a multiple of num_attention_heads " + std::to_string(s.heads) +
                             ", and there is no head_dim");
    }
    s.head_size = s.hidden_size / s.heads;
  }
  TP_RETURN_IF_ERROR(ReadRope(r, s));
  std::string act;
  TP_RETURN_IF_ERROR(r.Text("hidden_act", "silu", act));
  if (act != "silu" && act != "swish") return r.Missing("hidden_act '" + act + "' (known: silu)");
  if (r.Find("quantization_config") != nullptr) return r.Missing("quantization_config");
  return OkStatus();
}

Status RefuseWindow(const ConfigReader& r, ModelSpec& s) {
  int64_t window = 0;
  if (r.Has("sliding_window") && r.Find("sliding_window") == nullptr) return OkStatus();
  TP_RETURN_IF_ERROR(r.Int("sliding_window", 4096, window));
  return AcceptUnreached(r, window, s);
}

Status RefuseSwitchedWindow(const ConfigReader& r, bool by_layer, ModelSpec& s) {
  bool on = false, listed = false;
  int64_t window = 0, first = 0;
  TP_RETURN_IF_ERROR(r.Bool("use_sliding_window", false, on));
  if (const Json* types = r.Find("layer_types"); types != nullptr) {
    if (!types->is_array()) return r.Wrong("layer_types", "a list", *types);
    for (const Json& type : *types) {
      if (type == "sliding_attention") {
        listed = true;
        if (!on) return r.Missing("layer_types with sliding_attention");
      } else if (type != "full_attention") {
        return r.Missing("layer_types with " +
                         type.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 80));
      }
    }
    if (by_layer && !listed) return OkStatus();
  }
  if (!on || (r.Has("sliding_window") && r.Find("sliding_window") == nullptr)) return OkStatus();
  TP_RETURN_IF_ERROR(r.Int("sliding_window", 4096, window));
  TP_RETURN_IF_ERROR(r.Int("max_window_layers", 28, first));
  if (by_layer && !listed && first >= s.layers) return OkStatus();
  return AcceptUnreached(r, window, s);
}

Status ReadExperts(const ConfigReader& r, const MoeDefaults& d, ModelSpec& s) {
  MoeSpec& m = s.moe;
  TP_RETURN_IF_ERROR(r.Int("num_experts", d.experts, m.experts));
  TP_RETURN_IF_ERROR(r.Int("num_local_experts", m.experts, m.experts));
  TP_RETURN_IF_ERROR(r.Int("num_experts_per_tok", d.experts_per_token, m.experts_per_token));
  TP_RETURN_IF_ERROR(r.Int("moe_intermediate_size", d.intermediate_size, m.intermediate_size));
  TP_RETURN_IF_ERROR(r.Int("decoder_sparse_step", 1, m.sparse_step));
  TP_RETURN_IF_ERROR(r.Bool("norm_topk_prob", false, m.renormalize));
  TP_RETURN_IF_ERROR(r.Number("router_aux_loss_coef", 0.001, m.aux_loss_coefficient));
  if (m.experts < 0 || m.sparse_step < 1)
    return InvalidArgument(r.path() + ": num_experts must be 0 or more and decoder_sparse_step 1 or more");
  if (const Json* list = r.Find("mlp_only_layers"); list != nullptr) {
    if (!list->is_array()) return r.Wrong("mlp_only_layers", "a list of layers", *list);
    for (const Json& layer : *list) {
      if (!layer.is_number_integer()) return r.Wrong("mlp_only_layers", "numbers of layers", layer);
      // Layers that are not there change nothing, and are not kept.
      if (const auto l = layer.get<int64_t>(); l >= 0 && l < std::min<int64_t>(s.layers, 4096))
        m.dense_layers.push_back(static_cast<int32_t>(l));
    }
    std::sort(m.dense_layers.begin(), m.dense_layers.end());
    m.dense_layers.erase(std::unique(m.dense_layers.begin(), m.dense_layers.end()), m.dense_layers.end());
  }
  return OkStatus();
}

void WriteExperts(const ModelSpec& s, nlohmann::ordered_json& c) {
  c["decoder_sparse_step"] = s.moe.sparse_step;
  c["mlp_only_layers"] = s.moe.dense_layers;
  c["moe_intermediate_size"] = s.moe.intermediate_size;
  c["norm_topk_prob"] = s.moe.renormalize;
  c["num_experts"] = s.moe.experts;
  c["num_experts_per_tok"] = s.moe.experts_per_token;
  c["output_router_logits"] = false;
  c["router_aux_loss_coef"] = s.moe.aux_loss_coefficient;
}

}  // namespace tidepool::model
