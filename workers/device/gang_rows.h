#pragma once
// The rows of a batch inside a gang. Ranks that have parts of one model (train.mesh.tp) train on the same
// rows: the first of them fetches these, and the others get them from it, over the collective of the gang. So
// a batch is fetched, and its payloads are decoded, once for each gang.
//
// The first rank says as often as it likes how long the rows may take from then on (ExpectRows), and then
// gives them, or why there are none (GiveRows). The others take them (TakeRows). A rank that does not come is
// named by the collective with what is waited for.

#include <cstdint>
#include <functional>

#include "core/base/status.h"
#include "core/comm/collective.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

// Errors of the collective.
Status ExpectRows(comm::Collective& gang, double within_s);
Status GiveRows(comm::Collective& gang, const StatusOr<FetchedRows>& fetched);
// Rows of `rank` (BatchRow::rank) are compared with the digests of the journal. `within_s`: until the first
// word of who fetches. Errors of the collective; kUnavailable: who fetches has no rows, and why; kInternal:
// what came are no rows, or others than the journal's; kAborted: go_on said no while nothing came, which is
// asked where ranks exchange by memory.
StatusOr<FetchedRows> TakeRows(comm::Collective& gang, int64_t rank, double within_s,
                               const std::function<bool()>& go_on);

}  // namespace tidepool::workers
