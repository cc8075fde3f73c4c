#pragma once
// Journal records with random contents, of every kind: filled through VisitFields, so that a new field
// or kind is covered without a change here.

#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/journal_records.h"
#include "core/base/rng.h"

namespace tidepool::storage {

struct RandomFill {
  Rng& rng;

  template <typename T>
  void operator()(const char* /*name*/, T& field) {
    Fill(field);
  }
  void Fill(bool& x) { x = rng.Chance(0.5); }
  void Fill(double& x) { x = rng.Normal(); }
  void Fill(EndStatus& x) { x = static_cast<EndStatus>(rng.Below(5)); }
  void Fill(GradeOutcome& x) { x = static_cast<GradeOutcome>(rng.Below(3)); }
  void Fill(DropReason& x) { x = static_cast<DropReason>(rng.Below(9)); }
  void Fill(Role& x) { x = static_cast<Role>(rng.Below(5)); }
  void Fill(std::string& x) {
    x.clear();
    for (int64_t n = rng.Below(12); n > 0; --n) x.push_back(static_cast<char>(rng.Next()));
  }
  void Fill(SampleId& x) { Fill(x.ordinal), Fill(x.issue), Fill(x.sample); }
  void Fill(Version& x) { Fill(x.lineage), Fill(x.number); }
  void Fill(WorkerRef& x) { Fill(x.worker), Fill(x.inc); }
  template <typename Tag>
  void Fill(StrongId<Tag>& x) {
    Fill(x.value);
  }
  template <typename A, typename B>
  void Fill(std::pair<A, B>& x) {
    Fill(x.first), Fill(x.second);
  }
  template <typename T>
  void Fill(std::vector<T>& x) {
    x.resize(static_cast<size_t>(rng.Below(5)));
    for (T& item : x) Fill(item);
  }
  template <typename T>
  void Fill(T& x) {
    if constexpr (std::is_arithmetic_v<T>) {
      x = static_cast<T>(rng.Next());
    } else {
      VisitFields(x, *this);
    }
  }
};

template <size_t kKind = 0>
JournalRecord RandomRecord(Rng& rng, size_t kind) {
  if constexpr (kKind < std::variant_size_v<JournalRecord>) {
    if (kind != kKind) return RandomRecord<kKind + 1>(rng, kind);
    JournalRecord record(std::in_place_index<kKind>);
    VisitFields(std::get<kKind>(record), RandomFill{rng});
    return record;
  } else {
    return RandomRecord<0>(rng, 0);
  }
}

inline JournalRecord RandomRecord(Rng& rng) {
  return RandomRecord<0>(
      rng, static_cast<size_t>(rng.Below(static_cast<int64_t>(std::variant_size_v<JournalRecord>))));
}

}  // namespace tidepool::storage
