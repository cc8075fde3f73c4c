#include "core/model/adapter.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "core/base/check.h"
#include "core/base/names.h"

namespace tidepool::model {

double AdapterSpec::scale() const {
  const auto r = static_cast<double>(rank);
  return alpha / (rslora ? std::sqrt(r) : r);
}
bool AdapterSpec::Has(AdapterTarget target) const {
  return std::ranges::find(targets, target) != targets.end();
}

std::optional<AdapterSpec> AdapterOf(const LoraConfig& config) {
  if (config.rank == 0) return std::nullopt;
  AdapterSpec adapter{.rank = config.rank,
                      .alpha = config.alpha.value_or(2.0 * static_cast<double>(config.rank)),
                      .rslora = config.rslora,
                      .targets = {},
                      .init = config.init};
  for (const AdapterTarget target : AllOf<AdapterTarget>()) {
    const auto named = [&](std::string_view word) {
      return std::ranges::find(config.targets, word) != config.targets.end();
    };
    if (named(Name(target)) || (OfExperts(target) && named(kExpertsWord))) adapter.targets.push_back(target);
  }
  return adapter;
}

std::optional<AdapterSpec> AdapterOf(const JobConfig& config) {
  std::optional<AdapterSpec> adapter = AdapterOf(config.model.lora);
  if (adapter) adapter->score = config.kind() == JobKind::kRewardModel;
  return adapter;
}

AdapterPlace PlaceOf(const ModelSpec& s, AdapterTarget target) {
  const int64_t d = s.hidden_size, q = s.heads * s.head_size, kv = s.kv_heads * s.head_size,
                ff = s.intermediate_size;
  switch (target) {
    case AdapterTarget::kQ:
      return {"qkv", 0, q, d};
    case AdapterTarget::kK:
      return {"qkv", q, kv, d};
    case AdapterTarget::kV:
      return {"qkv", q + kv, kv, d};
    case AdapterTarget::kO:
      return {"o", 0, d, q};
    case AdapterTarget::kGate:
      return {"gate_up", 0, ff, d};
    case AdapterTarget::kUp:
      return {"gate_up", ff, ff, d};
    case AdapterTarget::kDown:
      return {"down", 0, d, ff};
    case AdapterTarget::kExpertsGateUp:
      return {"experts_gate_up", 0, 2 * s.moe.intermediate_size, d, s.moe.experts};
    case AdapterTarget::kExpertsDown:
      return {"experts_down", 0, d, s.moe.intermediate_size, s.moe.experts};
    case AdapterTarget::kEmbedding:
      return {"embedding", 0, d, s.vocab_size};
    case AdapterTarget::kHead:
      return {"head", 0, s.vocab_size, d};
  }
  TP_CHECK(false) << "target " << static_cast<int>(target);
  return {};
}

std::vector<AdapterSite> SitesOf(const ModelSpec& spec, const std::vector<AdapterTarget>& targets) {
  const auto has = [&](AdapterTarget target) { return std::ranges::find(targets, target) != targets.end(); };
  std::vector<AdapterSite> sites;
  if (has(AdapterTarget::kEmbedding)) sites.push_back({-1, AdapterTarget::kEmbedding});
  for (int64_t layer = 0; layer < spec.layers; ++layer)
    for (const AdapterTarget target : targets)
      if (target < AdapterTarget::kEmbedding && (!OfExperts(target) || spec.IsSparse(layer)))
        sites.push_back({layer, target});
  if (has(AdapterTarget::kHead)) sites.push_back({-1, AdapterTarget::kHead});
  return sites;
}

Status CheckAdapter(const ModelSpec& spec, const AdapterSpec& adapter) {
  const auto& targets = adapter.targets;
  if (targets.empty())
    return InvalidArgument("adapter: no target; there are " + Listed(kWords<AdapterTarget>));
  if (std::ranges::adjacent_find(targets, std::greater_equal<>()) != targets.end())
    return InvalidArgument("adapter: its targets are out of order, or one is there twice");
  if (adapter.rank < 1)
    return InvalidArgument("adapter: rank " + std::to_string(adapter.rank) + ", expected 1 or more");
  if (const auto scale = static_cast<float>(adapter.scale()); !std::isfinite(scale) || scale == 0)
    return InvalidArgument("adapter: alpha " + std::to_string(adapter.alpha) + " with rank " +
                           std::to_string(adapter.rank) + " is no scale");
  if (adapter.score && adapter.Has(AdapterTarget::kHead))
    return InvalidArgument("adapter: target head, and a reward model has a value head in its place");
  if (spec.value_head && !adapter.score)
    return Unimplemented("adapter: of a model with a value head, whose head would have to be trained, too");
  for (const AdapterTarget target : targets) {
    const AdapterPlace place = PlaceOf(spec, target);
    if (OfExperts(target) && spec.sparse_layers() == 0)
      return InvalidArgument(std::string("adapter: target ") + Name(target) +
                             ", and no layer of the model has experts; leave it out");
    if (OfDenseMlp(target) && spec.sparse_layers() > 0) {
      int64_t layer = 0;
      while (!spec.IsSparse(layer)) ++layer;
      return Unimplemented(
          std::string("adapter: target ") + Name(target) + " is experts in layer " + std::to_string(layer) +
          ", in which each has gate, up and down of its own; take experts in the place of gate, up and down");
    }
    if (const int64_t least = std::min(place.n, place.k); adapter.rank > least)
      return InvalidArgument("adapter: rank " + std::to_string(adapter.rank) + " is above " +
                             std::to_string(least) + ", the smaller side of target " + Name(target) + " [" +
                             std::to_string(place.n) + ", " + std::to_string(place.k) +
                             "]; train the model itself, or lower the rank");
  }
  return OkStatus();
}

std::vector<Parameter> AdapterLayout(const ModelSpec& spec, const AdapterSpec& adapter) {
  std::vector<Parameter> list;
  int64_t offset = 0;
  const auto add = [&](std::string name, int64_t rows, int64_t cols) {
    list.push_back({std::move(name), offset, {rows, cols}});
    offset += (rows * cols + 63) / 64 * 64;
  };
  const std::vector<AdapterSite> sites = SitesOf(spec, adapter.targets);
  for (size_t i = 0; i < sites.size();) {
    const auto [layer, target] = sites[i];
    const AdapterPlace first = PlaceOf(spec, target);
    const std::string at = layer < 0 ? "" : "layers." + std::to_string(layer) + ".";
    size_t end = i;
    while (end < sites.size() && sites[end].layer == layer &&
           std::string_view(PlaceOf(spec, sites[end].target).matrix) == first.matrix)
      ++end;
    const int64_t a_rows = adapter.rank * first.count * static_cast<int64_t>(end - i);
    target == AdapterTarget::kEmbedding ? add("embedding.a", first.k, a_rows)
                                        : add(at + first.matrix + ".a", a_rows, first.k);
    for (; i < end; ++i)
      add(at + Name(sites[i].target) + ".b", adapter.rank * first.count, PlaceOf(spec, sites[i].target).n);
  }
  if (adapter.score) add("score", 1, spec.hidden_size);
  return list;
}

int64_t AdapterElements(const ModelSpec& spec, const AdapterSpec& adapter) {
  const std::vector<Parameter> layout = AdapterLayout(spec, adapter);
  if (layout.empty()) return 0;  // experts of a model that has none, which CheckAdapter refuses
  return layout.back().offset + (layout.back().numel() + 63) / 64 * 64;
}

}  // namespace tidepool::model
