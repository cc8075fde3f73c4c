#pragma once
// Samples whose tokens are in the token logs of the workers that make them (core/storage/token_log.h): the
// controller has outlines of them and where their newest tokens are. A worker that goes on with a sample of
// another one, an environment that answers and who grades what has no payload read there what they need. The
// worker also writes the payload, when the sample has ended; that of an episode, whose turns several workers
// have written, is written by the device that said its last words. What the controller does about these
// samples is here: it gives their chunks out, reads tokens for workers that cannot, waits for the payload,
// and writes it itself where the worker is gone or says nothing. The controller process and the simulated
// network run this very class. Owned by the controller's loop.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/ids.h"
#include "core/base/journal_records.h"
#include "core/base/status.h"
#include "core/base/time.h"
#include "core/storage/payload.h"
#include "core/storage/token_log.h"
#include "scheduler/commands.h"
#include "scheduler/events.h"
#include "workers/controller/sample_store.h"
#include "workers/controller/turns.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

// An attempt that is whole in token logs.
struct LoggedAttempt {
  SampleId tid;
  int32_t att = 0;
  sample::Finish finish = sample::Finish::kEos;
  std::shared_ptr<const sample::Segment> prompt;
  storage::TokenPlace newest;
  std::vector<sample::Segment> outline;
};
// The attempt with the tokens that were read. kDataLoss: they are not those of the outline.
StatusOr<sample::Trajectory> Whole(const LoggedAttempt& a, StatusOr<storage::TokenChain> chain);

class LoggedSamples {
 public:
  using Chain = StatusOr<storage::TokenChain>;
  struct Ends {
    std::function<bool(const SlotRef&, const SampleId&, int32_t att)> expects;  // Controller::Expects
    // Reads it and calls `then` on the loop, later.
    std::function<void(const LoggedAttempt&, std::function<void(Chain)> then)> read;
    std::function<void(const WorkerRef&, down::StartChunk)> send;
    // kInvalidArgument: neither an engine nor an environment can have made these.
    std::function<Status(const sample::Trajectory&)> check;
    std::function<void(const WorkerRef&, down::Store)> ask_to_store;
    // Writes the payload here: Stored(tid, att) is called when that is known, or the scheduler told
    // TokensLost.
    std::function<void(LoggedAttempt)> store;
    std::function<void(const scheduler::command::Grade&)> grade;  // the payload can be read
    // What token logs have of the sample is all that there is of it; its grader reads it there.
    std::function<void(const scheduler::command::Grade&, const StoredSample&)> grade_logged;
    // Its grader does not read, or, `unread`, was asked to and could not: the controller reads, and sends the
    // text; says Blind of one that could not where it could.
    std::function<void(const scheduler::command::Grade&, bool unread)> grade_here;
    std::function<void(const WorkerRef&, down::EnvStep)> play;
    std::function<void(scheduler::Event)> feed;
    std::function<void(const std::string&)> warn;
    std::function<void()> prune;  // token files: a worker has begun a new one
  };
  LoggedSamples(SampleStore& samples, bool episodes, Ends ends)
      : samples_(samples), episodes_(episodes), ends_(std::move(ends)) {}

  // --- workers
  // Of every record, also those of earlier lives.
  void Remember(const JournalRecord& r);
  // No process of an earlier life of the run is left.
  void BeginAlone() { alive_.clear(); }
  // It sees the run's folder. device: it writes payloads, too.
  void Add(const WorkerRef& worker, bool device) {
    sees_.insert(worker);
    if (device) writers_.insert(worker);
  }
  void Remove(const WorkerRef& worker);  // what it said of that is over
  [[nodiscard]] bool Sees(const WorkerRef& worker) const { return sees_.contains(worker); }
  // It could not read what can be read here: for a while it is sent what it works on.
  void Blind(const WorkerRef& worker) { blind_[worker] = now_ + kBlind; }
  void Note(const WorkerRef& worker, const up::StepTokens& tokens);  // in which files they are
  void Note(const WorkerRef& worker, const storage::TokenPlace& place);
  void Take(const WorkerRef& worker, const up::CannotRead& what);
  void Take(const WorkerRef& worker, const up::Stored& stored);
  // What takes too long at its worker is done here.
  void Tick(TimePoint now);

