#include "workers/cli/measured_run.h"

#include <algorithm>
#include <vector>

#include "core/base/real_file_system.h"
#include "core/storage/journal.h"
#include "workers/cli/run_lookup.h"

namespace tidepool::workers {
namespace {

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

StatusOr<MeasuredRun> MeasureRun(const std::string& run) {
  TP_ASSIGN_OR_RETURN(const RunPlace place, FindRun(run));
  RealFileSystem fs;
  TP_ASSIGN_OR_RETURN(const storage::JournalContents journal, storage::ReadJournal(fs, place.journal));
  MeasuredRun out;
  std::map<SampleId, double> ended;
  std::map<SlotId, double> begun, granted;
  std::vector<double> rewards, releases, grants, groups, publishes;
  double prompts = 0;
  double committed = -1;  // when, of a version that is not published yet; -1: there is none
  double moved = -1;      // when a move was done; -1: a step began since
  std::vector<SlotId> moving, trained;
  for (const JournalEntry& entry : journal.entries) {
    const double now = static_cast<double>(entry.mono_ns) * 1e-9;
    if (const auto* x = std::get_if<record::Join>(&entry.record)) {
      out.join_s.try_emplace(x->worker.worker, now);
    } else if (const auto* x = std::get_if<record::End>(&entry.record)) {
      ended[x->tid] = now;
    } else if (const auto* x = std::get_if<record::Enq>(&entry.record)) {
      prompts += static_cast<double>(x->prompt_len);
      ++out.samples;
      if (x->tid.issue == 0) out.lengths[x->tid] = x->response_len;
    } else if (const auto* x = std::get_if<record::Graded>(&entry.record)) {
      const auto end = ended.find(x->tid);
      if (end != ended.end()) rewards.push_back(now - end->second);
    } else if (const auto* x = std::get_if<record::TransitionBegin>(&entry.record)) {
      moving.clear();
      for (const record::SlotPlan& s : x->slots) {
        if (s.from == Role::kNone) continue;
        moving.push_back(s.slot);
        begun[s.slot] = now;
        out.moves += 1;
      }
    } else if (const auto* x = std::get_if<record::Release>(&entry.record)) {
      const auto b = begun.find(x->slot);
      if (b != begun.end()) releases.push_back(now - b->second);
    } else if (const auto* x = std::get_if<record::Grant>(&entry.record)) {
      granted[x->slot] = now;
    } else if (std::holds_alternative<record::TransitionDone>(entry.record)) {
      for (const SlotId slot : moving) {
        if (const auto g = granted.find(slot); g != granted.end()) grants.push_back(now - g->second);
      }
      moved = now;
    } else if (const auto* x = std::get_if<record::StepBegin>(&entry.record)) {
      std::vector<SlotId> members;
      for (const record::SlotPlan& s : x->members) members.push_back(s.slot);
      if (members.size() > 1 && members != trained && moved >= 0) groups.push_back(now - moved);
      trained = std::move(members);
      moved = -1;
    } else if (std::holds_alternative<record::StepCommit>(entry.record)) {
      committed = now;
    } else if (std::holds_alternative<record::Publish>(entry.record) && committed >= 0) {
      publishes.push_back(now - committed);
      committed = -1;
    }
  }
  if (out.samples == 0)
    return FailedPrecondition(run +
                              ": no sample was finished in it, so it has no answer lengths to take over");
  out.prompt_tokens = prompts / static_cast<double>(out.samples);
  out.reward_s = Median(std::move(rewards));
  // Half of the slots drain an engine step first, actors do not: the quickest tenth is what a release itself
  // takes.
  std::sort(releases.begin(), releases.end());
  out.release_s = releases.empty() ? 0 : releases[releases.size() / 10];
  out.grant_s = Median(std::move(grants));
  out.group_s = Median(std::move(groups));
  out.publish_s = Median(std::move(publishes));
  return out;
}

}  // namespace tidepool::workers
