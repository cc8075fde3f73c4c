#include "workers/controller/sample_store.h"

#include <utility>

namespace tidepool::workers {

const EncodedRow* SampleStore::FindRow(const SampleId& tid) const {
  const auto it = rows_.find({tid.is_eval(), tid.ordinal});
  return it == rows_.end() ? nullptr : &it->second;
}

StoredSample& SampleStore::Get(const SampleId& tid, int32_t att) {
  StoredSample& s = samples_[tid];
  if (s.att != att) {
    s = StoredSample{};
    s.att = att;
  }
  return s;
}

const StoredSample* SampleStore::Find(const SampleId& tid) const {
  const auto it = samples_.find(tid);
  return it == samples_.end() ? nullptr : &it->second;
}

StoredSample* SampleStore::Change(const SampleId& tid) {
  const auto it = samples_.find(tid);
  return it == samples_.end() ? nullptr : &it->second;
}

storage::Payload SampleStore::ToPayload(const SampleId& tid) const {
  const EncodedRow* row = FindRow(tid);
  const StoredSample* sample = Find(tid);
  TP_CHECK(row != nullptr && sample != nullptr) << "sample " << ToString(tid) << " has no tokens to store";
  storage::Payload p;
  p.tid = tid;
  p.att = sample->att;
  p.prompt = row->prompt;
  p.response = sample->tokens.ids;
  p.logprobs = sample->tokens.logprobs;
  p.log_kept = sample->tokens.log_kept;
  p.routing = sample->tokens.routing;
  p.fragment = sample->tokens.fragment;
  p.turns = sample->tokens.turns;
  for (const auto& [version, count] : sample->tokens.versions)
    p.versions.push_back({version, static_cast<int32_t>(count)});
  p.loss_mask = sample->loss_mask;
  if (!p.loss_mask.empty()) p.loss_mask.resize(p.response.size(), 1);
  p.finish = sample->finish;
  return p;
}

StoredSample SampleStore::FromPayload(const storage::Payload& payload) {
  StoredSample s;
  s.att = payload.att;
  s.tokens.ids = payload.response;
  s.tokens.logprobs = payload.logprobs;
  s.tokens.log_kept = payload.log_kept;
  s.tokens.routing = payload.routing;
  s.tokens.fragment = payload.fragment;
  s.tokens.turns = payload.turns;
  for (const auto& run : payload.versions) {
    s.tokens.versions.emplace_back(run.version, run.tokens);
    if (!payload.fragment.empty()) s.tokens.fragment_steps += run.tokens;
  }
  s.loss_mask = payload.loss_mask;
  s.finish = payload.finish;
  return s;
}

}  // namespace tidepool::workers