  // --- what the scheduler wants
  // requires the sample's row in the store
  void Start(const scheduler::command::StartChunk& c, bool greedy);
  // A chunk that waits for its tokens to be read has ended; its worker has heard nothing of it.
  void Cancel(const scheduler::command::CancelChunk& c);
  // Has the turn played by a worker that reads the actions in the logs; where it has said that it cannot,
  // they are brought here first. False: they are here. requires the sample's row in the store
  bool Play(const scheduler::command::EnvStep& c, Turns& turns);
  // A reply. True: its worker could not read; the turn goes there again, with the actions, and the reply is
  // none.
  bool Again(const WorkerRef& worker, const up::EnvStepped& reply, Turns& turns);
  // False: it is not logged.
  bool Store(const scheduler::command::StorePayload& c, TimePoint now);
  // The grade waits until the payload can be read, or is given out here, as there will be none. False: not
  // so.
  bool Grade(const scheduler::command::Grade& c);
  // Whether its grader reads the payload itself; if so, Again takes its answer.
  bool Reads(const scheduler::command::Grade& c);
  // True: it could not read; it is sent the text, and the verdict is none.
  bool Again(const WorkerRef& worker, const up::Graded& verdict);
  // The payload of the attempt is, by whoever wrote it, and the scheduler knows.
  void Stored(const SampleId& tid, int32_t att);
  void Forget(const SampleId& tid);

  // --- files that are to stay
  void AddPayloadFiles(storage::FirstFiles& needed) const;
  struct TokenFiles {  // as DeleteTokenFiles
    std::set<int64_t> used;
    std::map<int64_t, int64_t> writing;
    int64_t newest_writer = 0;
  };
  // The newest that may have written by now.
  [[nodiscard]] int64_t newest_writer() const { return newest_writer_; }
  [[nodiscard]] TokenFiles InUse() const;

  static constexpr Duration kPatience = std::chrono::seconds(5);  // with the disk of a worker
  static constexpr Duration kBlind = std::chrono::seconds(60);    // then a worker's disk is tried again

 private:
  struct Waiting {
    int32_t att = 0;
    WorkerRef writer;                // who is to write it,
    TimePoint since;                 // since then
    std::set<WorkerRef> tried = {};  // who was to, and has not
    bool here = false;               // the controller writes it
  };
  void Send(const scheduler::command::StartChunk& c, bool greedy, bool logs,
            const std::vector<sample::Segment>* read);
  // It is not written by who was to: by who has worked on it last, or here.
  void StoreElsewhere(const SampleId& tid, Waiting& waiting);
  [[nodiscard]] WorkerRef NextWriter(const StoredSample& s, const std::set<WorkerRef>& tried) const;
  void BringAnswer(const scheduler::command::Grade& c, bool unread);
  void FeedStored(const SampleId& tid);
  bool BringHere(const LoggedAttempt& a, Chain chain);
  void BringActions(const scheduler::command::EnvStep& c, Turns& turns);
  [[nodiscard]] bool IsBlind(const WorkerRef& worker) const {
    const auto until = blind_.find(worker);
    return until != blind_.end() && now_ < until->second;
  }
  [[nodiscard]] LoggedAttempt AttemptOf(const StoredSample& s) const;

  SampleStore& samples_;
  const bool episodes_;
  const Ends ends_;
  std::set<WorkerRef> sees_, writers_;  // see the run's folder; devices of these
  TimePoint now_;
  std::map<Incarnation, WorkerRef> alive_;                     // writers that joined and were not fenced
  std::map<int64_t, int64_t> newest_payload_, newest_tokens_;  // files that workers named, by WriterOf
  bool rotated_ = false;                                       // one of newest_tokens_ is not the first
  int64_t newest_writer_ = 0;
  int64_t reads_ = 0;
  std::map<int64_t, scheduler::command::StartChunk> reading_;  // that wait for it, by the count of reads
  std::map<SampleId, Waiting> storing_;                        // the scheduler wants their payload
  std::map<SampleId, scheduler::command::Grade> grades_;
  std::map<SampleId, scheduler::command::EnvStep> played_;  // turns whose workers read the actions themselves
  std::map<SampleId, scheduler::command::Grade> read_by_graders_;
  // Side workers that could not, when they could be read here, and until when they are not asked to.
  std::map<WorkerRef, TimePoint> blind_;
};

}  // namespace tidepool::workers
