#include "core/algorithms/gae.h"

#include <algorithm>

#include "core/base/check.h"

namespace tidepool::algorithms {
namespace {

// A of one row with its lambda.
void RowGae(std::span<const double> rewards, std::span<const double> values, double next_value, double gamma,
            double lambda, const Cells& cells, int64_t row, std::vector<double>& advantages) {
  double next_advantage = 0;
  const std::vector<size_t> valid = cells.Valid(static_cast<size_t>(row));
  for (auto it = valid.rbegin(); it != valid.rend(); ++it) {
    const size_t c = *it;
    const double delta = rewards[c] + gamma * next_value - values[c];
    next_advantage = delta + gamma * lambda * next_advantage;
    next_value = values[c];
    advantages[c] = next_advantage;
  }
}

std::vector<double> PlusValues(const std::vector<double>& advantages, std::span<const double> values,
                               const Cells& cells) {
  std::vector<double> returns(advantages.size(), 0.0);
  for (size_t t = 0; t < returns.size(); ++t) {
    if (cells.mask[t] != 0) returns[t] = advantages[t] + values[t];
  }
  return returns;
}

}  // namespace

ReturnsAndAdvantages TokenGae(std::span<const double> token_rewards, std::span<const double> values,
                              std::span<const double> bootstrap, double gamma, double lambda,
                              const WhitenOptions* whiten, const Cells& cells) {
  ReturnsAndAdvantages out;
  out.advantages.assign(cells.mask.size(), 0.0);
  for (int64_t i = 0; i < cells.rows(); ++i) {
    const double after = bootstrap.empty() ? 0 : bootstrap[static_cast<size_t>(i)];
    RowGae(token_rewards, values, after, gamma, lambda, cells, i, out.advantages);
  }
  out.returns = PlusValues(out.advantages, values, cells);
  if (whiten != nullptr) Whiten(out.advantages, cells.mask, *whiten);
  return out;
}

ReturnsAndAdvantages VapoGae(std::span<const double> token_rewards, std::span<const double> values,
                             double gamma, double lambda_value, double alpha, const WhitenOptions* whiten,
                             const Cells& cells) {
  ReturnsAndAdvantages out;
  out.returns = TokenGae(token_rewards, values, {}, gamma, lambda_value, nullptr, cells).returns;
  out.advantages.assign(cells.mask.size(), 0.0);
  for (int64_t i = 0; i < cells.rows(); ++i) {
    const double lambda = 1 - 1 / std::max(alpha * static_cast<double>(cells.Tokens(i)), 1.0);
    RowGae(token_rewards, values, 0, gamma, lambda, cells, i, out.advantages);
  }
  if (whiten != nullptr) Whiten(out.advantages, cells.mask, *whiten);
  return out;
}

ReturnsAndAdvantages EnvironmentGae(std::span<const double> rewards, std::span<const double> values,
                                    std::span<const uint8_t> dones, std::span<const uint8_t> mask,
                                    int64_t steps, int64_t batch, double gamma, double lambda,
                                    const WhitenOptions* whiten) {
  const auto cells = static_cast<size_t>(steps * batch);
  TP_CHECK(rewards.size() == cells && mask.size() == cells &&
           values.size() == cells + static_cast<size_t>(batch) && dones.size() == values.size());
  ReturnsAndAdvantages out;
  out.advantages.assign(cells, 0.0);
  out.returns.assign(cells, 0.0);
  for (int64_t b = 0; b < batch; ++b) {
    double next = 0;
    for (int64_t t = steps - 1; t >= 0; --t) {
      const auto here = static_cast<size_t>(t * batch + b), after = static_cast<size_t>((t + 1) * batch + b);
      const bool cut = dones[after] != 0;
      const double delta = rewards[here] + (cut ? 0 : gamma * values[after]) - values[here];
      next = delta + (cut ? 0 : gamma * lambda * next);
      out.advantages[here] = next;
      out.returns[here] = next + values[here];
    }
  }
  if (whiten != nullptr) WhitenAll(out.advantages, mask, *whiten);
  return out;
}

}  // namespace tidepool::algorithms
