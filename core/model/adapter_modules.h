#pragma once
// Modules that adapters change, and which of them the config of an adapter of PEFT's chooses.
// Inside of core/model.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/model/adapter.h"
#include "core/model/adapter_target.h"
#include "core/model/config_reader.h"
#include "core/tasks/pattern.h"

namespace tidepool::model {

inline constexpr std::string_view kLayersPrefix = "model.layers.";
// As the reference library calls them.
inline constexpr std::array<std::pair<AdapterTarget, std::string_view>, 11> kAdapterModules = {
    {{AdapterTarget::kQ, "self_attn.q_proj"},
     {AdapterTarget::kK, "self_attn.k_proj"},
     {AdapterTarget::kV, "self_attn.v_proj"},
     {AdapterTarget::kO, "self_attn.o_proj"},
     {AdapterTarget::kGate, "mlp.gate_proj"},
     {AdapterTarget::kUp, "mlp.up_proj"},
     {AdapterTarget::kDown, "mlp.down_proj"},
     {AdapterTarget::kExpertsGateUp, "mlp.experts.gate_up_proj"},
     {AdapterTarget::kExpertsDown, "mlp.experts.down_proj"},
     {AdapterTarget::kEmbedding, "model.embed_tokens"},
     {AdapterTarget::kHead, "lm_head"}}};
// "model.layers.3.self_attn.q_proj"; of experts the name of their parameter.
std::string ModuleName(const AdapterSite& site);
// Of so many layers all that may be changed, as if each were dense and had experts.
std::vector<AdapterSite> EverySite(int64_t layers);

// target_modules, target_parameters (of experts), exclude_modules, layers_to_transform and layers_pattern of
// a config.
class ChosenModules {
 public:
  // kInvalidArgument, kUnimplemented with file and key.
  static StatusOr<ChosenModules> Read(const ConfigReader& config);
  // A name that is none of the modules of these layers, which have tensors, is refused.
  [[nodiscard]] Status CheckNames(const ConfigReader& config, int64_t layers) const;
  // As PEFT chooses. kResourceExhausted: a regex backtracks too long.
  [[nodiscard]] StatusOr<bool> Has(const AdapterSite& site) const;
  // Of experts, if the layer has some: exclude_modules and layers_to_transform say nothing of them, as in
  // PEFT.
  [[nodiscard]] bool HasExperts(const AdapterSite& site) const;
  // Whether both matrices of the experts are changed: PEFT then nests gate_up's in down's.
  [[nodiscard]] bool NestsExperts(int64_t layer) const;

 private:
  // Names, each whole or the end of one; or a regex of whole names.
  struct Names {
    std::vector<std::string> list;
    std::shared_ptr<const tasks::Pattern> pattern;
    [[nodiscard]] StatusOr<bool> Has(const std::string& module) const;
  };
  static StatusOr<Names> ReadNames(const ConfigReader& config, const char* key);

  bool all_linear_ = false;
  Names targets_, excluded_, parameters_;
  std::vector<int64_t> layers_;  // empty: all
};

}  // namespace tidepool::model
