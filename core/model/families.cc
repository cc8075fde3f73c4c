#include "core/base/names.h"
#include "core/model/families/family.h"

namespace tidepool::model {

// core/base/plugin_check.h.
std::string FaultOf(const FamilyPlugin& plugin) {
  if (plugin.architecture == nullptr) return "has no .architecture";
  if (plugin.doc == nullptr) return "has no .doc";
  if (plugin.refused == nullptr) return "has no .refused";
  if (plugin.read == nullptr) return "has no .read";
  return plugin.write == nullptr ? "has no .write" : "";
}

const std::vector<const Family*>& Families() {
  static const std::vector<Family> families = [] {
    std::vector<Family> all;
    for (const auto& [name, make, file] : FamilyPlugins()) all.emplace_back(make()).model_type = name;
    return all;
  }();
  static const std::vector<const Family*> pointers = [] {
    std::vector<const Family*> all;
    for (const Family& family : families) all.push_back(&family);
    return all;
  }();
  return pointers;
}

const Family* FindFamily(std::string_view model_type) {
  for (const Family* family : Families()) {
    if (model_type == family->model_type) return family;
  }
  return nullptr;
}

std::string FamilyNames() {
  return Listed(Families(), [](const Family* family) { return family->model_type; });
}

}  // namespace tidepool::model
