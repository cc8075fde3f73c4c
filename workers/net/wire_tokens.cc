#include "workers/net/wire_tokens.h"

#include <algorithm>
#include <string>

#include "proto/control.pb.h"

namespace tidepool::workers {

void Put(const SampleId& in, v1::SampleId* out) {
  out->set_ordinal(in.ordinal);
  out->set_issue(in.issue);
  out->set_sample(in.sample);
}
SampleId Get(const v1::SampleId& in) { return {in.ordinal(), in.issue(), in.sample()}; }
void Put(const Version& in, v1::Version* out) {
  out->set_lineage(in.lineage);
  out->set_number(in.number);
}
Version Get(const v1::Version& in) { return {in.lineage(), in.number()}; }

void Put(const TokenRecord& in, v1::Tokens* out) {
  out->mutable_ids()->Add(in.ids.begin(), in.ids.end());
  out->mutable_logprobs()->Add(in.logprobs.begin(), in.logprobs.end());
  out->mutable_log_kept()->Add(in.log_kept.begin(), in.log_kept.end());
  out->set_routing(in.routing);
  for (const auto& [version, count] : in.versions) {
    auto* run = out->add_versions();
    Put(version, run->mutable_version());
    run->set_count(count);
  }
  out->set_fragment(in.fragment);
  out->set_fragment_steps(in.fragment_steps);
  for (const TurnMark& turn : in.turns) {
    out->add_turn_begins(turn.begin);
    out->add_turn_states(turn.state);
    out->add_turn_rewards_before(turn.reward_before);
  }
}
TokenRecord Get(const v1::Tokens& in) {
  TokenRecord out;
  out.ids.assign(in.ids().begin(), in.ids().end());
  out.logprobs.assign(in.logprobs().begin(), in.logprobs().end());
  out.log_kept.assign(in.log_kept().begin(), in.log_kept().end());
  out.routing = in.routing();
  for (const auto& run : in.versions()) out.versions.emplace_back(Get(run.version()), run.count());
  out.fragment = in.fragment();
  out.fragment_steps = in.fragment_steps();
  const int turns = std::min({in.turn_begins_size(), in.turn_states_size(), in.turn_rewards_before_size()});
  for (int i = 0; i < turns; ++i)
    out.turns.push_back({in.turn_begins(i), in.turn_states(i), in.turn_rewards_before(i)});
  return out;
}

void ToWire(const BatchRow& in, v1::Row* out) {
  Put(in.tid, out->mutable_tid());
  out->set_gid(in.gid.value);
  out->mutable_prompt()->Add(in.prompt.begin(), in.prompt.end());
  Put(in.response, out->mutable_response());
  out->set_loss_mask(std::string(in.loss_mask.begin(), in.loss_mask.end()));
  out->set_reward(in.reward);
  out->set_truncated(in.truncated);
  out->mutable_components()->Add(in.components.begin(), in.components.end());
}

StatusOr<BatchRow> FromWire(const v1::Row& in) {
  BatchRow out;
  out.tid = Get(in.tid());
  out.gid = {in.gid()};
  out.prompt.assign(in.prompt().begin(), in.prompt().end());
  out.response = Get(in.response());
  out.loss_mask.assign(in.loss_mask().begin(), in.loss_mask().end());
  out.reward = in.reward();
  out.truncated = in.truncated();
  out.components.assign(in.components().begin(), in.components().end());
  const size_t said =
      out.response.fragment.empty() ? out.response.ids.size() : 1;  // a fragment counts, or does not
  if (!out.loss_mask.empty() && out.loss_mask.size() != said) {
    return InvalidArgument("row " + ToString(out.tid) + ": loss mask and response differ in length");
  }
  return out;
}

}  // namespace tidepool::workers
