#pragma once
// Before a step: the ranks of a group agree on the rows that cannot be trained on.

#include <string>
#include <vector>

#include "core/base/bad_row.h"
#include "core/base/status.h"
#include "core/comm/collective.h"

namespace tidepool::train {

// A rank that cannot use its rows would leave the others in their first collective. So all say what they
// found, and all refuse the batch, as data (kInvalidArgument), and name the same rows.
// `mine`: what is wrong with the batch as a whole. `bad`: the rows that this rank found; with an error, those
// of all ranks, in their order, each with what the lowest rank said of it. group null: there is one rank.
Status AgreeOnRows(comm::Collective* group, const Status& mine, std::vector<BadRow>& bad,
                   const std::string& who);

}  // namespace tidepool::train
