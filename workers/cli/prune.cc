#include "workers/cli/prune.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <utility>

#include "core/base/real_file_system.h"
#include "core/config/load.h"
#include "core/model/adapter_files.h"
#include "core/storage/checkpoint.h"
#include "core/storage/disk_use.h"
#include "core/storage/journal.h"
#include "core/storage/payload.h"
#include "core/storage/publish_folder.h"
#include "core/storage/run_directory.h"
#include "scheduler/run_state.h"
#include "workers/controller/fragments.h"

namespace tidepool::workers {
namespace {

constexpr const char* kGoing = ".removed.tmp";  // behind the name of a folder that is being removed

// The files of payload/ that may be read again: of samples that are not trained yet, and of those that a
// restore to a checkpoint which stays would train again (scheduler::Controller::PayloadFiles).
storage::FirstFiles NeededFiles(const scheduler::RunState& state, StepNumber oldest_kept) {
  storage::FirstFiles needed;
  const auto look = [&](const std::map<scheduler::GroupKey, scheduler::Group>& groups) {
    for (const auto& [key, group] : groups) {
      for (const scheduler::Sample& s : group.samples) {
        const bool stored =
            s.phase == scheduler::SamplePhase::kAwaiting || s.phase == scheduler::SamplePhase::kReady;
        if (stored && s.enq.payload_file >= 0) storage::AddFile(needed, s.enq.payload_file);
      }
    }
  };
  look(state.ledger().groups());
  for (const auto& [step, groups] : state.ledger().trained()) {
    if (step > oldest_kept) look(groups);
  }
  return needed;
}

class Planner {
 public:
  Planner(const PruneOptions& options, PrunePlan& plan) : options_(options), plan_(plan) {}

  // `dir`: a run folder; `below`: its path in the one that was named ("" or "warm_start/").
  Status Add(const std::string& dir, const std::string& below) {
    const storage::RunPaths paths(dir);
    PrunePlan::Deletions d{.dir = dir};
    scheduler::RunState state;
    std::vector<record::Enq> stored;
    if (real_.Exists(paths.journal())) {
      const auto summary =
          storage::ScanJournal(real_, paths.journal(), "", Lsn{0}, [&](JournalEntry&& entry) {
            if (auto* s = std::get_if<record::Snapshot>(&entry.record)) s->state_digest = 0;  // for `check`
            if (const auto* enq = std::get_if<record::Enq>(&entry.record); enq != nullptr && options_.payload)
              stored.push_back(*enq);
            return state.Apply(entry.record);
          });
      if (!summary.ok() && summary.status().code() != StatusCode::kNotFound) return summary.status();
    }
    if (options_.final_only) {
      if (!state.end_run() || state.end_run()->finished != 1)
        return FailedPrecondition(dir +
                                  ": it is not finished, --final-only would leave nothing to go on from; "
                                  "leave --final-only out");
      if (!real_.Exists(JoinPath(paths.final_model(), "config.json")) &&
          !real_.Exists(JoinPath(paths.final_model(), model::kAdapterConfigFile)))
        return FailedPrecondition(dir +
                                  ": it has no final/, --final-only would leave no model of it; leave "
                                  "--final-only out");
    }
    TP_RETURN_IF_ERROR(AddCheckpoints(paths, below, state, d));
    TP_RETURN_IF_ERROR(AddLeftovers(paths, below, state, d));
    if (options_.payload) TP_RETURN_IF_ERROR(AddPayload(paths, below, state, stored));
    if (options_.samples && real_.Exists(paths.samples()))
      plan_.items.push_back({.path = below + "samples", .what = "samples for people"});
    plan_.deletions.push_back(std::move(d));
    return OkStatus();
  }

 private:
  Status AddCheckpoints(const storage::RunPaths& paths, const std::string& below,
                        const scheduler::RunState& state, PrunePlan::Deletions& d) {
    const auto& committed = state.checkpoints();
    const int64_t keep = options_.final_only ? 0 : std::max<int64_t>(options_.keep, 1);
    auto excess = static_cast<int64_t>(committed.size()) - keep;
    std::map<std::string, std::string> known;  // name of a folder -> what it is; empty: it stays
    for (const auto& [id, c] : committed) {
      const std::string name = storage::CheckpointName(c.step);
      if (excess-- > 0) {
        d.ids.push_back(id);
        known[name] = "checkpoint of step " + std::to_string(c.step.value);
        continue;
      }
      known[name].clear();
      d.verify = JoinPath(paths.checkpoints(), name);
      d.digest = c.manifest_digest;
      if (oldest_kept_.value < 0 || c.step < oldest_kept_) oldest_kept_ = c.step;
      plan_.stays.push_back(below + "checkpoints/" + name);
    }
    if (!real_.Exists(paths.checkpoints())) return OkStatus();
    TP_ASSIGN_OR_RETURN(const auto names, real_.List(paths.checkpoints()));
    for (const std::string& name : names) {
      std::string what = "left by a try that did not end";
      const auto it = known.find(name);
      if (it != known.end()) {
        if (it->second.empty()) continue;
        what = it->second;
      } else if (name.ends_with(".old")) {
        // Moved aside for a replacement that never got its name: it comes back as a checkpoint.
        d.half_tidy = true;
        const std::string place = name.substr(0, name.size() - 4);
        if (!real_.Exists(JoinPath(paths.checkpoints(), place))) continue;
      } else if (!name.ends_with(".tmp") && real_.Exists(paths.summary()) && !state.end_run()) {
        plan_.stays.push_back(below + "checkpoints/" + name +
                              " (the journal does not name it, but lacks the end of the run)");
        continue;
      } else if (!name.ends_with(".tmp")) {
        what = "checkpoint that the journal does not name, or not any more";
      }
      plan_.items.push_back(
          {.path = below + "checkpoints/" + name, .what = what, .by_record = it != known.end()});
    }
    return OkStatus();
  }

