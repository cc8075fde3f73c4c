#include "scheduler/checker.h"

#include "scheduler/checker_state.h"

namespace tidepool::scheduler {

bool Checker::State::Violation(const char* predicate, std::string why) {
  if (!r.ok) return false;
  r.ok = false;
  r.predicate = predicate;
  r.lsn = now->lsn;
  r.why = std::string(RecordName(now->record)) + ": " + std::move(why);
  return false;
}

int64_t Checker::State::Capacity() const {
  const auto b = static_cast<double>(config->groups_per_step);
  return config->max_lag_versions * config->groups_per_step +
         static_cast<int64_t>(std::ceil(config->oversample * b - 1e-9));
}

uint64_t Checker::State::At(const Version& v, int64_t n) const {
  const auto it = path.find(v.lineage);
  return it == path.end() || n < 0 || n >= static_cast<int64_t>(it->second.size())
             ? 0
             : it->second[static_cast<size_t>(n)];
}

int64_t Checker::State::Lag(const Version& made, const Version& trained) const {
  int64_t c = std::min(made.number, trained.number);
  if (made.lineage != trained.lineage) {
    while (c > 0 && (At(made, c) == 0 || At(made, c) != At(trained, c))) --c;
  }
  return (trained.number - c) + (made.number - c);
}

void Checker::State::SetPath(const Version& v, uint64_t digest) {
  auto& p = path[v.lineage];
  if (static_cast<int64_t>(p.size()) <= v.number) p.resize(static_cast<size_t>(v.number) + 1, 0);
  p[static_cast<size_t>(v.number)] = digest;
}

std::string Checker::State::Called(const WorkerRef& worker) const {
  const auto name = names.find(worker.worker);
  return WorkerName(name == names.end() ? "place " + std::to_string(worker.worker.value) : name->second,
                    worker.inc);
}

bool Checker::State::Trusted(const WorkerRef& ref, const char* what) {
  const auto it = workers.find(ref);
  if (it == workers.end())
    return Violation("Q8", std::string(what) + " from " + Called(ref) + ", which never joined");
  if (it->second.fenced)
    return Violation("Q8", std::string(what) + " from " + Called(ref) + " after its FENCE");
  return true;
}

bool Checker::State::OnTime() { return TransitionsEnd() && FloorKept() && EnginesFollow(); }

void Checker::State::NewLife() {
  if (below_floor_ns) below_floor_ns = now->mono_ns;
  for (auto& [ref, since] : behind) since = now->mono_ns;
  behind_due_ns = transition_due_ns = 0;
  slots_move = false;
}

Checker::Checker() : s_(std::make_unique<State>()) {}
Checker::~Checker() = default;
Checker::Checker(Checker&&) noexcept = default;
Checker& Checker::operator=(Checker&&) noexcept = default;

bool Checker::Feed(const JournalEntry& entry) {
  State& s = *s_;
  const int64_t expected = s.r.records++;
  if (!s.r.ok) return false;
  const bool new_life = s.ctl_epoch != entry.ctl_epoch;
  s.ctl_epoch = entry.ctl_epoch;
  s.now = &entry;
  if (entry.lsn.valid() && entry.lsn.value != expected)
    return s.Violation("journal", "expected record number " + std::to_string(expected));
  if (!s.config && !std::holds_alternative<record::Config>(entry.record))
    return s.Violation("journal", "the first record is not CONFIG");
  if (new_life) s.NewLife();
  if (!s.OnTime()) return false;
  return std::visit([&](const auto& r) { return s.On(r); }, entry.record) && s.r.ok;
}

CheckResult Checker::result() const {
  CheckResult r = s_->r;
  r.open = s_->open_groups;
  return r;
}

CheckResult Check(std::span<const JournalEntry> journal) {
  Checker checker;
  for (const JournalEntry& e : journal) checker.Feed(e);
  return checker.result();
}

}  // namespace tidepool::scheduler
