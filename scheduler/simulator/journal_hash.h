#pragma once
// One number for a whole journal: two runs of a seed have to give the same. Pure.

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "core/base/journal_records.h"
#include "core/base/rng.h"

namespace tidepool::scheduler {

class JournalHasher {
 public:
  void Add(const JournalEntry& e) {
    Mix(e.record.index());
    Mix(e.ctl_epoch);
    std::visit([&](const auto& r) { record::VisitFields(r, *this); }, e.record);
  }
  [[nodiscard]] uint64_t value() const { return h_; }

  template <typename T>
  void operator()(const char* /*name*/, const T& x) {
    Put(x);
  }

 private:
  void Mix(uint64_t x) { h_ = Mix64(h_ ^ x); }
  void Put(const std::string& s) { Mix(Hash64(s)); }
  void Put(double x) { Mix(static_cast<uint64_t>(std::llround(x * 1e9))); }
  void Put(const SampleId& t) { Mix(SampleUid(t)); }
  void Put(const Version& v) {
    Mix(static_cast<uint64_t>(v.lineage) * 1000003 + static_cast<uint64_t>(v.number));
  }
  void Put(const WorkerRef& w) { Mix(static_cast<uint64_t>(w.worker.value * 1000003 + w.inc.value)); }
  void Put(const record::TrainedRow& r) { record::VisitFields(r, *this); }
  void Put(const record::VersionTokens& r) { record::VisitFields(r, *this); }
  void Put(const record::SlotPlan& r) { record::VisitFields(r, *this); }
  void Put(const record::EvalScore& r) { record::VisitFields(r, *this); }
  void Put(const std::pair<std::string, double>& p) { Put(p.first), Put(p.second); }
  template <typename Tag>
  void Put(const StrongId<Tag>& x) {
    Mix(static_cast<uint64_t>(x.value));
  }
  template <typename T>
  void Put(const std::vector<T>& items) {
    Mix(items.size());
    for (const T& x : items) Put(x);
  }
  template <typename T>
  requires(std::is_integral_v<T> || std::is_enum_v<T>) void Put(T x) { Mix(static_cast<uint64_t>(x)); }
  uint64_t h_ = 1;
};

}  // namespace tidepool::scheduler
