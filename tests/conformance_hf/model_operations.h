#pragma once
// The operations of the conformance protocol that need tensors: model.logits, model.logprobs, model.greedy,
// model.check (docs/conformance_hf.md), and, for our own checks,
// model.save {model, out, dtype, max_shard_bytes}: loads a folder and writes it again; and
// adapter.save {model, adapter, out}, the same of an adapter. Of the first three `adapter` may name a folder,
// too, whose adapter then changes the model. Folders do not change while the program runs, so the last models
// are kept. Not thread-safe. Throws what LibTorch throws (memory); the caller stops it.

#include <cstdint>
#include <list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/model/decoder.h"
#include "core/model/weights.h"

namespace tidepool::conformance_hf {

class ModelOperations {
 public:
  ModelOperations();
  ~ModelOperations();
  // The members of the answer beside "id"; nothing if the operation is not one of those above.
  std::optional<StatusOr<nlohmann::ordered_json>> Run(const nlohmann::ordered_json& request);

 private:
  struct Loaded {
    std::string folder, adapter;
    model::DType dtype = model::DType::kFloat32;
    std::unique_ptr<model::Weights> weights;
    std::unique_ptr<model::Decoder> decoder;
  };
  StatusOr<Loaded*> Load(const nlohmann::ordered_json& request, model::DType dtype);
  StatusOr<nlohmann::ordered_json> Logits(const nlohmann::ordered_json& request);
  StatusOr<nlohmann::ordered_json> LogProbs(const nlohmann::ordered_json& request);
  StatusOr<nlohmann::ordered_json> Greedy(const nlohmann::ordered_json& request);
  StatusOr<nlohmann::ordered_json> Value(const nlohmann::ordered_json& request);
  StatusOr<nlohmann::ordered_json> Save(const nlohmann::ordered_json& request);
  StatusOr<nlohmann::ordered_json> SaveAdapter(const nlohmann::ordered_json& request);
  static StatusOr<nlohmann::ordered_json> Check(const nlohmann::ordered_json& request);

  std::list<Loaded> kept_;  // the last used in front
};

}  // namespace tidepool::conformance_hf
