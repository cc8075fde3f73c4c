#include "core/model/cut.h"

#include <string>
#include <string_view>

#include "core/model/layout.h"

namespace tidepool::model {
namespace {

// The part of [0, n) that a rank has.
std::pair<int64_t, int64_t> Share(int64_t n, const Part& part) {
  return {n * part.rank / part.of, n * (part.rank + 1) / part.of};
}

Status CheckExperts(const ModelSpec& s, int64_t ranks) {
  if (s.sparse_layers() == 0)
    return Unimplemented("the model has no experts, which " + std::to_string(ranks) +
                         " ranks could divide; write 1");
  if (s.value_head)
    return Unimplemented("the experts of a model with a value head cannot be divided between ranks; write 1");
  if (s.moe.experts % ranks != 0) {
    return InvalidArgument("each layer has " + std::to_string(s.moe.experts) + " experts, which " +
                           std::to_string(ranks) + " ranks cannot divide; write a divisor of " +
                           std::to_string(s.moe.experts));
  }
  return OkStatus();
}

}  // namespace

Status CheckCut(const ModelSpec& s, int64_t ranks, Cut what) {
  if (ranks < 1) return InvalidArgument("a model is cut between " + std::to_string(ranks) + " ranks");
  if (ranks == 1) return OkStatus();
  if (what == Cut::kExperts) return CheckExperts(s, ranks);
  if (s.sparse_layers() > 0)
    return Unimplemented("a model with experts cannot be cut between ranks; write 1");
  if (s.value_head) return Unimplemented("a model with a value head cannot be cut between ranks; write 1");
  for (const auto& [name, n] : {std::pair("key and value heads", s.kv_heads), {"query heads", s.heads}}) {
    if (n % ranks != 0) {
      return InvalidArgument("the model has " + std::to_string(n) + " " + name + ", which " +
                             std::to_string(ranks) + " ranks cannot divide; write a divisor of " +
                             std::to_string(s.kv_heads));
    }
  }
  if (s.intermediate_size % ranks != 0) {
    return InvalidArgument("the model has an intermediate_size of " + std::to_string(s.intermediate_size) +
                           ", which " + std::to_string(ranks) +
                           " ranks cannot divide; write a divisor of it and of " +
                           std::to_string(s.kv_heads));
  }
  if (s.vocab_size < ranks) {
    return InvalidArgument("the model has " + std::to_string(s.vocab_size) + " tokens for " +
                           std::to_string(ranks) + " ranks; write fewer ranks");
  }
  return OkStatus();
}

std::pair<int64_t, int64_t> VocabularyOf(const ModelSpec& s, const Part& part) {
  return Share(s.vocab_size, part.of_matrices());
}

std::pair<int64_t, int64_t> ExpertsOf(const ModelSpec& s, const Part& part) {
  return Share(s.moe.experts, part.what == Cut::kExperts ? part : Part());
}

ModelSpec PartSpec(const ModelSpec& whole, const Part& part) {
  ModelSpec s = whole;
  if (part.whole()) return s;
  if (part.what == Cut::kExperts) {
    s.moe.here = s.moe.experts / part.of;
    return s;
  }
  s.heads /= part.of;
  s.kv_heads /= part.of;
  s.intermediate_size /= part.of;
  const auto [first, end] = VocabularyOf(whole, part);
  s.vocab_size = end - first;
  return s;
}

std::vector<ParameterRuns> Runs(const ModelSpec& whole, const Part& part) {
  const std::vector<Parameter> from = Layout(whole), to = Layout(PartSpec(whole, part));
  const int64_t d = whole.hidden_size, head = whole.head_size;
  const bool matrices = part.what == Cut::kMatrices;
  const auto [q0, q1] = Share(whole.heads, part);
  const auto [kv0, kv1] = Share(whole.kv_heads, part);
  const auto [f0, f1] = Share(whole.intermediate_size, part);
  const auto [v0, v1] = VocabularyOf(whole, part);
  const auto [e0, e1] = ExpertsOf(whole, part);
  std::vector<ParameterRuns> all;
  for (size_t i = 0; i < from.size(); ++i) {
    const Parameter &w = from[i], &p = to[i];
    ParameterRuns of;
    int64_t at = p.offset;
    const int64_t width = w.numel() / w.shape[0];
    const auto rows = [&](int64_t first, int64_t end) {  // whole rows of the parameter
      const int64_t n = (end - first) * width;
      of.runs.push_back({.in_whole = w.offset + first * width, .in_part = at, .n = n});
      at += n;
    };
    const auto columns = [&](int64_t first, int64_t end) {
      of.runs.push_back(
          {.in_whole = w.offset + first, .in_part = at, .n = end - first, .rows = d, .stride = width});
    };
    const std::string_view name = std::string_view(w.name).substr(w.name.rfind('.') + 1);
    if (name == "experts_gate_up" || name == "experts_down") {
      const int64_t each = w.shape[0] / whole.moe.experts;  // rows of one
      rows(e0 * each, e1 * each);
    } else if (matrices && (name == "qkv" || name == "qkv_bias")) {
      const int64_t k = whole.heads * head, v = k + whole.kv_heads * head;
      rows(q0 * head, q1 * head);
      rows(k + kv0 * head, k + kv1 * head);
      rows(v + kv0 * head, v + kv1 * head);
    } else if (matrices && name == "o") {
      columns(q0 * head, q1 * head);
    } else if (matrices && (name == "gate_up" || name == "gate_up_bias")) {
      rows(f0, f1);
      rows(whole.intermediate_size + f0, whole.intermediate_size + f1);
    } else if (matrices && name == "down") {
      columns(f0, f1);
    } else if (matrices && (name == "embedding" || name == "head")) {
      rows(v0, v1);
    } else {
      of.everywhere = true;
      rows(0, w.shape[0]);
    }
    all.push_back(std::move(of));
  }
  return all;
}

}  // namespace tidepool::model
