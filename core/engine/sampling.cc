#include "core/engine/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>

namespace tidepool::engine {
namespace {

std::string Got(std::string_view name, double value, std::string_view want) {
  return "sampling." + std::string(name) + " is " + std::to_string(value) + ", expected " + std::string(want);
}

}  // namespace

Status CheckSampling(const SamplingParams& p, int64_t vocab_size) {
  if (!(p.temperature >= 0.0F && p.temperature <= 1e6F)) {
    return InvalidArgument(Got("temperature", p.temperature, "0 (greedy) to 1e6"));
  }
  if (p.top_k < 0) return InvalidArgument(Got("top_k", static_cast<double>(p.top_k), "0 (off) or more"));
  if (!(p.top_p > 0.0F && p.top_p <= 1.0F))
    return InvalidArgument(Got("top_p", p.top_p, "above 0, at most 1 (off)"));
  if (!(p.min_p >= 0.0F && p.min_p < 1.0F))
    return InvalidArgument(Got("min_p", p.min_p, "at least 0 (off), below 1"));
  for (const int32_t id : p.stop_token_ids) {
    if (id < 0 || id >= vocab_size) {
      return InvalidArgument("sampling.stop_token_ids has " + std::to_string(id) +
                             ", expected ids below the vocabulary's " + std::to_string(vocab_size));
    }
  }
  for (const std::string& text : p.stop_strings) {
    if (text.empty())
      return InvalidArgument("sampling.stop_strings has an empty string, which every text ends with");
  }
  return OkStatus();
}

device::SampleRow SampleRowOf(const SamplingParams& p, float uniform) {
  return {.temperature = p.temperature,
          .top_k = static_cast<int32_t>(std::min<int64_t>(p.top_k, std::numeric_limits<int32_t>::max())),
          .top_p = p.top_p,
          .min_p = p.min_p,
          .log_min_p = p.min_p > 0.0F ? std::log(p.min_p) : 0.0F,
          .uniform = uniform};
}

}  // namespace tidepool::engine
