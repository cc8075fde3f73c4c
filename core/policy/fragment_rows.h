#pragma once
// The fragments of an optimizer step, as a trainer of a policy is given them, and what all such trainers do
// with them. With a group every rank lists the same rows, and has the fragments of its own.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "core/base/bad_row.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/comm/collective.h"
#include "core/policy/fragment.h"

namespace tidepool::policy {

struct FragmentRow {
  SampleId tid;
  Version version;      // weights that acted
  bool masked = false;  // too old: no loss
  bool mine = true;     // this rank has the fragment and computes its gradients
  Fragment fragment;    // empty, where it is another rank's
};

// kInvalidArgument on all ranks alike: there are none, or one of `bad`, or a fragment that is none of this
// policy. `bad`: as of train::Trainer::Step; may be null.
Status CheckRows(std::span<const FragmentRow> rows, StepNumber step, const PolicySpec& spec,
                 comm::Collective* group, std::vector<BadRow>* bad);

// Over all ranks: the largest of their numbers, and sums in place. Without a group: what is mine.
StatusOr<double> Largest(comm::Collective* group, double mine, const char* what);
Status AddRanks(comm::Collective* group, std::vector<double>& sums, const char* what);

// Returns of the finished episodes, or nothing where none ended; rewards and counts.
Status ScoreMetrics(std::span<const FragmentRow> rows, comm::Collective* group,
                    std::map<std::string, double>& metrics);

}  // namespace tidepool::policy
