#include "core/model/adapter_modules.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace tidepool::model {
namespace {

bool IsOrEndsWith(const std::string& module, const std::string& name) {
  return module == name || module.ends_with("." + name);
}

bool AnyIsNamed(int64_t layers, const std::string& name, bool experts) {
  return std::ranges::any_of(EverySite(layers), [&](const AdapterSite& site) {
    return OfExperts(site.target) == experts && IsOrEndsWith(ModuleName(site), name);
  });
}

}  // namespace

std::string ModuleName(const AdapterSite& site) {
  const auto* module =
      std::ranges::find(kAdapterModules, site.target, &std::pair<AdapterTarget, std::string_view>::first);
  if (site.layer < 0) return std::string(module->second);
  return std::string(kLayersPrefix) + std::to_string(site.layer) + "." + std::string(module->second);
}

std::vector<AdapterSite> EverySite(int64_t layers) {
  std::vector<AdapterSite> sites;
  for (const AdapterTarget target : AllOf<AdapterTarget>()) {
    if (target >= AdapterTarget::kEmbedding) sites.push_back({-1, target});
    for (int64_t layer = 0; layer < layers && target < AdapterTarget::kEmbedding; ++layer)
      sites.push_back({layer, target});
  }
  return sites;
}

StatusOr<bool> ChosenModules::Names::Has(const std::string& module) const {
  if (pattern == nullptr)
    return std::ranges::any_of(list, [&](const std::string& name) { return IsOrEndsWith(module, name); });
  TP_ASSIGN_OR_RETURN(const auto found, pattern->Find(module));
  return found.has_value();
}

StatusOr<ChosenModules::Names> ChosenModules::ReadNames(const ConfigReader& config, const char* key) {
  Names names;
  const auto* json = config.Find(key);
  if (json == nullptr) return names;
  if (json->is_string()) {
    const auto pattern = tasks::Pattern::Compile("\\A(" + json->get<std::string>() + ")\\z");
    if (!pattern.ok()) return pattern.status().At(config.path() + ": " + key);
    names.pattern = *pattern;
    return names;
  }
  if (!json->is_array()) return config.Wrong(key, "a list of names, or a regex", *json);
  for (const nlohmann::json& name : *json) {
    if (!name.is_string() || name.get_ref<const std::string&>().empty())
      return config.Wrong(key, "names", name);
    names.list.push_back(name.get<std::string>());
  }
  return names;
}

StatusOr<ChosenModules> ChosenModules::Read(const ConfigReader& config) {
  ChosenModules chosen;
  const auto* targets = config.Find("target_modules");
  if (const auto* parameters = config.Find("target_parameters"); parameters != nullptr) {
    if (!parameters->is_array()) return config.Wrong("target_parameters", "a list of names", *parameters);
    TP_ASSIGN_OR_RETURN(chosen.parameters_, ReadNames(config, "target_parameters"));
  }
  if (targets == nullptr && chosen.parameters_.list.empty())
    return InvalidArgument(config.path() + ": target_modules is missing");
  chosen.all_linear_ = targets != nullptr && *targets == "all-linear";
  if (targets != nullptr && !chosen.all_linear_) {
    TP_ASSIGN_OR_RETURN(chosen.targets_, ReadNames(config, "target_modules"));
  }
  TP_ASSIGN_OR_RETURN(chosen.excluded_, ReadNames(config, "exclude_modules"));
  if (const auto* only = config.Find("layers_to_transform")) {
    for (const nlohmann::json& layer : only->is_array() ? *only : nlohmann::json::array({*only})) {
      if (!layer.is_number_unsigned())
        return config.Wrong("layers_to_transform", "the number of a layer, or a list", layer);
      chosen.layers_.push_back(layer.get<int64_t>());
    }
  }
  if (const auto* pattern = config.Find("layers_pattern"); pattern != nullptr && !pattern->empty() &&
                                                           *pattern != "" && *pattern != "layers" &&
                                                           *pattern != nlohmann::json::array({"layers"}))
    return config.Missing("layers_pattern " + pattern->dump().substr(0, 80));
  return chosen;
}

Status ChosenModules::CheckNames(const ConfigReader& config, int64_t layers) const {
  for (const std::string& name : parameters_.list) {
    if (!AnyIsNamed(layers, name, true))
      return config.Missing(
          "target_parameters with " + name.substr(0, 80) +
          ", which is neither mlp.experts.gate_up_proj nor mlp.experts.down_proj of a layer "
          "that has tensors,");
  }
  for (const std::string& name : targets_.list) {
    if (!AnyIsNamed(layers, name, false))
      return config.Missing(
          "target_modules with " + name.substr(0, 80) +
          ", which is no q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj or down_proj of "
          "a layer that has tensors, nor embed_tokens or lm_head,");
  }
  return OkStatus();
}

bool ChosenModules::HasExperts(const AdapterSite& site) const {
  const std::string parameter = ModuleName(site);
  return std::ranges::any_of(parameters_.list,
                             [&](const std::string& name) { return IsOrEndsWith(parameter, name); });
}
bool ChosenModules::NestsExperts(int64_t layer) const {
  return HasExperts({layer, AdapterTarget::kExpertsGateUp}) &&
         HasExperts({layer, AdapterTarget::kExpertsDown});
}

StatusOr<bool> ChosenModules::Has(const AdapterSite& site) const {
  const std::string module = ModuleName(site);
  if (OfExperts(site.target)) return HasExperts(site);
  TP_ASSIGN_OR_RETURN(const bool excluded, excluded_.Has(module));
  if (excluded) return false;
  if (all_linear_) return site.layer >= 0;  // the embedding is none, and PEFT leaves the head out
  TP_ASSIGN_OR_RETURN(const bool named, targets_.Has(module));
  // `layers_to_transform` is ignored for a module given by its whole name, and beside a regex (as PEFT does).
  if (!named || layers_.empty() || targets_.pattern != nullptr ||
      std::ranges::find(targets_.list, module) != targets_.list.end())
    return named;
  return std::ranges::find(layers_, site.layer) != layers_.end();
}

}  // namespace tidepool::model
