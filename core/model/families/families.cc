#include "core/base/names.h"
#include "core/model/families/family.h"

namespace tidepool::model {

// One line a family; each is defined in the file of its name.
extern const Family kLlama, kMistral, kQwen2, kQwen2Moe, kQwen3, kQwen3Moe;

const std::vector<const Family*>& Families() {
  static const std::vector<const Family*> all = {&kLlama,    &kMistral, &kQwen2,
                                                 &kQwen2Moe, &kQwen3,   &kQwen3Moe};
  return all;
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
