#include "workers/controller/sample_store.h"

#include <limits>

#include "core/base/check.h"

namespace tidepool::workers {

void SampleStore::PutRow(int64_t ordinal, bool eval, EncodedRow row) {
  auto prompt = sample::PromptSegment(row.prompt);
  rows_[{eval, ordinal}] = Row{std::move(row), std::move(prompt)};
}

const EncodedRow* SampleStore::FindRow(const SampleId& tid) const {
  const auto it = rows_.find({tid.is_eval(), tid.ordinal});
  return it == rows_.end() ? nullptr : &it->second.row;
}

const SampleStore::Row& SampleStore::RowOf(const SampleId& tid) const {
  const auto it = rows_.find({tid.is_eval(), tid.ordinal});
  TP_CHECK(it != rows_.end()) << "sample " << ToString(tid) << " has no row";
  return it->second;
}

StoredSample& SampleStore::Get(const SampleId& tid, int32_t att) {
  StoredSample& s = samples_[tid];
  if (s.tokens.att != att) {
    s = StoredSample{.gid = s.gid};
    s.tokens.tid = tid;
    s.tokens.att = att;
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

void SampleStore::Drop(const SampleId& tid) {
  const auto it = samples_.find(tid);
  if (it == samples_.end()) return;
  if (const auto group = given_.find(it->second.gid); group != given_.end()) {
    group->second.erase(tid);
    if (group->second.empty()) given_.erase(group);
  }
  samples_.erase(it);
}

void SampleStore::Forgotten(const SampleId& tid) {
  if (StoredSample* s = Change(tid); s != nullptr) s->worker = {};
}

void SampleStore::Forgotten(GroupId gid, const WorkerRef& worker) {
  const auto group = given_.find(gid);
  if (group == given_.end()) return;
  for (const SampleId& tid : group->second)
    if (StoredSample* s = Change(tid); s != nullptr && s->worker == worker) s->worker = {};
}

void SampleStore::PutDetails(const SampleId& tid, const WorkerRef& grader, Details details) {
  // Of a sample that is over nobody would take them away.
  if (!details.empty() && FindRow(tid) != nullptr) said_[tid][grader] = std::move(details);
}

void SampleStore::OnGraded(const record::Graded& r) {
  auto said = said_.extract(r.tid);
  if (said.empty()) return;
  const auto heard = said.mapped().find(r.grader);
  if (heard != said.mapped().end()) details_[r.tid] = std::move(heard->second);
}

SampleStore::Details SampleStore::DetailsOf(const SampleId& tid) const {
  const auto it = details_.find(tid);
  return it == details_.end() ? Details() : it->second;
}

void SampleStore::Discard(const SampleId& tid) {
  Drop(tid);
  said_.erase(tid);
  details_.erase(tid);
  constexpr int32_t kFirst = std::numeric_limits<int32_t>::min();
  for (auto it = samples_.lower_bound({tid.ordinal, kFirst, kFirst});
       it != samples_.end() && it->first.ordinal == tid.ordinal; ++it) {
    if (it->first.is_eval() == tid.is_eval()) return;
  }
  rows_.erase({tid.is_eval(), tid.ordinal});
}

down::StartChunk SampleStore::StartMessage(const scheduler::command::StartChunk& c, bool logs,
                                           const std::vector<sample::Segment>* read) {
  StoredSample& stored = Get(c.tid, c.att);
  const sample::Trajectory& tokens = stored.tokens;
  const std::vector<sample::Segment>& segments = read == nullptr ? tokens.segments : *read;
  down::StartChunk m;
  m.slot = c.slot;
  m.epoch = c.epoch;
  m.tid = c.tid;
  m.att = c.att;
  m.gid = c.gid;
  m.version = c.v;
  const std::vector<int32_t>& prompt = RowOf(c.tid).row.prompt;
  m.logs = logs;
  m.before = stored.logged;
  const bool there = read == nullptr && stored.worker == c.worker && stored.with_worker > 0;
  if (read == nullptr && stored.logged.valid()) {
    m.have = there ? stored.with_worker : 0;
    m.unread = tokens.size() - m.have;
    if (m.unread > 0) {
      m.before = there ? stored.with_place : storage::TokenPlace{};
      m.newest = stored.logged;
    }
  } else {
    m.generated = (read == nullptr ? tokens : sample::Trajectory{.segments = *read}).Ids();
  }
  if (there && !stored.logged.valid()) {
    m.have = stored.with_worker;
    m.have_hash = sample::HashOfIds(prompt, m.generated, static_cast<size_t>(m.have));
    m.generated.erase(m.generated.begin(), m.generated.begin() + m.have);
  }
  if (!there) m.prompt = prompt;
  stored.worker = c.worker;
  stored.with_worker = tokens.size();
  stored.with_place = stored.logged;
  if (stored.gid != c.gid) {
    if (const auto before = given_.find(stored.gid); before != given_.end()) {
      before->second.erase(c.tid);
      if (before->second.empty()) given_.erase(before);
    }
    stored.gid = c.gid;
  }
  given_[c.gid].insert(c.tid);
  for (const sample::Segment& s : segments) m.routing_bytes += static_cast<int64_t>(s.routing.size());
  m.chunk_tokens = c.chunk_tokens;
  m.max_new_tokens = c.max_new_tokens;
  return m;
}

sample::Trajectory SampleStore::Finished(const SampleId& tid) const {
  const StoredSample* stored = Find(tid);
  TP_CHECK(stored != nullptr) << "sample " << ToString(tid) << " has no tokens to store";
  sample::Trajectory t = stored->tokens;
  t.prompt = RowOf(tid).prompt;
  return t;
}

sample::Trajectory SampleStore::Taught(const SampleId& tid) const {
  const Row& source = RowOf(tid);
  sample::Trajectory t;
  t.tid = tid;
  t.att = 0;
  t.prompt = source.prompt;
  const EncodedRow& row = source.row;
  t.segments = tid.sample == 0 ? sample::TaughtSegments(row.response, row.loss_mask)
                               : sample::TaughtSegments(row.rejected, row.rejected_mask);
  return t;
}

}  // namespace tidepool::workers