  Status AddLeftovers(const storage::RunPaths& paths, const std::string& below,
                      const scheduler::RunState& state, PrunePlan::Deletions& d) {
    TP_ASSIGN_OR_RETURN(const auto names, real_.List(paths.dir));
    for (const std::string& name : names) {
      if (name == "final.old" || name == "best.old") {  // as those of checkpoints/
        d.half_tidy = true;
        if (real_.Exists(JoinPath(paths.dir, name.substr(0, name.size() - 4))))
          plan_.items.push_back({.path = below + name, .what = "left by a try that did not end"});
      }
      if (name.starts_with("final.tmp-") || name.starts_with("best.tmp-") || name.ends_with(kGoing))
        plan_.items.push_back({.path = below + name, .what = "left by a try that did not end"});
      if (name == "best") {
        if (options_.final_only && !options_.keep_best) {
          plan_.items.push_back({.path = below + name, .what = "the best model"});
        } else {
          plan_.stays.push_back(below + name);
        }
      }
      if (name != "offload" && name != "tokens") continue;
      // Workers that outlived a controller which was killed may hold it (cluster.reattach_grace_s).
      if (state.end_run()) {
        plan_.items.push_back({.path = below + name,
                               .what = name == "tokens" ? "tokens of samples that nobody goes on with"
                                                        : "parked state of trainers that are gone"});
      } else {
        plan_.stays.push_back(below + name +
                              " (the run ended without a last word: its workers may still hold it)");
      }
    }
    return OkStatus();
  }

  Status AddPayload(const storage::RunPaths& paths, const std::string& below,
                    const scheduler::RunState& state, const std::vector<record::Enq>& stored) {
    if (!real_.Exists(paths.payload())) return OkStatus();
    if (options_.final_only) {
      plan_.items.push_back({.path = below + "payload", .what = "trajectories", .by_record = true});
      return OkStatus();
    }
    // As the run does it (ControllerProcess::NeededOfPayload): the newest file always stays.
    storage::FirstFiles needed = NeededFiles(state, oldest_kept_);
    for (const record::Enq& enq : stored) newest_file_ = std::max(newest_file_, enq.payload_file);
    if (newest_file_ >= 0) storage::AddFile(needed, newest_file_);
    TP_ASSIGN_OR_RETURN(const config::LoadedConfig loaded, config::ReadCheckedConfig(paths.config()));
    if (loaded.config.model.is_policy()) {
      TP_ASSIGN_OR_RETURN(const auto fragments, Fragments::Create(loaded.config));
      for (const record::Enq& enq : stored) fragments->Remember(enq);
      for (const int64_t file : fragments->PayloadFiles()) storage::AddFile(needed, file);
    }
    TP_ASSIGN_OR_RETURN(const auto names, real_.List(paths.payload()));
    if (!state.end_run()) {  // workers that outlived their controller go on writing into their newest file
      std::map<int64_t, int64_t> newest;
      for (const std::string& name : names) {
        const int64_t number = std::atoll(name.c_str());
        int64_t& of = newest[storage::WriterOf(number)];
        if (name.ends_with(".tpp")) of = std::max(of, number);
      }
      for (const auto& [writer, number] : newest) storage::AddFile(needed, number);
    }
    for (const std::string& name : names) {
      const int64_t number = std::atoll(name.c_str());
      const auto first = needed.find(storage::WriterOf(number));
      if (name.ends_with(".tpp") && (first == needed.end() || number < first->second))
        plan_.items.push_back({.path = below + "payload/" + name,
                               .what = "trajectories that no kept checkpoint needs",
                               .by_record = true});
    }
    return OkStatus();
  }

