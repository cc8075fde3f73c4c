#include "scheduler/cost_model.h"

#include <algorithm>
#include <cmath>

namespace tidepool::scheduler {

Status CheckProfile(const HardwareProfile& p) {
  const auto bad = [&](const char* field, double value) {
    return InvalidArgument("profile " + p.name + ": " + field + " is " + std::to_string(value) +
                           "; it has to be a positive number");
  };
  const auto positive = [](double x) { return std::isfinite(x) && x > 0; };
  if (!positive(p.flops)) return bad("flops", p.flops);
  if (!positive(p.bytes_per_s)) return bad("bytes_per_s", p.bytes_per_s);
  if (!positive(p.memory_bytes)) return bad("memory_bytes", p.memory_bytes);
  if (!positive(p.link_bytes_per_s)) return bad("link_bytes_per_s", p.link_bytes_per_s);
  if (!positive(p.net_bytes_per_s)) return bad("net_bytes_per_s", p.net_bytes_per_s);
  if (!positive(p.host_bytes_per_s)) return bad("host_bytes_per_s", p.host_bytes_per_s);
  if (!std::isfinite(p.step_overhead_s) || p.step_overhead_s < 0) {
    return InvalidArgument("profile " + p.name + ": step_overhead_s is " + std::to_string(p.step_overhead_s) +
                           "; it has to be 0 or more");
  }
  return OkStatus();
}

CostModel::CostModel(const HardwareProfile& hardware, const ModelShape& model, int64_t devices,
                     double efficiency)
    : hardware_(hardware),
      model_(model),
      devices_(devices),
      flops_(hardware.flops * static_cast<double>(devices) * efficiency),
      bandwidth_(hardware.bytes_per_s * static_cast<double>(devices) * efficiency) {}

double CostModel::DecodeSteps(int64_t batch, double kv_tokens, int64_t steps) const {
  if (steps <= 0) return 0;
  const auto b = static_cast<double>(batch), n = static_cast<double>(steps);
  const double kv = model_.KvBytes() / bandwidth_;
  const double first = model_.active_parameters * model_.weight_bytes / bandwidth_ + kv_tokens * kv;
  const double slope = b * kv;
  const double compute = 2 * model_.active_parameters * b / flops_;
  // Memory time rises from step to step; before it passes the compute time, that is what counts.
  double flat = 0;
  if (compute > first) flat = slope > 0 ? std::min(n, std::ceil((compute - first) / slope)) : n;
  const double rest = n - flat;
  const double sum = flat * compute + rest * (first + flat * slope) + slope * rest * (rest - 1) / 2;
  return n * hardware_.step_overhead_s + sum;
}

int64_t CostModel::StepsWithin(int64_t batch, double kv_tokens, double seconds) const {
  if (seconds <= 0 || batch <= 0) return 0;
  int64_t low = 0, high = 1;
  while (DecodeSteps(batch, kv_tokens, high) <= seconds) {
    low = high;
    high *= 2;
  }
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (DecodeSteps(batch, kv_tokens, middle) <= seconds ? low : high) = middle;
  }
  return low;
}

double CostModel::Prefill(double tokens, double context) const {
  const double flop =
      tokens * (2 * model_.active_parameters +
                2 * static_cast<double>(model_.layers * model_.heads * model_.head_size) * context);
  return flop / flops_;
}

double CostModel::Forward(double tokens, double sum_squares) const {
  return 2 * model_.active_parameters * tokens +
         2 * static_cast<double>(model_.layers * model_.heads * model_.head_size) * sum_squares / 2;
}

double CostModel::Score(double tokens, double sum_squares, double efficiency) const {
  return Forward(tokens, sum_squares) / (flops_ * efficiency);
}

double CostModel::Train(double tokens, double sum_squares, int64_t slots, bool recompute,
                        double efficiency) const {
  const double forward = Forward(tokens, sum_squares);
  const auto n = static_cast<double>(slots);
  const double optimizer = 28 * model_.parameters / (bandwidth_ * n);
  return forward * (recompute ? 4 : 3) / (flops_ * efficiency * n) + optimizer;
}

double CostModel::TrainShare(const TrainingLayout& layout, double tokens, double sum_squares, bool recompute,
                             double efficiency) const {
  const auto tensor = static_cast<double>(layout.tensor);
  const double shared = layout.zero > 0 ? static_cast<double>(layout.data) : 1;
  const double optimizer = 28 * model_.parameters / (bandwidth_ * shared * tensor);
  if (layout.tensor > 1) efficiency *= hardware_.part_efficiency;  // narrow matrices, and what is not divided
  const double compute = Forward(tokens, sum_squares) * (recompute ? 4 : 3) / (flops_ * efficiency * tensor);
  // With shared weights each forward lays them out for products anew.
  const double each =
      ((layout.zero >= 3 ? 5 : 3) * model_.weight_bytes + 8) * model_.parameters / (bandwidth_ * tensor);
  return compute + optimizer + static_cast<double>(layout.micro_batches) * each;
}

double CostModel::Ring(int64_t slots, double times, double bytes, bool one_host) const {
  if (slots <= 1) return 0;
  const auto n = static_cast<double>(slots);
  const double rate = one_host ? hardware_.link_bytes_per_s : hardware_.net_bytes_per_s;
  return times * (n - 1) / n * bytes / (rate * static_cast<double>(devices_)) + hardware_.collective_s;
}

double CostModel::AllReduce(int64_t slots) const { return Collectives({.data = slots}, 0, false); }

double CostModel::Collectives(const TrainingLayout& layout, double tokens, bool recompute) const {
  const bool host = layout.one_host;
  const auto micro_batches = static_cast<double>(std::max<int64_t>(layout.micro_batches, 1));
  const double part = model_.parameters / static_cast<double>(layout.tensor);
  const double weights = model_.weight_bytes * part;
  double seconds = 0;
  if (layout.data > 1) {
    if (layout.zero == 0) {
      seconds += Ring(layout.data, 2, 4 * part, host);
    } else {
      seconds += (layout.zero >= 2 ? micro_batches : 1) * Ring(layout.data, 1, 4 * part, host);
      if (layout.zero < 3) seconds += Ring(layout.data, 1, weights, host);  // else it is where all read it
    }
  }
  if (layout.tensor > 1) {
    const int64_t width = model_.hidden_size > 0 ? model_.hidden_size : model_.heads * model_.head_size;
    const double sums = micro_batches * static_cast<double>(2 + (recompute ? 6 : 4) * model_.layers);
    const double each = model_.weight_bytes * static_cast<double>(width) * tokens / micro_batches;
    seconds += sums * Ring(layout.tensor, 2, each, host) +
               Ring(layout.tensor, 1, model_.weight_bytes * model_.parameters, host);
  }
  return seconds;
}

int64_t CostModel::KvTokens(double reserve) const {
  const double room = hardware_.memory_bytes * static_cast<double>(devices_) * (1 - reserve) - weight_bytes();
  return room <= 0 ? 0 : static_cast<int64_t>(room / model_.KvBytes());
}

}  // namespace tidepool::scheduler
