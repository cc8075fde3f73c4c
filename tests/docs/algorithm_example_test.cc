// The loss of docs/adding_an_algorithm.md, compiled as it stands there.
#include <gtest/gtest.h>

#include "adding_an_algorithm_0.inc"
#include "core/algorithms/aggregation.h"
#include "tests/core/algorithms/random_batch.h"

namespace tidepool::algorithms {
namespace {

TEST(DocsAlgorithmTest, HasTheGradientOfItsValue) {
  Rng rng(1);
  RandomBatch b(rng, 3, 4);
  const LossEntry entry = LossPlugin_tanh();
  const PolicyLossSpec spec{.loss = &entry, .options = Options::Make(entry.options, {}, true).value()};
  const std::vector<double> weights = AggregationWeights({}, b.cells).value();
  std::vector<double> lp = Masked(b.logp, b.cells);
  const auto at = [&] {
    PolicyBatch batch = b.Batch();
    batch.logp = lp;
    return PolicyLoss(spec, b.cells, batch, weights).value();
  };
  const PolicyLossResult here = at();
  for (size_t t = 0; t < lp.size(); ++t) {
    if (b.cells.mask[t] == 0) continue;
    const double before = lp[t];
    lp[t] = before + 1e-6;
    const double up = at().loss;
    lp[t] = before - 1e-6;
    EXPECT_NEAR(here.grad_logp[t], (up - at().loss) / 2e-6, 1e-7);
    lp[t] = before;
  }
}

TEST(DocsAlgorithmTest, ItsAlgorithmNamesPartsThatAreThere) {
  const AlgorithmEntry entry = AlgorithmPlugin_tanh();
  EXPECT_NE(FindAdvantage(entry.advantage.name), nullptr);
  EXPECT_EQ(entry.loss.name, "tanh");
}

}  // namespace
}  // namespace tidepool::algorithms
