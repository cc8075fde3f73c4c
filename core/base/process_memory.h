#pragma once
// Memory of this process, as the system counts it (/proc/self/status). Any thread; 0 where it does not say.

#include <cstdint>

namespace tidepool {

// Pages that are resident and only this process has.
int64_t PrivateResidentBytes();
// The largest resident memory so far. getrusage would count that of the program which started this one, too.
int64_t PeakResidentBytes();

}  // namespace tidepool
