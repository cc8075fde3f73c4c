#pragma once
// A sample's way from a data row to the trainer: rows are admitted and read, samples issued, their tokens
// stored, their answers graded (or their episodes played), and what cannot be trained is dropped.

#include <array>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "scheduler/dispatcher.h"
#include "scheduler/episodes.h"
#include "scheduler/events.h"
#include "scheduler/flat_table.h"
#include "scheduler/grading.h"
#include "scheduler/infra_budget.h"
#include "scheduler/ledger.h"
#include "scheduler/machines/machine.h"

namespace tidepool::scheduler {

class SampleFlow : public Machine {
 public:
  explicit SampleFlow(Machines& all);

  void On(const event::TokensLost& e);
  void On(const event::RowReady& e);
  void On(const event::RowInvalid& e);
  void On(const event::PayloadStored& e);
  void On(const event::Graded& e);
  void On(const event::EnvStepped& e);

  void Start() { next_gid_ = state_.ledger().next_gid(); }
  void Resume();        // a new life of the run: what the journal left open goes on
  void ResumeRows();    // once all workers of the last life are back or given up
  void Admit();         // begins new rows
  void ReleaseAhead();  // drops samples that wait for a step that cannot come
  void Assign();        // gives work to graders and environments
  void Tick();          // deadlines of episodes

  void TurnEnded(const Request& r);                      // the policy has said something
  void SampleEnded(const Request& r, EndStatus status);  // it has said everything
  void BeginEpisode(const Request& r);  // of an evaluation: its prompt comes from its own reset
  void Withdraw(const SampleId& tid);   // nothing more is wanted of it
  void DropPoison(const SampleId& tid, const std::string& why);
  void DropSample(const SampleId& tid, DropReason reason);
  void DropGroup(const GroupKey& key, DropReason reason);
  void DropLeftovers();                  // the run ends
  void DiscardTrained(StepNumber step);  // a checkpoint of this step is committed
  // A sample could not be generated, or failed at each try: it counts as one that cannot be graded.
  // Returns what that means for the run, in words.
  std::string CountUnplayable(const std::string& why);
  void Expire();         // at a publication: groups that can never be trained again
  void RestartUndone();  // after a restore

  void AddSideWorker(const WorkerRef& ref);  // a grader, or a worker that plays environments
  void WorkerLost(const WorkerRef& ref);
  // A worker died by itself. The run ends where one plug-in is to blame for it again and again.
  void CountDeath(const event::WorkerLost& e);
  std::vector<SampleId> Blame(WorkerId worker);  // it died: samples that two deaths are blamed on
  [[nodiscard]] std::vector<WorkerRef> StuckGraders() const { return grading_.Stuck(now_); }

  [[nodiscard]] const Episodes& episodes() const { return episodes_; }
  [[nodiscard]] const Grading& grading() const { return grading_; }
  // "rows_being_read=3; ...": for the watchdog. Empty: nothing is under way.
  [[nodiscard]] std::string Describe() const;

 private:
  struct Preparing {  // a row that is being read
    GroupId gid;
    bool again = false;  // the group exists (controller restart): only its prompt is missing
    std::vector<event::PayloadStored> stored;  // sft: came before RowReady
  };
  // By group. How many of them are new groups is asked for at every event.
  class PreparingRows {
   public:
    void Add(const GroupKey& key, const Preparing& p) {
      Take(key);
      fresh_ += p.again ? 0 : 1;
      rows_[key] = p;
    }
    [[nodiscard]] Preparing* Find(const GroupKey& key) {
      const auto it = rows_.find(key);
      return it == rows_.end() ? nullptr : &it->second;
    }
    std::optional<Preparing> Take(const GroupKey& key) {
      auto row = rows_.extract(key);
      if (row.empty()) return std::nullopt;
      fresh_ -= row.mapped().again ? 0 : 1;
      return std::move(row.mapped());
    }
    [[nodiscard]] bool contains(const GroupKey& key) const { return rows_.contains(key); }
    [[nodiscard]] size_t size() const { return rows_.size(); }
    [[nodiscard]] bool empty() const { return rows_.empty(); }
    [[nodiscard]] int64_t fresh() const { return fresh_; }

   private:
    std::map<GroupKey, Preparing> rows_;
    int64_t fresh_ = 0;
  };
  struct Finished {  // a sample whose attempt ended, until its payload is durable
    int32_t att = 0;
    Version v_min, v_max;
    int64_t generated = 0;
    std::optional<event::Graded> graded;
  };

  void PrepareRow(const GroupKey& key, GroupId gid);
  void Restart(const SampleId& tid);  // as its next attempt
  void AddRequest(const Group& g, size_t k);
  void DropRow(const GroupKey& key, DropReason reason, const std::string& why);
  void RowStored(const event::PayloadStored& e);
  void RowStepped(const event::EnvStepped& e);
  void EpisodeEnded(const Request& r, const event::EnvStepped& e, EndStatus status);
  void EpisodeLost(const Request& r, GradeOutcome outcome, const std::string& why);
  void EpisodeGivenUp(const SampleId& tid);
  void Grade(const event::Graded& graded);
  void TakeGrade(const SampleId& tid, const event::Graded& e);
  void Regrade(const SampleId& tid, int32_t att);
  void CountOutcome(GradeOutcome outcome, const std::string& why);
  void EndIfNothingPasses(const std::string& why);
  void EndIfTooManyFail();
  [[nodiscard]] InfraBudget Budget() const;
  [[nodiscard]] int64_t CountOf(GradeOutcome outcome) const {
    return outcome_counts_[static_cast<size_t>(outcome)];
  }
  [[nodiscard]] int64_t UngradableMost() const;  // in a row
  [[nodiscard]] std::string LostShare(GradeOutcome outcome) const;
  void Store(const Request& r, EndStatus status, std::optional<event::Graded> graded);
  void CheckGroup(const GroupKey& key, DropReason last);
  [[nodiscard]] bool Expired(const Group& g) const;

  PreparingRows preparing_;
  int64_t next_gid_ = 0;
  bool rows_resumed_ = false;
  Grading grading_;
  Episodes episodes_;
  std::map<SampleId, Finished> finishing_;
  std::map<SampleId, int64_t> lost_;  // how often the tokens of one that has no payload yet could not be read
  std::string blamed_;                // the plug-in that the last deaths of workers are blamed on
  int64_t deaths_ = 0;                // of these, since something was graded or played
  FlatTable<SampleId, std::monostate> tokens_kept_;  // the caller still holds them in memory
  std::string last_infra_;                           // why a sample was lost to infrastructure, the last time
  std::deque<GradeOutcome> outcomes_;                // of the last samples, as many as 20 steps have
  std::array<int64_t, 3> outcome_counts_{};          // of these, by GradeOutcome
  bool any_passed_ = false;                          // a sample of this life got its reward
  int64_t ungradable_ = 0;                           // samples in a row whose rows were at fault
  bool infra_alarmed_ = false;
};

}  // namespace tidepool::scheduler
