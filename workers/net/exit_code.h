#pragma once
// How a process of a run ends that cannot go on, for whoever started it.

#include "core/base/status.h"

namespace tidepool::workers {

// 2: another process at its place would end so again (another build, a config, a certificate), and none is to
// be started; 3: it may be otherwise next time.  requires an error
inline int ExitCodeOf(const Status& why) {
  switch (why.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kNotFound:
    case StatusCode::kPermissionDenied:
    case StatusCode::kUnauthenticated:
    case StatusCode::kUnimplemented:
      return 2;
    default:
      return 3;
  }
}

}  // namespace tidepool::workers
