#include "workers/controller/turns.h"

#include <utility>

#include "core/base/hash.h"
#include "core/environments/episode.h"

namespace tidepool::workers {
namespace {

constexpr int64_t kMostTokens = int64_t{1} << 24;  // of one observation

uint64_t HashIds(const std::vector<int32_t>& ids, size_t n) {
  return Hash64(std::string_view(reinterpret_cast<const char*>(ids.data()), n * sizeof(int32_t)));
}

}  // namespace

down::EnvStep Turns::Step(const scheduler::command::EnvStep& c, StoredSample* record) {
  asked_[c.tid] = {c.worker, c.att, c.turn};
  down::EnvStep m{.tid = c.tid, .att = c.att, .turn = c.turn, .timeout_s = Seconds(c.timeout)};
  if (c.turn == 0 || record == nullptr) return m;
  StoredSample& s = *record;
  if (!s.tokens.segments.empty() && !s.tokens.segments.front().turn) {
    const EncodedRow* row = samples_.FindRow(c.tid);
    s.tokens.segments.front().turn = sample::TurnStart{row == nullptr ? 0 : row->state, 0};
  }
  s.sealed = 0;
  m.said = s.logged;
  if (s.logged.valid()) return m;
  for (const sample::Segment& said : s.tokens.segments) {
    if (said.kind == sample::SegmentKind::kTokens && said.size() > 0)
      m.actions.push_back(rows_.ResponseText(said.ids));
    if (tokens_ && said.kind == sample::SegmentKind::kTokens) m.action = said;
  }
  s.sealed = s.tokens.size();
  s.seal = HashIds(s.tokens.Ids(), static_cast<size_t>(s.sealed));
  return m;
}

uint64_t Turns::HistoryOf(const SampleId& tid, const StoredSample& s) const {
  if (s.turns > 0) return s.history;
  const EncodedRow* row = samples_.FindRow(tid);
  return row == nullptr ? 0 : environments::ExtendHistory(0, row->question.prompt, 0);
}

scheduler::event::EnvStepped Turns::Take(const WorkerRef& worker, up::EnvStepped reply) {
  scheduler::event::EnvStepped e{.worker = worker,
                                 .tid = reply.tid,
                                 .att = reply.att,
                                 .turn = reply.turn,
                                 .outcome = reply.outcome,
                                 .observation_tokens = 0,
                                 .done = reply.done,
                                 .reward = reply.reward,
                                 .rewards = std::move(reply.rewards),
                                 .why = std::move(reply.why),
                                 .no_room = reply.no_room};
  if (e.outcome != GradeOutcome::kOk || e.turn < 0) return e;
  if (const auto asked = asked_.find(e.tid);
      asked == asked_.end() || asked->second != Asked{worker, e.att, e.turn}) {
    // Whom the scheduler has asked, it asks again: what was said here is not kept.
    e.outcome = GradeOutcome::kInfra;
    e.why = "it answers another turn than the newest that was asked";
    return e;
  }
  const auto broken = [&](const std::string& why) {
    e.outcome = GradeOutcome::kData;
    e.why = why;
    count_("env/data_errors");
    return e;
  };
  Pending p{.att = e.att,
            .turn = e.turn,
            .row = {},
            .logged = reply.logged,
            .history = reply.next_history,
            .state = reply.state,
            .reward = reply.reward};
  if (e.turn == 0) {
    auto row = reply.observation_ids.empty()
                   ? rows_.EncodeFirst({reply.observation, reply.conversation})
                   : rows_.Encoded({.prompt = reply.observation}, std::move(reply.observation_ids));
    if (!row.ok()) return broken("the first observation: " + row.status().message());
    p.row = std::move(*row);
    p.row.state = reply.state;
    e.observation_tokens = static_cast<int64_t>(p.row.prompt.size());
  } else {
    const StoredSample* s = samples_.Find(e.tid);
    if (s == nullptr || s->tokens.att != e.att || s->turns + 1 != e.turn)
      return e;  // of an attempt that is over: refused
    // It was played twice, and the words were brought here for the other worker.
    if (reply.logged.valid() && !s->logged.valid()) {
      e.outcome = GradeOutcome::kInfra;
      e.why = "its tokens were brought to the controller meanwhile";
      return e;
    }
    if (reply.history != HistoryOf(e.tid, *s)) {
      count_("env/prefix_violations");
      return broken(
          "the environment, replayed, did not say what it had said before, or gave other rewards: its first "
          "words have to follow from the seed alone, and an episode from its actions alone");
    }
    samples_.Change(e.tid)->tokens.finish =
        e.done ? sample::Finish::kEos : sample::Finish::kLength;  // if it ends here
    if (!e.done && s->logged.valid()) {
      e.observation_tokens = reply.logged_tokens;
      if (storage::WriterOf(reply.logged.file) != storage::WriterOf(storage::FirstFileOf(worker.inc)) ||
          e.observation_tokens <= 0 || e.observation_tokens > kMostTokens)
        return broken("the observation of turn " + std::to_string(e.turn) +
                      " is said to be where its worker writes none");
      p.observation.outlined = e.observation_tokens;
    } else if (!e.done) {
      const std::vector<int32_t> said = s->tokens.Ids();
      const bool ended = !said.empty() && rows_.IsEnd(said.back());
      auto ids = reply.observation_ids.empty()
                     ? rows_.EncodeObservation({reply.observation, reply.conversation}, ended)
                     : rows_.CheckedIds(std::move(reply.observation_ids));
      if (!ids.ok())
        return broken("the observation of turn " + std::to_string(e.turn) + ": " + ids.status().message());
      p.observation.ids = std::move(*ids);
      e.observation_tokens = p.observation.size();
      if (e.observation_tokens == 0)
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
  Forget(c.tid);
  if (c.turn == 0) {
    samples_.PutRow(c.tid.ordinal, c.tid.is_eval(), std::move(p.row));
    return;
  }
  StoredSample& s = samples_.Get(c.tid, c.att);
  if (p.observation.outlined) {
    s.logged = p.logged;
    s.logged_by = {};
    s.files.insert(p.logged.file);
  }
  s.tokens.Append(std::move(p.observation));
  s.tokens.Append({.turn = sample::TurnStart{p.state, p.reward}});
  s.turns = c.turn;
  s.history = p.history;
}

Status Turns::CheckPrefix(const StoredSample& s) {
  if (s.sealed == 0) return OkStatus();
  if (s.tokens.size() >= s.sealed && HashIds(s.tokens.Ids(), static_cast<size_t>(s.sealed)) == s.seal)
    return OkStatus();
  count_("env/prefix_violations");
  return DataLoss("the prompt of turn " + std::to_string(s.turns + 1) +
                  " does not begin with the record of the turns before");
}

}  // namespace tidepool::workers
