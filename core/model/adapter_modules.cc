#include "core/model/adapter_modules.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace tidepool::model {
namespace {

bool IsOrEndsWith(const std::string& module, const std::string& name) {
  return module == name || module.ends_with("." + name);
}

bool AnyIsNamed(int64_t layers, const std::string& name) {
  return std::ranges::any_of(EverySite(layers),
                             [&](const AdapterSite& site) { return IsOrEndsWith(ModuleName(site), name); });
}

}  // namespace

std::string ModuleName(const AdapterSite& site) {
  const auto* module =
      std::ranges::find(kAdapterModules, site.target, &std::pair<AdapterTarget, std::string_view>::first);
  if (site.layer < 0) return std::string(module->second);
  return std::string(kLayersPrefix) + std::to_string(site.layer) + "." + std::string(module->second);
}

std::vector<AdapterSite> EverySite(int64_t layers) {
  const auto all = AllOf<AdapterTarget>();
  return SitesOf(layers, {all.begin(), all.end()});
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

StatusOr<ChosenModules> ChosenModules::Read(const ConfigReader& config, int64_t layers) {
  ChosenModules chosen;
  const auto* targets = config.Find("target_modules");
  if (targets == nullptr) return InvalidArgument(config.path() + ": target_modules is missing");
  chosen.all_linear_ = *targets == "all-linear";
  if (!chosen.all_linear_) {
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
  for (const std::string& name : chosen.targets_.list) {
    if (!AnyIsNamed(layers, name))
      return config.Missing(
          "target_modules with " + name.substr(0, 80) +
          ", which is no q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj or down_proj of "
          "a layer that has tensors, nor embed_tokens or lm_head,");
  }
  return chosen;
}

StatusOr<bool> ChosenModules::Has(const AdapterSite& site) const {
  const std::string module = ModuleName(site);
  TP_ASSIGN_OR_RETURN(const bool excluded, excluded_.Has(module));
  if (excluded) return false;
  if (all_linear_) return site.layer >= 0;  // the embedding is none, and PEFT leaves the head out
  TP_ASSIGN_OR_RETURN(const bool named, targets_.Has(module));
  // The layers say nothing of a module that is named from its first letter, nor beside a regex.
  if (!named || layers_.empty() || targets_.pattern != nullptr ||
      std::ranges::find(targets_.list, module) != targets_.list.end())
    return named;
  return std::ranges::find(layers_, site.layer) != layers_.end();
}

}  // namespace tidepool::model
