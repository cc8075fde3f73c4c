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
inline constexpr std::array<std::pair<AdapterTarget, std::string_view>, 9> kAdapterModules = {
    {{AdapterTarget::kQ, "self_attn.q_proj"},
     {AdapterTarget::kK, "self_attn.k_proj"},
     {AdapterTarget::kV, "self_attn.v_proj"},
     {AdapterTarget::kO, "self_attn.o_proj"},
     {AdapterTarget::kGate, "mlp.gate_proj"},
     {AdapterTarget::kUp, "mlp.up_proj"},
     {AdapterTarget::kDown, "mlp.down_proj"},
     {AdapterTarget::kEmbedding, "model.embed_tokens"},
     {AdapterTarget::kHead, "lm_head"}}};
std::string ModuleName(const AdapterSite& site);  // "model.layers.3.self_attn.q_proj"
// Of so many layers all that may be changed.
std::vector<AdapterSite> EverySite(int64_t layers);

// target_modules, exclude_modules, layers_to_transform and layers_pattern of a config.
class ChosenModules {
 public:
  // `layers`: that have tensors. kInvalidArgument, kUnimplemented with file and key; a name in target_modules
  // that is none of these layers' modules is refused.
  static StatusOr<ChosenModules> Read(const ConfigReader& config, int64_t layers);
  // As PEFT chooses. kResourceExhausted: a regex backtracks too long.
  [[nodiscard]] StatusOr<bool> Has(const AdapterSite& site) const;

 private:
  // Names, each whole or the end of one; or a regex of whole names.
  struct Names {
    std::vector<std::string> list;
    std::shared_ptr<const tasks::Pattern> pattern;
    [[nodiscard]] StatusOr<bool> Has(const std::string& module) const;
  };
  static StatusOr<Names> ReadNames(const ConfigReader& config, const char* key);

  bool all_linear_ = false;
  Names targets_, excluded_;
  std::vector<int64_t> layers_;  // empty: all
};

}  // namespace tidepool::model
