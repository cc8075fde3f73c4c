// Losses that do something wrong, and an algorithm for each.
#include "core/algorithms/losses/losses.h"
#include "core/algorithms/registry.h"
#include "tests/plugins/faulty/faults.h"

namespace tidepool::algorithms {
namespace {

Status Throws(const Options&, const Cells&, const PolicyBatch&, LossTerms&) {
  DoWrong("throw");
  return OkStatus();
}
Status Crashes(const Options&, const Cells&, const PolicyBatch&, LossTerms&) {
  DoWrong("crash");
  return OkStatus();
}

Status Hangs(const Options&, const Cells&, const PolicyBatch&, LossTerms&) {
  DoWrong("hang");
  return OkStatus();
}
std::vector<double> AdvantageHangs(const Options&, const AdvantageInput& in) {
  DoWrong("hang");
  return std::vector<double>(in.cells->mask.size());
}

}  // namespace

TP_PLUGIN(Loss, loss_hangs) {
  return {.paper = "none", .formula = "none", .options = {}, .needs = {Column::kAdvantages}, .terms = Hangs};
}
TP_PLUGIN(Advantage, advantage_hangs) {
  return {.paper = "none", .formula = "none", .compute = AdvantageHangs};
}
TP_PLUGIN(Algorithm, loss_hangs) {
  return {.paper = "none", .doc = "hangs", .advantage = {"grpo", {}}, .loss = {"loss_hangs"}};
}
TP_PLUGIN(Loss, loss_throws) {
  return {.paper = "none", .formula = "none", .options = {}, .needs = {Column::kAdvantages}, .terms = Throws};
}
TP_PLUGIN(Loss, loss_crashes) {
  return {
      .paper = "none", .formula = "none", .options = {}, .needs = {Column::kAdvantages}, .terms = Crashes};
}
TP_PLUGIN(Algorithm, loss_throws) {
  return {.paper = "none", .doc = "throws", .advantage = {"grpo", {}}, .loss = {"loss_throws"}};
}
TP_PLUGIN(Algorithm, loss_crashes) {
  return {.paper = "none", .doc = "crashes", .advantage = {"grpo", {}}, .loss = {"loss_crashes"}};
}

}  // namespace tidepool::algorithms
