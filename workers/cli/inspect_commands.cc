// Commands that look at a run and change nothing: status, report, check.
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/base/real_file_system.h"
#include "core/observe/report.h"
#include "core/storage/checkpoint.h"
#include "core/storage/journal.h"
#include "core/storage/payload.h"
#include "core/storage/run_directory.h"
#include "scheduler/checker.h"
#include "scheduler/run_state.h"
#include "workers/cli/command.h"
#include "workers/cli/journal_command.h"
#include "workers/cli/run_lookup.h"
#include "workers/cli/run_status.h"

namespace tidepool::workers {
namespace {

using Json = nlohmann::ordered_json;

struct InspectOptions {
  std::string run, token_file;
  bool json = false;
  bool healthy = false;
};

// Bytes that are no UTF-8 become U+FFFD. indent -1: one line.
std::string Text(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

void Print(const Json& json, int indent = 1) { std::printf("%s\n", Text(json, indent).c_str()); }

// --- status and report ---

void ShowStatus(CommandContext& context, const InspectOptions& options) {
  const auto source =
      SourceOf(options.run, options.token_file, options.healthy ? ReadJournal::kNever : ReadJournal::kAlways);
  if (!source.ok()) return Fail(context, source.status());
  const auto status = (*source)();
  if (!status.ok()) return Fail(context, status.status());
  if (options.healthy) {
    if (!IsHealthy(*status)) context.exit_code = 3;
    std::printf("%s\n", context.exit_code == 0 ? "healthy" : "no controller has said for 30 s what it does");
  } else if (options.json) {
    Print(*status);
  } else {
    std::printf("%s", DescribeStatus(*status).c_str());
  }
}

void Report(CommandContext& context, const InspectOptions& options) {
  const auto dir = FindRunDirectory(options.run, "a report shows metrics and samples");
  if (!dir.ok()) return Fail(context, dir.status());
  const Status written = observe::WriteReport(*dir);
  if (!written.ok()) return Fail(context, written);
  std::printf("%s\n", storage::RunPaths(*dir).report().c_str());
}

// --- check ---

// What scheduler/checker.h proves; docs/journal.md says each in a sentence.
constexpr const char* kPredicates = "Q1-Q10, Q12-Q14, G1-G9, W1-W7, C1-C3, C5-C8, L3, L5";

// One journal folder. `readable`: the predicates could be tried at all.
struct JournalVerdict {
  std::string path;
  bool readable = false;
  Status error;  // why it is not
  storage::JournalSummary summary;
  scheduler::CheckResult result;
  scheduler::RunState state;  // the fold, as a controller that is started again would have it
  std::string note;           // what could not be looked at
  // Rows of STEP_COMMIT: what their ENQ names, and the record that trained them.
  struct Trained {
    Lsn lsn;
    StepNumber step;  // invalid: it was undone
    record::Enq enq;
  };
  std::vector<Trained> rows;
  int64_t rows_proven = 0, rows_pruned = 0;

  void Violates(const char* predicate, Lsn lsn, const std::string& why) {
    result.ok = false;
    result.predicate = predicate;
    result.lsn = lsn;
    result.why = why;
  }
  void Note(const std::string& what) { note += (note.empty() ? "" : "; ") + what; }
};

// Notes which payload each row that was trained came from.
class RowCollector {
 public:
  explicit RowCollector(std::vector<JournalVerdict::Trained>& rows) : rows_(rows) {}
  void Take(const JournalEntry& entry) {
    if (const auto* enq = std::get_if<record::Enq>(&entry.record)) stored_[enq->tid] = *enq;
    if (const auto* restore = std::get_if<record::Restore>(&entry.record)) {
      for (JournalVerdict::Trained& row : rows_)
        if (row.step > restore->step) row.step = {};
    }
    const auto* commit = std::get_if<record::StepCommit>(&entry.record);
    if (commit == nullptr) return;
    for (const record::TrainedRow& row : commit->rows) {
      const auto it = stored_.find(row.tid);
      if (it != stored_.end() && it->second.payload_file >= 0)
        rows_.push_back({entry.lsn, commit->step, it->second});
    }
  }

 private:
  std::vector<JournalVerdict::Trained>& rows_;
  std::map<SampleId, record::Enq> stored_;
};

JournalVerdict CheckJournal(const std::string& dir) {
  JournalVerdict verdict;
  verdict.path = dir;
  RealFileSystem real;
  scheduler::Checker checker;
  Status folded = OkStatus();
  RowCollector rows(verdict.rows);
  // The state of a run has grown since the older formats: their snapshots are of another one.
  const auto schema = storage::JournalSchema(real, dir);
  const bool same_state = !schema.ok() || *schema == storage::kJournalSchema;
  auto summary = storage::ScanJournal(real, dir, "", Lsn{0}, [&](JournalEntry&& entry) {
    checker.Feed(entry);
    rows.Take(entry);
    if (auto* snapshot = std::get_if<record::Snapshot>(&entry.record); snapshot != nullptr && !same_state)
      snapshot->state_digest = 0;
    if (folded.ok()) folded = verdict.state.Apply(entry.record);
    return OkStatus();
  });
  verdict.error = summary.status();
  verdict.readable = summary.ok();
  if (summary.ok()) verdict.summary = *std::move(summary);
  verdict.result = checker.result();
  // The predicates hold, but no controller could go on from it (SNAPSHOT: its state was another one).
  if (verdict.result.ok && !folded.ok())
    verdict.Violates("journal", verdict.state.next_lsn(), folded.message());
  return verdict;
}

// C2: what the journal calls a checkpoint is on the disk, whole. A run that goes on may delete one meanwhile:
// then its journal says so.
void CheckFiles(const std::string& run, JournalVerdict& verdict) {
  RealFileSystem real;
  const std::string folder = storage::RunPaths(run).checkpoints();
  if (!verdict.state.checkpoints().empty() && !real.Exists(folder)) {
    return verdict.Note("the files of its " + std::to_string(verdict.state.checkpoints().size()) +
                        " checkpoints were not looked at: " + folder + " is not there");
  }
  for (const auto& [id, c] : verdict.state.checkpoints()) {
    const std::string dir = JoinPath(folder, storage::CheckpointName(c.step));
    const auto manifest = storage::VerifyCheckpoint(real, dir, c.manifest_digest);
    if (manifest.ok() || !CheckJournal(verdict.path).state.checkpoints().contains(id)) continue;
    if (real.Exists(JoinPath(dir, storage::kStorePlaceName)) && storage::IsOfStore(manifest.status())) {
      return verdict.Note("the files of checkpoint " + std::to_string(id) + " of step " +
                          std::to_string(c.step.value) +
                          " were not looked at: " + manifest.status().message());
    }
    return verdict.Violates("C2", verdict.state.next_lsn(),
                            "checkpoint " + std::to_string(id) + " of step " + std::to_string(c.step.value) +
                                " is committed, but " + manifest.status().message());
  }
}

// Q12: the bytes that every row was trained from are in the payload files, as ENQ names them. Files that no
// kept checkpoint needs are deleted by the run, oldest first: of their rows nothing can be proven any more.
void CheckPayload(const std::string& run, JournalVerdict& verdict) {
  RealFileSystem real;
  const std::string folder = storage::RunPaths(run).payload();
  if (verdict.rows.empty()) return;
  if (!real.Exists(folder)) {
    return verdict.Note("the payload of " + std::to_string(verdict.rows.size()) +
                        " trained rows was not looked at: " + folder + " is not there");
  }
  // A restore to the oldest kept checkpoint trains what came after it again, from files that are therefore
  // kept. Without a checkpoint (`tidepool prune --final-only`) nothing is needed any more.
  const auto& kept = verdict.state.checkpoints();
  storage::FirstFiles needed;
  int64_t newest = 0;
  for (const JournalVerdict::Trained& row : verdict.rows) {
    newest = std::max(newest, row.enq.payload_file);
    if (!kept.empty() && row.step > kept.begin()->second.step) storage::AddFile(needed, row.enq.payload_file);
  }
  // Of each writer, the files before the first that is there and before the first that is needed are pruned.
  // The newest file of all is never deleted.
  storage::FirstFiles there;
  const auto look = [&] {
    auto first = storage::FirstPayloadFiles(real, folder);
    there = first.ok() ? *std::move(first) : storage::FirstFiles();
    storage::AddFile(there, newest);
  };
  look();
  const auto pruned = [&](int64_t file) {
    const auto before = [&](const storage::FirstFiles& first) {
      const auto at = first.find(storage::WriterOf(file));
      return at == first.end() || file < at->second;
    };
    return before(there) && before(needed);
  };
  int64_t newest_pruned = 0;
  storage::PayloadReader reader(real, folder);
  for (const JournalVerdict::Trained& row : verdict.rows) {
    const int64_t file = row.enq.payload_file;
    Status found = OkStatus();
    if (!pruned(file)) {
      found = reader.Read(row.enq).status();
      if (!found.ok()) look();  // a run that goes on may have deleted the file meanwhile
    }
    if (pruned(file)) {
      ++verdict.rows_pruned;
      newest_pruned = std::max(newest_pruned, file);
    } else if (found.ok()) {
      ++verdict.rows_proven;
    } else {
      return verdict.Violates(
          "Q12", row.lsn,
          "what was trained of " + ToString(row.enq.tid) + " is not in the payload: " + found.message());
    }
  }
  if (verdict.rows_pruned > 0) {
    verdict.Note("the payload of " + std::to_string(verdict.rows_pruned) +
                 " trained rows was pruned (files up to " + std::to_string(newest_pruned) +
                 "): no kept checkpoint needs it, and it cannot be proven any more");
  }
}

Json ToJson(const JournalVerdict& v) {
  const scheduler::CheckResult& r = v.result;
  Json j = {{"journal", v.path}, {"ok", v.readable && r.ok}, {"records", r.records}};
  if (!v.readable) {
    j["error"] = v.error.message();
    return j;
  }
  j["segments"] = v.summary.segments;
  j["bytes"] = v.summary.bytes;
  j["run_id"] = v.summary.run_id;
  j["issued"] = r.issued;
  j["trained"] = r.trained;
  j["dropped"] = r.dropped;
  j["unfinished"] = r.issued - r.trained - r.dropped;
  j["open_groups"] = r.open;
  j["steps"] = r.steps;
  j["undone_steps"] = r.undone;
  j["predicates"] = kPredicates;
  j["payload_rows"] = {{"proven", v.rows_proven}, {"pruned", v.rows_pruned}};
  if (!v.note.empty()) j["note"] = v.note;
  if (const auto& torn = v.summary.torn_tail) {
    j["torn_tail"] = {
        {"file", torn->file}, {"offset", torn->offset}, {"bytes", torn->bytes}, {"why", torn->why}};
  }
  if (!r.ok) j["violation"] = {{"predicate", r.predicate}, {"lsn", r.lsn.value}, {"why", r.why}};
  return j;
}

void Describe(const JournalVerdict& v) {
  const scheduler::CheckResult& r = v.result;
  const auto n = [](int64_t x) { return static_cast<long long>(x); };
  if (!v.readable) {
    std::fprintf(stderr, "%s\n", v.error.message().c_str());
    return;
  }
  if (const auto& torn = v.summary.torn_tail) {
    std::printf(
        "%s: note: the last %lld bytes (from %lld) are a record that was cut off while it was written (%s); "
        "nothing before it depends on them, and --resume cuts them\n",
        torn->file.c_str(), n(torn->bytes), n(torn->offset), torn->why.c_str());
  }
  if (!r.ok) {
    std::fprintf(stderr, "%s: record %lld violates %s: %s; see it with `tidepool journal %s --from %lld`\n",
                 v.path.c_str(), n(r.lsn.value), r.predicate.c_str(), r.why.c_str(), v.path.c_str(),
                 n(std::max<int64_t>(r.lsn.value - 5, 0)));
    return;
  }
  std::printf(
      "%s: ok, %lld records in %lld segments: %lld steps%s, %lld samples issued = %lld trained + %lld "
      "dropped "
      "+ %lld unfinished\n  proven at every record: %s\n",
      v.path.c_str(), n(r.records), n(v.summary.segments), n(r.steps),
      r.undone > 0 ? (" (and " + std::to_string(r.undone) + " that were undone)").c_str() : "", n(r.issued),
      n(r.trained), n(r.dropped), n(r.issued - r.trained - r.dropped), kPredicates);
  if (v.rows_proven > 0)
    std::printf("  payload of %lld trained rows: their bytes are those that ENQ names\n", n(v.rows_proven));
  if (!v.note.empty()) std::printf("  note: %s\n", v.note.c_str());
}

void Check(CommandContext& context, const InspectOptions& options) {
  const auto place = FindRun(options.run);
  if (!place.ok()) return Fail(context, place.status());
  RealFileSystem real;
  std::vector<std::string> journals;
  if (!place->dir.empty()) {
    const std::string warm = storage::RunPaths(storage::RunPaths(place->dir).warm_start()).journal();
    if (real.Exists(warm)) journals.push_back(warm);
  }
  // A run that is still in its warm start has no journal of its own yet.
  if (journals.empty() || real.Exists(place->journal)) journals.push_back(place->journal);
  Json all = {{"ok", true}, {"journals", Json::array()}};
  for (const std::string& journal : journals) {
    JournalVerdict verdict = CheckJournal(journal);
    if (!place->dir.empty()) {
      const std::string run = std::filesystem::path(journal).parent_path();  // its warm start is one, too
      if (verdict.readable && verdict.result.ok) CheckFiles(run, verdict);
      if (verdict.readable && verdict.result.ok) CheckPayload(run, verdict);
    }
    if (!verdict.readable && verdict.error.code() == StatusCode::kNotFound)
      return Fail(context, OfJournal(*place, verdict.error));
    if (!verdict.readable || !verdict.result.ok) {
      all["ok"] = false;
      context.exit_code = 4;
    }
    all["journals"].push_back(ToJson(verdict));
    if (!options.json) Describe(verdict);
  }
  if (options.json) Print(all);
}

}  // namespace

void AddRunOrAddress(CLI::App& command, std::string& run, std::string& token_file) {
  command
      .add_option("run", run,
                  "Run directory, or the name of a run under runs/ (the newest that begins so); with "
                  "--token-file HOST:PORT of its controller's pages")
      ->required();
  command.add_option("--token-file", token_file,
                     "RUN/security/operator.token or a copy; beside it the certificates of an encrypted run");
}

void AddInspectCommands(CLI::App& app, CommandContext& context) {
  struct Kind {
    const char* name;
    const char* doc;
    const char* footer;
    void (*run)(CommandContext&, const InspectOptions&);
  };
  for (const Kind& kind :
       {Kind{"status", "What a run does now, or how it ended", "Example: tidepool status quickstart",
             ShowStatus},
        Kind{"report", "Write RUN/report.html: curves, time line, samples, config",
             "Example: tidepool report quickstart", Report},
        Kind{"check", "Prove from the journal that nothing was lost or trained twice",
             "RUN may also be a folder of journal segments. Exit code 4: a violation, or a damaged "
             "journal.\nExample: tidepool check quickstart",
             Check}}) {
    auto options = std::make_shared<InspectOptions>();
    const std::string name = kind.name;
    CLI::App* command = app.add_subcommand(name, kind.doc);
    if (name == "status") {
      AddRunOrAddress(*command, options->run, options->token_file);
    } else {
      command
          ->add_option("run", options->run,
                       "Run directory, or the name of a run under runs/ (the newest that begins so)")
          ->required();
    }
    if (name != "report") command->add_flag("--json", options->json, "For machines");
    if (name == "status")
      command->add_flag(
          "--healthy", options->healthy,
          "Only whether a controller works on it, and has said within 30 s what it does, or it is "
          "finished; exit code 3: no");
    command->footer(kind.footer);
    command->callback([options, &context, run = kind.run] { run(context, *options); });
  }
}

}  // namespace tidepool::workers
