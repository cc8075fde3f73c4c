#pragma once
// What RUN/best/ says of itself (checkpoint.keep_best).

#include <cstdint>
#include <string>

#include "core/base/fields.h"

namespace tidepool::workers {

inline constexpr const char* kBestModelFile = "evaluation.json";  // in best/

struct BestModel {
  std::string metric;  // a name of docs/metrics.md; more is better, of a loss less
  double value = 0;
  int64_t step = 0;  // of the checkpoint that best/ has the model of
};
TP_FIELDS(BestModel, metric, value, step)

}  // namespace tidepool::workers
