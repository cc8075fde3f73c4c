// Soft actor-critic (Haarnoja et al., arXiv:1801.01290, arXiv:1812.05905). The formulas are in
// core/algorithms/sac.h; core/policy/sac_trainer.h puts them together.
#include "core/algorithms/registry.h"

namespace tidepool::algorithms {

TP_PLUGIN(Algorithm, sac) {
  return {.paper = "Soft actor-critic, arXiv:1812.05905",
          .doc = "off-policy: twin critics, target networks, an automatic temperature; model.policy alone",
          .off_policy =
              "y = r + gamma (1 - terminated)(min Q'(s', a') - alpha log pi(a'|s')); "
              "critics (Q - y)^2 / 2; actor alpha log pi - min Q; "
              "alpha -log alpha (log pi + target_entropy)"};
}

}  // namespace tidepool::algorithms
