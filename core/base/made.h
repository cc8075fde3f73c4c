#pragma once
// Calls of a plug-in's factory: what it throws becomes an error that names the plug-in.

#include <exception>
#include <string>

#include "core/base/status.h"

namespace tidepool {

// What `make` returns, a StatusOr. kInvalidArgument: it threw. `label`: the plug-in with its file.
template <typename Make>
auto Made(const std::string& label, Make&& make) -> decltype(make()) try {
  return make();
} catch (const std::exception& e) {
  return InvalidArgument(label + ": its .make threw an exception: " + e.what());
} catch (...) {
  return InvalidArgument(label + ": its .make threw something that is no std::exception");
}

}  // namespace tidepool
