#include "workers/controller/run_log.h"

#include <cstdio>

#include "core/base/places.h"

namespace tidepool::workers {
namespace {

template <typename T>
std::string Text(const T& value) {
  if constexpr (requires { ToString(value); }) {
    return ToString(value);
  } else if constexpr (requires { value.value; }) {
    return std::to_string(value.value);
  } else {
    return std::to_string(value);
  }
}

std::string Real(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g", value);
  return text;
}

std::string SlotsText(const std::vector<SlotId>& slots) {
  std::string out;
  for (const SlotId slot : slots) out += (out.empty() ? "" : ",") + Text(slot);
  return out;
}

struct Teller {
  const NameOfPlace& place_name;
  using Said = std::optional<LogEvent>;

  [[nodiscard]] std::string Who(const WorkerRef& worker) const {
    return WorkerName(place_name(worker.worker.value), worker.inc);
  }

  static Said Event(LogLevel level, std::string event, LogFields fields, std::string text = "") {
    return LogEvent{level, std::move(event), std::move(fields), std::move(text)};
  }
  static Said Info(std::string event, LogFields fields) {
    return Event(LogLevel::kInfo, std::move(event), std::move(fields));
  }
  static Said Debug(std::string event, LogFields fields, std::string text = "") {
    return Event(LogLevel::kDebug, std::move(event), std::move(fields), std::move(text));
  }

  Said operator()(const record::Fault& r) const {
    if (!r.worker.valid())
      return Event(LogLevel::kError, "fault", {{"class", r.kind}, {"actor", r.actor}}, r.what);
    const std::string worker = WorkerName(r.actor, r.inc);
    if (r.kind == "worker_lost")
      return Event(LogLevel::kWarn, r.kind, {{"worker", worker}}, "worker " + r.actor + ": " + r.what);
    if (r.kind == "retired") {
      return Event(LogLevel::kWarn, "worker_retired", {{"worker", worker}},
                   "worker " + r.actor + " is not started again: " + r.what);
    }
    if (r.kind == "gone") {
      return Event(LogLevel::kWarn, "worker_gone", {{"worker", worker}},
                   "nobody waits for worker " + r.actor +
                       " any more, and whoever comes in its place joins: " + r.what);
    }
    return Event(LogLevel::kError, "fault", {{"class", r.kind}, {"worker", worker}}, r.what);
  }
  Said operator()(const record::Fence& r) const {
    return Debug("worker_fenced", {{"worker", Who(r.worker)}});
  }
  Said operator()(const record::CheckpointBegin& r) const {
    return Info("checkpoint_begun", {{"ckpt", Text(r.ckpt)}, {"step", Text(r.step)}});
  }
  Said operator()(const record::CheckpointReject& r) const {
    return Debug("checkpoint_rejected", {{"ckpt", Text(r.ckpt)}}, r.why);
  }
  Said operator()(const record::CheckpointDelete& r) const {
    return Debug("checkpoint_deleted", {{"ckpt", Text(r.ckpt)}});
  }
  Said operator()(const record::Restore& r) const {
    return Info("restoring", {{"step", Text(r.step)},
                              {"from", r.ckpt < 0 ? "recovery_copy" : "checkpoint"},
                              {"ckpt", Text(r.ckpt)},
                              {"lineage", Text(r.new_lineage)}});
  }
  Said operator()(const record::EvalResult& r) const {
    LogFields fields = {{"step", Text(r.step)},
                        {"version", Text(r.v)},
                        {"correct", Text(r.correct)},
                        {"total", Text(r.total)},
                        {"reward_mean", Real(r.mean)}};
    if (r.lost > 0) fields.emplace_back("lost", Text(r.lost));
    for (const record::EvalScore& score : r.rewards) fields.emplace_back(score.name, Real(score.mean));
    return Info("evaluation", std::move(fields));
  }
  Said operator()(const record::StepBegin& r) const {
    return Debug("step_begun", {{"step", Text(r.step)}, {"version", Text(r.v)}});
  }
  Said operator()(const record::StepCommit& r) const {
    return Debug("step_done",
                 {{"step", Text(r.step)}, {"version", Text(r.v)}, {"rows", Text(r.rows.size())}});
  }
  Said operator()(const record::StepAbort& r) const {
    return Event(LogLevel::kInfo, "step_aborted", {{"step", Text(r.step)}}, r.why);
  }
  Said operator()(const record::Publish& r) const {
    return Debug("weights_published", {{"version", Text(r.v)}});
  }
  Said operator()(const record::Loaded& r) const {
    return Debug("weights_loaded", {{"worker", Who(r.worker)}, {"version", Text(r.v)}});
  }
  Said operator()(const record::TransitionBegin& r) const {
    std::string slots;
    for (const record::SlotPlan& s : r.slots)
      slots += (slots.empty() ? "" : ",") + Text(s.slot) + ":" + Name(s.from) + ">" + Name(s.to);
    return Debug("transition_begun", {{"t", Text(r.t)}, {"slots", slots}}, r.why);
  }
  Said operator()(const record::TransitionDone& r) const {
    return Debug("transition_done", {{"t", Text(r.t)}});
  }
  Said operator()(const record::TransitionRolledBack& r) const {
    return Debug("transition_rolled_back", {{"t", Text(r.t)}}, r.why);
  }
  Said operator()(const record::Grant& r) const {
    return Debug("role_granted", {{"slot", Text(r.slot)}, {"role", Name(r.role)}, {"worker", Who(r.worker)}});
  }
  Said operator()(const record::Quarantine& r) const {
    return Event(LogLevel::kWarn, "slot_quarantined", {{"slot", Text(r.slot)}},
                 "slot " + Text(r.slot) + " is out of use until its worker is replaced: " + r.why);
  }
  Said operator()(const record::SlotLost& r) const {
    return Debug("slot_lost", {{"slot", Text(r.slot)}}, r.why);
  }
  Said operator()(const record::Drop& r) const {
    return Debug("sample_dropped", {{"tid", Text(r.tid)}, {"reason", Name(r.reason)}});
  }
  // The caller knows more of it.
  Said operator()(const record::Join& r) const {
    LogFields fields = {{"worker", WorkerName(r.name, r.worker.inc)}};
    if (!r.slots.empty()) fields.emplace_back("slots", SlotsText(r.slots));
    return Info("worker_joined", std::move(fields));
  }
  Said operator()(const record::CheckpointCommit& r) const {
    return Info("checkpoint_written", {{"ckpt", Text(r.ckpt)}, {"step", Text(r.step)}});
  }
  // Samples have the journal.
  template <typename R>
  Said operator()(const R&) const {
    return std::nullopt;
  }
};

}  // namespace

std::optional<LogEvent> EventOf(const JournalRecord& r, const NameOfPlace& place_name) {
  return std::visit(Teller{place_name}, r);
}

LogEvent EventOf(const scheduler::command::Log& c, const NameOfPlace& place_name) {
  LogEvent e{c.level, c.event, c.fields, c.text};
  if (!c.about.worker.valid()) return e;
  const std::string place = place_name(c.about.worker.value);
  e.fields.insert(e.fields.begin(), {"worker", WorkerName(place, c.about.inc)});
  e.text = "worker " + place + " " + c.text;
  return e;
}

}  // namespace tidepool::workers
