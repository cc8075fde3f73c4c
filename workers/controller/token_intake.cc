#include "workers/controller/token_intake.h"

#include <utility>

#include "core/base/loopback.h"

namespace tidepool::workers {

namespace {

constexpr int64_t kMostTogether = int64_t{1} << 24;  // tokens of one delta

}  // namespace

using scheduler::event::ChunkEnd;
using scheduler::event::ChunkFinished;
using scheduler::event::ChunkProgress;

void TokenIntake::Take(const WorkerRef& worker, up::StepTokens& step) {
  const SlotRef on{worker, step.slot};
  for (up::ChunkDelta& c : step.chunks) {
    // Not expected: taken back from this worker, and its tokens would come twice. Its end is told all the
    // same: the scheduler counts what each worker is at.
    const bool expected = ends_.expects(on, c.tid, c.att);
    // Of a group that this controller has adopted whole, nobody has asked for the row yet.
    if (expected && (!ends_.have_row(c.tid) || !Continues(on, c))) continue;
    const int64_t n = expected ? c.tokens.size() : 0;
    if (n > 0) {
      StoredSample& record = samples_.Get(c.tid, c.att);
      if (const Status sound = Sound(worker, record, c); sound.ok()) {
        const std::vector<sample::VersionRun> runs = c.tokens.versions;
        record.tokens.Append(std::move(c.tokens));
        if (c.logged.valid()) {
          record.logged = c.logged;
          record.logged_by = worker;
          record.files.insert(c.logged.file);
          record.stored.reset();
        }
        if (record.worker == worker) {
          record.with_worker = record.tokens.size();
          record.with_place = record.logged;
        }
        // What is said again is joined, over changes of weights, too: each version is to be known.
        for (const auto& [version, tokens] : runs)
          ends_.feed(ChunkProgress{worker, step.slot, c.tid, c.att, tokens, version});
      } else {
        c.ended = true;
        c.end = ChunkEnd::kDataError;
        c.why = sound.message();
      }
    }
    if (!c.ended) continue;
    if (ends_.expects(on, c.tid, c.att)) {
      samples_.Get(c.tid, c.att).tokens.finish = up::FinishOf(c.end);
      // It holds nothing of it, or something else.
      if (scheduler::event::LosesWork(c.end)) samples_.Forgotten(c.tid);
    }
    ends_.feed(ChunkFinished{worker, step.slot, c.tid, c.att, c.end, std::move(c.why)});
  }
}

// Tokens that are here are looked at now, and those in a log when they are read.
Status TokenIntake::Sound(const WorkerRef& worker, const StoredSample& record,
                          const up::ChunkDelta& c) const {
  if (!c.logged.valid() && !record.logged.valid()) return ends_.check(c.tokens);
  const bool begun_here = record.tokens.size() > 0 && !record.logged.valid();
  const bool sampled =
      c.tokens.kind == sample::SegmentKind::kTokens || c.tokens.kind == sample::SegmentKind::kFragment;
  if (!c.logged.valid() || begun_here || !c.tokens.outlined || !sampled)
    return InvalidArgument("some of its tokens are in a token log and some are not");
  if (storage::WriterOf(c.logged.file) != storage::WriterOf(storage::FirstFileOf(worker.inc)))
    return InvalidArgument("its tokens are said to be in the log of another worker");
  if (c.tokens.size() > kMostTogether || c.tokens.versions.empty())
    return InvalidArgument("an outline of more tokens than a message may name, or of no version");
  return c.tokens.CheckShape();
}

// Whether the delta begins where the record of its attempt ends. One that begins earlier is here already;
// before one that begins later something is missing.
bool TokenIntake::Continues(const SlotRef& on, const up::ChunkDelta& delta) {
  StoredSample& record = samples_.Get(delta.tid, delta.att);
  if (delta.from > record.tokens.size()) AskFor(on, record);
  return delta.from == record.tokens.size();
}

// Once for each gap: the answer is every token behind it, and the deltas that arrive before the answer are
// behind the same gap.
void TokenIntake::AskFor(const SlotRef& on, StoredSample& record) {
  const std::pair gap(on, record.tokens.size());
  if (std::exchange(record.asked, gap) == gap) return;
  ends_.ask(on.worker, down::Resend{on.slot, record.tokens.tid, record.tokens.att, gap.second});
}

void TokenIntake::Adopt(const WorkerRef& worker, const std::vector<scheduler::event::OfferedChunk>& offered) {
  for (const scheduler::event::OfferedChunk& c : offered) {
    const SlotRef on{worker, c.slot};
    if (ends_.expects(on, c.tid, c.att)) AskFor(on, samples_.Get(c.tid, c.att));
  }
}

scheduler::event::WorkerJoined JoinedBy(Attachments::Arrived arrived, std::string name) {
  return {.worker = {arrived.place},
          .process = arrived.hello.process,
          .name = std::move(name),
          .kind = arrived.hello.kind,
          .restored_inc = arrived.hello.inc,
          .slots = std::move(arrived.offer.slots),
          .chunks = std::move(arrived.offer.chunks),
          .host = std::string(HostOf(arrived.hello.weights_address))};
}

}  // namespace tidepool::workers
