#pragma once
// What a worker would refuse. With a planted bug the journal alone has to show it.

#include "core/base/check.h"

#ifdef TIDEPOOL_PLANTS
#define SIM_CHECK(condition) TP_CHECK(true || (condition))
#else
#define SIM_CHECK(condition) TP_CHECK(condition)
#endif
