#include "workers/net/wire_tokens.h"

#include <utility>

#include "core/base/check.h"
#include "core/sample/codec.h"
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

void ToWire(const BatchRow& in, v1::Row* out) {
  out->set_gid(in.gid.value);
  auto bytes = sample::Encode(in.trajectory);
  TP_CHECK(bytes.ok()) << bytes.status().message();
  out->set_trajectory(*std::move(bytes));
  for (const Version& v : in.without_loss) Put(v, out->add_without_loss());
  out->set_reward(in.reward);
  out->mutable_components()->Add(in.components.begin(), in.components.end());
}

StatusOr<BatchRow> FromWire(const v1::Row& in) {
  BatchRow out;
  out.gid = {in.gid()};
  TP_ASSIGN_OR_RETURN(out.trajectory, sample::Decode(in.trajectory()));
  for (const v1::Version& v : in.without_loss()) out.without_loss.push_back(Get(v));
  out.reward = in.reward();
  out.components.assign(in.components().begin(), in.components().end());
  return out;
}

}  // namespace tidepool::workers
