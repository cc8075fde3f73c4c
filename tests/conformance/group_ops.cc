// adv.* of outcome rewards by group.
#include "core/algorithms/group_advantages.h"
#include "tests/conformance/request.h"

namespace tidepool::algorithms::conformance {
namespace {

struct GroupInput {
  Cells cells;
  std::vector<double> rewards;
  std::vector<int64_t> group;
};
GroupInput Read(Request& r) {
  GroupInput in;
  in.cells = r.MaskedCells("mask");
  in.rewards = r.Vector("rewards", in.cells.rows());
  in.group = r.Ids("group", in.cells.rows());
  return in;
}

Singleton ReadSingleton(const Params& p) {
  return p.Choice("singleton", "zero", {"raw", "zero"}) == "raw" ? Singleton::kRaw : Singleton::kZero;
}

Status PutRows(Request& r, const GroupInput& in, const std::vector<double>& advantages) {
  r.PutCells("advantages", Spread(advantages, in.cells));
  return OkStatus();
}

Status Grpo(Request& r) {
  const Params& p = r.params().Known({"scale", "baseline", "std_of", "ddof", "eps", "singleton", "zero_std"});
  const GroupInput in = Read(r);
  const std::string scale = p.Choice("scale", "none", {"group_std", "batch_std", "none"});
  GrpoOptions o{.scale = scale == "group_std"   ? AdvantageScale::kGroupStd
                         : scale == "batch_std" ? AdvantageScale::kBatchStd
                                                : AdvantageScale::kNone,
                .leave_one_out = p.Choice("baseline", "mean", {"mean", "loo"}) == "loo",
                .std_of_others = p.Choice("std_of", "all", {"all", "others"}) == "others",
                .ddof = p.Integer("ddof", 1),
                .eps = p.Number("eps", 0),
                .singleton = ReadSingleton(p),
                .skip_zero_std = p.Has("zero_std") && p.Choice("zero_std", "", {"skip"}) == "skip"};
  if (o.std_of_others && o.scale == AdvantageScale::kBatchStd)
    return Unimplemented("std_of others goes with scale group_std");
  if (!r.ok()) return r.status();
  return PutRows(r, in, GrpoAdvantages(in.rewards, in.group, o));
}

Status Rloo(Request& r) {
  const Params& p = r.params().Known({"singleton"});
  const GroupInput in = Read(r);
  const Singleton singleton = ReadSingleton(p);
  if (!r.ok()) return r.status();
  return PutRows(r, in, RlooAdvantages(in.rewards, in.group, singleton));
}

Status Opo(Request& r) {
  const Params& p = r.params().Known({"singleton"});
  const GroupInput in = Read(r);
  const Singleton singleton = ReadSingleton(p);
  if (!r.ok()) return r.status();
  return PutRows(r, in, OpoAdvantages(in.rewards, in.group, in.cells, singleton));
}

Status MaxRl(Request& r) {
  r.params().Known({});
  const GroupInput in = Read(r);
  if (!r.ok()) return r.status();
  return PutRows(r, in, MaxRlAdvantages(in.rewards, in.group));
}

Status PassK(Request& r) {
  const Params& p = r.params().Known({"scale", "ddof", "eps"});
  const GroupInput in = Read(r);
  const bool divide = p.Choice("scale", "none", {"group_std", "none"}) == "group_std";
  const int64_t ddof = p.Integer("ddof", 1);
  const double eps = p.Number("eps", 0);
  if (!r.ok()) return r.status();
  return PutRows(r, in, PassKAdvantages(in.rewards, in.group, divide, ddof, eps));
}

Status Gpg(Request& r) {
  const Params& p = r.params().Known({"alpha", "f_norm", "singleton"});
  const GroupInput in = Read(r);
  const bool by_nonzero = p.Has("alpha") && p.Choice("alpha", "", {"batch/nonzero"}) == "batch/nonzero";
  const double f_norm = p.Number("f_norm", 1);
  const Singleton singleton = ReadSingleton(p);
  if (!r.ok()) return r.status();
  return PutRows(r, in, GpgAdvantages(in.rewards, in.group, by_nonzero, f_norm, singleton));
}

Status Gdpo(Request& r) {
  const Params& p = r.params().Known({"weights", "eps", "ddof"});
  const Cells cells = r.MaskedCells("mask");
  const std::vector<int64_t> group = r.Ids("group", cells.rows());
  const Tensor components = r.Input("reward_components");
  const int64_t ddof = p.Integer("ddof", 1);
  const double eps = p.Number("eps", 0);
  if (!r.ok()) return r.status();
  if (components.shape.size() != 2 || components.shape[0] != cells.rows())
    return InvalidArgument("reward_components is not [rows, rewards]");
  std::vector<double> weights(static_cast<size_t>(components.shape[1]), 1.0);
  if (const Json* list = p.Find("weights")) {
    const Json wrapped = {{"inputs", {{"weights", *list}}}};
    Request inner(wrapped);
    weights = inner.Vector("weights", components.shape[1]);
    if (!inner.ok()) return inner.status();
  }
  r.PutCells("advantages", Spread(GdpoAdvantages(components.data, weights, group, ddof, eps), cells));
  return OkStatus();
}

Status ReinforceBaseline(Request& r) {
  const Params& p = r.params().Known({"baseline", "singleton", "whiten"});
  const Cells cells = r.MaskedCells("mask");
  const bool baseline = p.Choice("baseline", "mean", {"mean", "none"}) == "mean";
  const Singleton singleton = ReadSingleton(p);
  const std::vector<double> rewards = r.Vector("rewards", cells.rows());
  const std::vector<int64_t> group = baseline ? r.Ids("group", cells.rows()) : std::vector<int64_t>();
  const auto whiten = r.WhitenParam();
  if (!r.ok()) return r.status();
  r.PutCells("advantages", ReinforcePlusPlusBaseline(rewards, group, cells, baseline, singleton,
                                                     whiten ? &*whiten : nullptr));
  return OkStatus();
}

Status LengthShaped(Request& r) {
  const Params& p = r.params().Known({"w_in", "w_out", "w_turn"});
  const std::vector<double> rewards = r.Vector("rewards", -1);
  const auto n = static_cast<int64_t>(rewards.size());
  const std::vector<int64_t> out = r.Integers("out_tokens", n), total = r.Integers("total_tokens", n),
                             turns = r.Integers("turns", n);
  const LengthShape shape{
      .w_in = p.Number("w_in", 0), .w_out = p.Number("w_out", 0), .w_turn = p.Number("w_turn", 0)};
  if (!r.ok()) return r.status();
  r.PutVector("advantages", LengthShapedAdvantages(rewards, out, total, turns, shape));
  return OkStatus();
}

}  // namespace

std::vector<NamedOperation> GroupOperations() {
  return {{"adv.grpo", Grpo},
          {"adv.rloo", Rloo},
          {"adv.opo", Opo},
          {"adv.maxrl", MaxRl},
          {"adv.passk", PassK},
          {"adv.gpg", Gpg},
          {"adv.gdpo", Gdpo},
          {"adv.reinforce_pp_baseline", ReinforceBaseline},
          {"adv.length_shaped", LengthShaped}};
}

}  // namespace tidepool::algorithms::conformance
