#include "core/algorithms/aggregation.h"

#include <string>

#include "core/algorithms/statistics.h"

namespace tidepool::algorithms {
namespace {

Status Positive(const char* name, double value) {
  if (value > 0) return OkStatus();
  return InvalidArgument(std::string("aggregation: ") + name + " is " + std::to_string(value) +
                         "; it has to be above 0");
}

}  // namespace

StatusOr<std::vector<double>> AggregationWeights(const Aggregation& a, const Cells& cells) {
  std::vector<double> weights(cells.mask.size(), 0.0);
  const bool by_rollout = a.mode == AggregationMode::kRolloutMean;
  if (by_rollout && static_cast<int64_t>(a.rollout.size()) != cells.rows()) {
    return InvalidArgument("aggregation: rollout has " + std::to_string(a.rollout.size()) + " ids for " +
                           std::to_string(cells.rows()) + " rows");
  }
  const int64_t tokens = cells.Tokens();
  if (tokens == 0) return weights;
  const double n = a.global_tokens.value_or(static_cast<double>(tokens));
  const double s = a.global_seqs.value_or(static_cast<double>(cells.Sequences()));
  TP_RETURN_IF_ERROR(Positive("global_tokens", n));
  TP_RETURN_IF_ERROR(Positive("global_seqs", s));
  TP_RETURN_IF_ERROR(Positive("scale", a.scale));
  TP_RETURN_IF_ERROR(Positive("dp_size", a.dp_size));
  std::vector<double> row_tokens(static_cast<size_t>(cells.rows()));
  for (int64_t i = 0; i < cells.rows(); ++i)
    row_tokens[static_cast<size_t>(i)] = static_cast<double>(cells.Tokens(i));
  double rollouts = 1;
  if (by_rollout) {  // rows of one rollout share its number of tokens
    int64_t filled = 0;
    for (const std::vector<size_t>& rows : GroupRows(a.rollout)) {
      double sum = 0;
      for (const size_t i : rows) sum += row_tokens[i];
      for (const size_t i : rows) row_tokens[i] = sum;
      filled += sum > 0 ? 1 : 0;
    }
    if (a.divide) rollouts = static_cast<double>(filled);
  }
  for (size_t i = 0; i < row_tokens.size(); ++i) {
    double w = 0;
    if (row_tokens[i] > 0) {
      switch (a.mode) {
        case AggregationMode::kTokenMean:
          w = a.dp_size / n;
          break;
        case AggregationMode::kSeqMeanTokenSum:
          w = a.dp_size / s;
          break;
        case AggregationMode::kSeqMeanTokenMean:
          w = a.dp_size / (s * row_tokens[i]);
          break;
        case AggregationMode::kSeqMeanTokenSumNorm:
          w = 1 / (a.scale * (a.divide_by_seqs ? s : 1));
          break;
        case AggregationMode::kRolloutMean:
          w = 1 / (rollouts * row_tokens[i]);
          break;
        case AggregationMode::kMaskRatio:
          w = a.max_steps / (row_tokens[i] * static_cast<double>(cells.size()));
          break;
        case AggregationMode::kSeqMean:
          w = 1 / (s * row_tokens[i]);
          break;
      }
    }
    for (const size_t t : cells.Valid(i)) weights[t] = w;
  }
  return weights;
}

}  // namespace tidepool::algorithms
