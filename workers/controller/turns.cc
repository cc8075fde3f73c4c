#include "workers/controller/turns.h"

#include <utility>

#include "core/base/hash.h"
#include "core/environments/episode.h"

namespace tidepool::workers {
namespace {

uint64_t HashIds(const std::vector<int32_t>& ids, size_t n) {
  return Hash64(std::string_view(reinterpret_cast<const char*>(ids.data()), n * sizeof(int32_t)));
}

}  // namespace

down::EnvStep Turns::Step(const scheduler::command::EnvStep& c, StoredSample* record) {
  down::EnvStep m{c.tid, c.att, c.turn, {}, Seconds(c.timeout)};
  if (c.turn == 0 || record == nullptr) return m;
  StoredSample& s = *record;
  if (s.tokens.turns.empty()) {
    const EncodedRow* row = samples_.FindRow(c.tid);
    s.tokens.turns.push_back({.begin = 0, .state = row == nullptr ? 0 : row->state, .reward_before = 0});
  }
  s.loss_mask.resize(s.tokens.ids.size(), 1);
  std::vector<int32_t> turn;
  for (size_t i = 0; i <= s.tokens.ids.size(); ++i) {
    if (i < s.tokens.ids.size() && s.loss_mask[i] != 0) {
      turn.push_back(s.tokens.ids[i]);
    } else if (!turn.empty()) {
      m.actions.push_back(rows_.ResponseText(turn));
      turn.clear();
    }
  }
  s.sealed = s.tokens.size();
  s.seal = HashIds(s.tokens.ids, s.tokens.ids.size());
  return m;
}

uint64_t Turns::HistoryOf(const SampleId& tid, const StoredSample& s) const {
  if (s.turns > 0) return s.history;
  const EncodedRow* row = samples_.FindRow(tid);
  return row == nullptr ? 0 : environments::ExtendHistory(0, row->question.prompt);
}

scheduler::event::EnvStepped Turns::Take(const WorkerRef& worker, up::EnvStepped reply) {
  metrics_.OnEnvironment(reply);
  scheduler::event::EnvStepped e{.worker = worker,
                                 .tid = reply.tid,
                                 .att = reply.att,
                                 .turn = reply.turn,
                                 .outcome = reply.outcome,
                                 .observation_tokens = 0,
                                 .done = reply.done,
                                 .reward = reply.reward,
                                 .rewards = std::move(reply.rewards),
                                 .why = std::move(reply.why)};
  if (e.outcome != GradeOutcome::kOk || e.turn < 0) return e;
  const auto broken = [&](const std::string& why) {
    e.outcome = GradeOutcome::kData;
    e.why = why;
    metrics_.Count("env/data_errors");
    return e;
  };
  Pending p{.att = e.att,
            .turn = e.turn,
            .row = {},
            .ids = {},
            .history = environments::ExtendHistory(reply.history, reply.observation),
            .state = reply.state,
            .reward = reply.reward};
  if (e.turn == 0) {
    tasks::Question question;
    question.prompt = reply.observation;
    auto row = rows_.Encode(std::move(question));
    if (!row.ok()) return broken("the first observation: " + row.status().message());
    p.row = std::move(*row);
    p.row.state = reply.state;
    e.observation_tokens = static_cast<int64_t>(p.row.prompt.size());
  } else {
    const StoredSample* s = samples_.Find(e.tid);
    if (s == nullptr || s->att != e.att || s->turns + 1 != e.turn)
      return e;  // of an attempt that is over: refused
    if (reply.history != HistoryOf(e.tid, *s)) {
      metrics_.Count("env/prefix_violations");
      return broken(
          "the environment, replayed, did not say what it had said before: an episode has to follow from its "
          "actions alone");
    }
    samples_.Change(e.tid)->finish =
        e.done ? storage::FinishReason::kEos : storage::FinishReason::kLength;  // if it ends here
    if (!e.done) {
      const bool ended = !s->tokens.ids.empty() && rows_.IsEnd(s->tokens.ids.back());
      auto ids = rows_.EncodeObservation(reply.observation, ended);
      if (!ids.ok())
        return broken("the observation of turn " + std::to_string(e.turn) + ": " + ids.status().message());
      p.ids = std::move(*ids);
      e.observation_tokens = static_cast<int64_t>(p.ids.size());
      if (p.ids.empty())
        return broken("the observation of turn " + std::to_string(e.turn) + " has no tokens");
    }
  }
  pending_[e.tid] = std::move(p);
  return e;
}

void Turns::Append(const scheduler::command::AppendObservation& c) {
  const auto it = pending_.find(c.tid);
  if (it == pending_.end() || it->second.att != c.att || it->second.turn != c.turn) return;
  Pending p = std::move(it->second);
  pending_.erase(it);
  if (c.turn == 0) {
    samples_.PutRow(c.tid.ordinal, c.tid.is_eval(), std::move(p.row));
    return;
  }
  StoredSample& s = samples_.Get(c.tid, c.att);
  TokenRecord said;
  said.ids = std::move(p.ids);
  said.logprobs.assign(said.ids.size(), 0);  // nobody sampled them
  // Of the version that spoke last: these tokens carry no loss, so it bounds nothing.
  if (!s.tokens.versions.empty()) said.versions = {{s.tokens.versions.back().first, said.size()}};
  s.tokens.Append(said);
  s.loss_mask.resize(s.tokens.ids.size(), 0);
  s.tokens.turns.push_back({.begin = s.tokens.size(), .state = p.state, .reward_before = p.reward});
  s.turns = c.turn;
  s.history = p.history;
}

Status Turns::CheckPrefix(const StoredSample& s) {
  if (s.sealed == 0) return OkStatus();
  if (s.tokens.size() >= s.sealed && HashIds(s.tokens.ids, static_cast<size_t>(s.sealed)) == s.seal)
    return OkStatus();
  metrics_.Count("env/prefix_violations");
  return DataLoss("the prompt of turn " + std::to_string(s.turns + 1) +
                  " does not begin with the record of the turns before");
}

}  // namespace tidepool::workers
