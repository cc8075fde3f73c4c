#include "workers/controller/token_intake.h"

#include <utility>

namespace tidepool::workers {

using scheduler::event::ChunkEnd;
using scheduler::event::ChunkFinished;
using scheduler::event::ChunkProgress;

void TokenIntake::Take(const WorkerRef& worker, up::StepTokens& step) {
  for (up::ChunkDelta& c : step.chunks) {
    // Not expected: taken back from this worker, and its tokens would come twice.
    const bool expected = ends_.expects(worker, c.tid, c.att);
    // Of a group that this controller has adopted whole, nobody has asked for the row yet.
    if (expected ? !ends_.have_row(c.tid) : samples_.FindRow(c.tid) == nullptr) continue;
    if (expected && !Continues(worker, c)) continue;
    const int64_t n = expected ? c.tokens.size() : 0;
    if (n > 0) {
      if (const Status sound = ends_.check(c.tokens); sound.ok()) {
        const Version version = c.tokens.versions.back().first;
        samples_.Get(c.tid, c.att).tokens.Append(std::move(c.tokens));
        ends_.feed(ChunkProgress{worker, c.tid, c.att, n, version});
      } else {
        c.ended = true;
        c.end = ChunkEnd::kDataError;
        c.why = sound.message();
      }
    }
    if (!c.ended) continue;
    if (ends_.expects(worker, c.tid, c.att)) {
      samples_.Get(c.tid, c.att).tokens.finish = c.end == ChunkEnd::kLength ? sample::Finish::kLength
                                                 : c.end == ChunkEnd::kStop ? sample::Finish::kStop
                                                                            : sample::Finish::kEos;
    }
    ends_.feed(ChunkFinished{worker, c.tid, c.att, c.end, std::move(c.why)});
  }
}

// Whether the delta begins where the record of its attempt ends. One that begins earlier is here already;
// before one that begins later something is missing.
bool TokenIntake::Continues(const WorkerRef& worker, const up::ChunkDelta& delta) {
  StoredSample& record = samples_.Get(delta.tid, delta.att);
  if (delta.from > record.tokens.size()) AskFor(worker, record);
  return delta.from == record.tokens.size();
}

// Once for each gap: the answer is every token behind it, and the deltas that arrive before the answer are
// behind the same gap.
void TokenIntake::AskFor(const WorkerRef& worker, StoredSample& record) {
  const std::pair gap(worker, record.tokens.size());
  if (std::exchange(record.asked, gap) == gap) return;
  ends_.ask(worker, down::Resend{record.tokens.tid, record.tokens.att, gap.second});
}

void TokenIntake::Adopt(const WorkerRef& worker, const std::vector<up::OfferedAttempt>& offered) {
  for (const up::OfferedAttempt& a : offered) {
    if (ends_.expects(worker, a.tid, a.att)) AskFor(worker, samples_.Get(a.tid, a.att));
  }
}

scheduler::event::WorkerJoined JoinedBy(const Attachments::Arrived& arrived, std::string name) {
  scheduler::event::WorkerJoined joined;
  joined.worker = {arrived.place};
  joined.process = arrived.hello.process;
  joined.name = std::move(name);
  joined.kind = arrived.hello.kind;
  if (joined.kind == scheduler::WorkerKind::kDevice) joined.slot = {arrived.place};
  joined.device_bytes = arrived.hello.device_bytes;
  joined.restored_inc = arrived.hello.inc;
  joined.holds = arrived.offer.holds;
  joined.holds_digest = arrived.offer.holds_digest;
  joined.state_step = arrived.offer.state_step;
  joined.state_digest = arrived.offer.state_digest;
  for (const up::OfferedAttempt& a : arrived.offer.attempts)
    joined.offered.push_back({a.tid, a.att, a.tokens, a.oldest, a.newest});
  return joined;
}

}  // namespace tidepool::workers
