#pragma once
// Messages with random contents, of every kind: filled through their field lists, so that a new field or
// message is covered without a change here.

#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/rng.h"
#include "workers/net/message_fields.h"

namespace tidepool::workers {

struct RandomFill {
  Rng& rng;

  template <typename T>
  void operator()(const char* /*name*/, T& field, size_t = kUnbounded) {
    Fill(field);
  }
  void Fill(bool& x) { x = rng.Chance(0.5); }
  void Fill(double& x) { x = rng.Normal(); }
  void Fill(GradeOutcome& x) { x = static_cast<GradeOutcome>(rng.Below(3)); }
  void Fill(Role& x) { x = static_cast<Role>(rng.Below(5)); }
  void Fill(scheduler::WorkerKind& x) { x = static_cast<scheduler::WorkerKind>(rng.Below(3)); }
  void Fill(scheduler::event::ChunkEnd& x) { x = static_cast<scheduler::event::ChunkEnd>(rng.Below(8)); }
  void Fill(std::string& x) {
    x.clear();
    for (int64_t n = rng.Below(12); n > 0; --n) x.push_back(static_cast<char>(rng.Next()));
  }
  void Fill(SampleId& x) { Fill(x.ordinal), Fill(x.issue), Fill(x.sample); }
  void Fill(Version& x) { Fill(x.lineage), Fill(x.number); }
  void Fill(sample::Segment& x) {
    x = {};
    Fill(x.ids);
    if (x.ids.empty()) return;
    x.logprobs.assign(x.ids.size(), -0.5F);
    x.versions = {{{static_cast<int32_t>(rng.Below(9)), rng.Below(99)}, static_cast<int64_t>(x.ids.size())}};
  }
  void Fill(sample::Trajectory& x) {
    Fill(x.tid);
    std::vector<int32_t> prompt;
    Fill(prompt);
    x.prompt = sample::PromptSegment(prompt);
    x.segments.resize(static_cast<size_t>(1 + rng.Below(3)));
    for (sample::Segment& s : x.segments) Fill(s);
  }
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
  void Fill(std::map<std::string, std::string>& x) {
    x.clear();
    for (int64_t n = rng.Below(5); n > 0; --n) {
      std::string name;
      Fill(name), Fill(x[name]);
    }
  }
  template <typename... Body>
  void Fill(std::variant<Body...>& x) {
    FillKind(x, static_cast<size_t>(rng.Below(sizeof...(Body))));
  }
  template <size_t kKind = 0, typename Variant>
  void FillKind(Variant& x, size_t kind) {
    if constexpr (kKind < std::variant_size_v<Variant>) {
      if (kind != kKind) return FillKind<kKind + 1>(x, kind);
      Fill(x.template emplace<kKind>());
    }
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

}  // namespace tidepool::workers
