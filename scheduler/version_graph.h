#pragma once
// Which weights descend from which, and how far apart two versions are.
//
// A version is (lineage, number). RESTORE opens a new lineage at the number of the restored step, so
// the lineages are a tree. The lag of a token made at j and trained at v is counted through the last
// common ancestor c of the two:  (v - c) + (j - c);  inside one lineage that is v - j. Two versions
// whose weights have equal digests (STEP_COMMIT, PUBLISH) are one version (a deterministic run that trains an
// undone step again arrives at the same weights), so they count as common ancestors too. Pure value type; not
// thread-safe.

#include <cstdint>
#include <map>
#include <set>

#include "core/base/ids.h"

namespace tidepool::scheduler {

class VersionGraph {
 public:
  struct Branch {
    int32_t parent = 0;
    int64_t number = 0;
  };
  // Opens `lineage` as a branch of `parent` at `number`; (lineage, number) is (parent, number).
  // requires lineage > parent and not known yet.
  void Fork(int32_t lineage, int32_t parent, int64_t number);
  void Committed(const Version& v, uint64_t digest);  // its weights exist; PUBLISH may follow
  void Published(const Version& v, uint64_t digest);

  [[nodiscard]] bool IsPublished(const Version& v) const { return published_.contains(v); }
  // 0 if neither committed nor published.
  [[nodiscard]] uint64_t Digest(const Version& v) const;
  // The version with number `n` on the way from the root to `v`.  requires 0 <= n <= v.number
  [[nodiscard]] Version Ancestor(const Version& v, int64_t n) const;
  // Same node of the tree, or equal digests.
  [[nodiscard]] bool Same(const Version& a, const Version& b) const;
  // Number of the last common ancestor.
  [[nodiscard]] int64_t CommonNumber(const Version& a, const Version& b) const;
  // Versions between the weights that made a token (`made`) and those being trained. 0 if `made` is
  // invalid (a row without sampled tokens has no age). The one definition of lag: admission, expiry, the mask
  // of old tokens and the reports all ask here.
  [[nodiscard]] int64_t Lag(const Version& made, const Version& trained) const;
  // The first version from `from` on, on the way to `to`, whose tokens have a lag of at most `most` when they
  // are trained at `at`; invalid: none.  requires IsAncestor(from, to)
  [[nodiscard]] Version FirstWithin(const Version& from, const Version& to, const Version& at,
                                    int64_t most) const;
  // `a` lies on the way from the root to `b`.
  [[nodiscard]] bool IsAncestor(const Version& a, const Version& b) const;

  // By lineage: where it left its parent. Lineage 0 is the root and not among them.
  [[nodiscard]] const std::map<int32_t, Branch>& branches() const { return branches_; }
  [[nodiscard]] const std::map<Version, uint64_t>& digests() const { return digests_; }

 private:
  std::map<int32_t, Branch> branches_;
  std::map<Version, uint64_t> digests_;
  std::set<Version> published_;
};

}  // namespace tidepool::scheduler
