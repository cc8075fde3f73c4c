#pragma once
// One model family, a file of this folder: how its config.json is read and written. Everything a family is
// made of (attention, MLP, experts, norms, rotary positions) are shared blocks of the decoder that its spec
// turns on. docs/adding_a_model.md shows how to add one. No LibTorch.

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/plugin.h"
#include "core/base/status.h"
#include "core/model/config_reader.h"
#include "core/model/spec.h"

namespace tidepool::model {

struct Family {
  const char* model_type = nullptr;  // of config.json: the plug-in's name, "qwen3_moe"
  const char* architecture;          // "Qwen3MoeForCausalLM"
  const char* doc;                   // one line: what it is, what sets it apart
  const char* refused;               // one line: what is legal there and not implemented
  // Fills the spec from config.json, with this family's defaults. kUnimplemented names what is not
  // implemented.
  Status (*read)(const ConfigReader& config, ModelSpec& spec);
  // Adds what sets the family apart; the keys that all share are there already.
  void (*write)(const ModelSpec& spec, nlohmann::ordered_json& config);
};

using FamilyPlugin = Family;
std::span<const Plugin<FamilyPlugin>> FamilyPlugins();  // the table that the build writes

const std::vector<const Family*>& Families();           // by name
const Family* FindFamily(std::string_view model_type);  // null: none of that name
std::string FamilyNames();                              // "llama, mistral, ..."

}  // namespace tidepool::model
