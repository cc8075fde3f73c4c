#include "scheduler/version_graph.h"

#include <algorithm>

#include "core/base/check.h"

namespace tidepool::scheduler {

void VersionGraph::Fork(int32_t lineage, int32_t parent, int64_t number) {
  TP_CHECK(lineage > parent && !branches_.contains(lineage)) << "lineage " << lineage << " of " << parent;
  branches_[lineage] = {parent, number};
}

void VersionGraph::Committed(const Version& v, uint64_t digest) { digests_[v] = digest; }

void VersionGraph::Published(const Version& v, uint64_t digest) {
  digests_[v] = digest;
  published_.insert(v);
}

uint64_t VersionGraph::Digest(const Version& v) const {
  const auto it = digests_.find(v);
  return it == digests_.end() ? 0 : it->second;
}

Version VersionGraph::Ancestor(const Version& v, int64_t n) const {
  Version a{v.lineage, n};
  // Below the branch point the number belongs to the parent (which may itself have branched later).
  for (auto it = branches_.find(a.lineage); it != branches_.end() && n < it->second.number;
       it = branches_.find(a.lineage)) {
    a.lineage = it->second.parent;
  }
  // At the branch point itself child and parent are one node; name it by the oldest lineage.
  for (auto it = branches_.find(a.lineage); it != branches_.end() && n <= it->second.number;
       it = branches_.find(a.lineage)) {
    a.lineage = it->second.parent;
  }
  return a;
}

bool VersionGraph::Same(const Version& a, const Version& b) const {
  if (a == b) return true;
  if (a.number == b.number && Ancestor(a, a.number) == Ancestor(b, b.number)) return true;
  const auto x = digests_.find(a);
  const auto y = digests_.find(b);
  return x != digests_.end() && y != digests_.end() && x->second == y->second && a.number == b.number;
}

int64_t VersionGraph::CommonNumber(const Version& a, const Version& b) const {
  if (a.lineage == b.lineage) return std::min(a.number, b.number);
  for (int64_t n = std::min(a.number, b.number); n > 0; --n) {
    // The node may have been published under several names: compare by each lineage's own name too.
    const Version x = n == a.number ? a : Ancestor(a, n);
    const Version y = n == b.number ? b : Ancestor(b, n);
    if (Same(x, y) || Same(Version{a.lineage, n}, y) || Same(x, Version{b.lineage, n})) return n;
  }
  return 0;
}

int64_t VersionGraph::Lag(const Version& made, const Version& trained) const {
  if (!made.valid() || !trained.valid()) return 0;
  const int64_t c = CommonNumber(made, trained);
  return (trained.number - c) + (made.number - c);
}

Version VersionGraph::FirstWithin(const Version& from, const Version& to, const Version& at,
                                  int64_t most) const {
  for (int64_t n = from.number; n <= to.number; ++n) {
    const Version made = n == from.number ? from : n == to.number ? to : Ancestor(to, n);
    if (Lag(made, at) <= most) return made;
  }
  return {};
}

bool VersionGraph::IsAncestor(const Version& a, const Version& b) const {
  return a.number <= b.number && CommonNumber(a, b) == a.number;
}

}  // namespace tidepool::scheduler
