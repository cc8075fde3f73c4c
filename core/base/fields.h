#pragma once
// The fields of a struct, listed once: codecs, JSON, hashes and tests are visitors of that one list.
//
//   TP_FIELDS(Issue, tid, gid)   VisitFields(issue, v) calls v("tid", issue.tid); v("gid", issue.gid);
//   TP_FIELDS_BY(Type, ...)      statements of its own that call `v` for fields of `r`
//   TP_EACH(tid, gid)            the calls of the first form, as one of those statements
//
// V: void operator()(const char* name, T& field) for each T of the list.

#include <type_traits>

#include "core/base/ids.h"

// One name after the other, up to 64: a macro cannot call itself, but may leave its name to be read again.
#define TP_READ_4(...) __VA_ARGS__
#define TP_READ_3(...) TP_READ_4(TP_READ_4(TP_READ_4(TP_READ_4(__VA_ARGS__))))
#define TP_READ_2(...) TP_READ_3(TP_READ_3(TP_READ_3(TP_READ_3(__VA_ARGS__))))
#define TP_READ(...) TP_READ_2(TP_READ_2(TP_READ_2(TP_READ_2(__VA_ARGS__))))
#define TP_AGAIN() TP_FIELD
#define TP_NOTHING
#define TP_FIELD(name, ...) \
  v(#name, r.name);         \
  __VA_OPT__(TP_AGAIN TP_NOTHING()(__VA_ARGS__))

#define TP_FIELDS_BY(Type, ...)                         \
  template <typename V, typename R>                     \
  requires std::is_same_v<std::remove_const_t<R>, Type> \
  void VisitFields([[maybe_unused]] R& r, [[maybe_unused]] V&& v) { __VA_ARGS__ }
#define TP_EACH(...) TP_READ(TP_FIELD(__VA_ARGS__))
#define TP_FIELDS(Type, ...) TP_FIELDS_BY(Type, __VA_OPT__(TP_EACH(__VA_ARGS__)))

namespace tidepool {

TP_FIELDS(SampleId, ordinal, issue, sample)
TP_FIELDS(Version, lineage, number)
TP_FIELDS_BY(WorkerRef, v("w", r.worker); v("inc", r.inc);)

}  // namespace tidepool
