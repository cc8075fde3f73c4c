#pragma once
// What `tidepool journal` and `tidepool check` say alike about a journal.

#include "core/base/status.h"
#include "workers/cli/run_lookup.h"

namespace tidepool::workers {

// `status` of reading the journal of `place`; of a run that has no record yet, what to do about it.
Status OfJournal(const RunPlace& place, const Status& status);

}  // namespace tidepool::workers