  const PruneOptions& options_;
  PrunePlan& plan_;
  RealFileSystem real_;
  StepNumber oldest_kept_;
  int64_t newest_file_ = -1;
};

}  // namespace

int64_t PrunePlan::bytes() const {
  int64_t sum = 0;
  for (const PrunedItem& item : items) sum += item.bytes;
  return sum;
}

StatusOr<std::unique_ptr<Pruner>> Pruner::Open(const std::string& run_dir, const PruneOptions& options) {
  RealFileSystem real;
  std::unique_ptr<Pruner> pruner(new Pruner());
  PrunePlan& plan = pruner->plan_;
  plan.run = run_dir;
  // Who only looks may do so where nothing can be written; whoever is at work is still named.
  if (!options.only_look || RealFileSystem::IsLocked(storage::RunPaths(run_dir).lock())) {
    TP_ASSIGN_OR_RETURN(pruner->lock_, storage::LockRun(real, run_dir, "prune"));
  }
  const std::string warm = storage::RunPaths(run_dir).warm_start();
  if (real.Exists(storage::RunPaths(warm).config()))
    TP_RETURN_IF_ERROR(Planner(options, plan).Add(warm, "warm_start/"));
  TP_RETURN_IF_ERROR(Planner(options, plan).Add(run_dir, ""));
  std::vector<std::string> paths;
  for (const PrunedItem& item : plan.items) paths.push_back(JoinPath(run_dir, item.path));
  const std::vector<int64_t> freed = storage::FreedBytes(paths);
  for (size_t i = 0; i < freed.size(); ++i) {
    plan.items[i].bytes = freed[i];
    if (!real.Exists(JoinPath(paths[i], storage::kStorePlaceName))) continue;
    plan.items[i].bytes += storage::CheckpointBytes(real, paths[i]);
    plan.items[i].what += ", in its store";
  }
  return pruner;
}

Status Pruner::Remove() {
  RealFileSystem real;
  for (const PrunePlan::Deletions& d : plan_.deletions) {
    if (d.ids.empty() || d.verify.empty()) continue;
    const Status whole = storage::VerifyCheckpoint(real, d.verify, d.digest).status();
    if (!whole.ok())
      return DataLoss("nothing was removed: the newest checkpoint does not verify (" + whole.message() +
                      "); `tidepool train RUN --resume` goes on from an older one");
  }
  for (const PrunePlan::Deletions& d : plan_.deletions) {
    if (!d.half_tidy) continue;
    const storage::RunPaths paths(d.dir);
    TP_RETURN_IF_ERROR(storage::RemoveLeftovers(real, paths.checkpoints()).status());
    for (const std::string& model : {paths.final_model(), paths.best_model()})
      TP_RETURN_IF_ERROR(storage::FinishPublish(real, model));
  }
  TP_RETURN_IF_ERROR(RemoveItems(/*by_record=*/false));
  for (const PrunePlan::Deletions& d : plan_.deletions) {
    if (d.ids.empty()) continue;
    Status recorded = Record(d);
    const std::string report = storage::RunPaths(plan_.run).report();
    if (recorded.code() == StatusCode::kResourceExhausted && real.Exists(report)) {
      const int64_t bytes = storage::DiskBytes(report);
      TP_RETURN_IF_ERROR(real.RemoveFile(report));
      plan_.items.push_back(
          {.path = "report.html", .what = "`tidepool report` makes it again", .bytes = bytes});
      recorded = Record(d);
    }
    if (recorded.code() == StatusCode::kResourceExhausted) {
      return Status(recorded.code(),
                    recorded.message() +
                        "; the journal has to say first which checkpoints go: remove a few KiB on this disk, "
                        "logs/ or trace/ of the run for example, and prune again");
    }
    TP_RETURN_IF_ERROR(recorded);
  }
  return RemoveItems(/*by_record=*/true);
}

// First the record, as the run does it: a folder without one is no checkpoint, a record without its folder is
// a violation of C2.
Status Pruner::Record(const PrunePlan::Deletions& d) {
  RealFileSystem real;
  const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::system_clock::now().time_since_epoch());
  TP_ASSIGN_OR_RETURN(const auto journal,
                      storage::JournalWriter::Open(real, storage::RunPaths(d.dir).journal(), "",
                                                   {.begun_unix_ms = now.count()}));
  for (const int64_t id : d.ids) journal->Append(record::CheckpointDelete{id}, 0);
  return journal->Close();
}

Status Pruner::RemoveItems(bool by_record) const {
  RealFileSystem real;
  for (const PrunedItem& item : plan_.items) {
    if (item.by_record != by_record) continue;
    const std::string path = JoinPath(plan_.run, item.path);
    TP_ASSIGN_OR_RETURN(const FileInfo info, real.Stat(path));
    // The name of a folder goes first, so that what is half removed is never taken for whole.
    const std::string going = info.is_directory && !path.ends_with(".tmp") ? path + kGoing : path;
    if (going != path) {
      TP_RETURN_IF_ERROR(storage::RemoveFolder(real, going));
      TP_RETURN_IF_ERROR(real.Rename(path, going));
      TP_RETURN_IF_ERROR(real.SyncDir(ParentPath(path)));
    }
    TP_RETURN_IF_ERROR(storage::RemoveFolder(real, going));
    TP_RETURN_IF_ERROR(real.SyncDir(ParentPath(path)));
  }
  return OkStatus();
}

}  // namespace tidepool::workers
