#pragma once
// Calls of a plug-in's factory: what it throws becomes an error that names the plug-in; a crash in it, or one
// that does not come back, is told with its name (core/base/limited_call.h).

#include <exception>
#include <string>

#include "core/base/limited_call.h"
#include "core/base/status.h"

namespace tidepool {

// The function of a plug-in that is called. `label`: the plug-in with its file. `place`: what comes before
// that in an error, "name: ".
struct FactoryCall {
  std::string label;
  std::string function = ".make";
  std::string place = {};
};

// What `make` returns, a StatusOr. kInvalidArgument: it threw.
template <typename Make>
auto Made(const FactoryCall& called, Make&& make) -> decltype(make()) {
  const auto threw = [&](const std::string& what) {
    return InvalidArgument(called.place + called.label + ": its " + called.function + " threw " + what);
  };
  const LimitedCall call(
      {.what = called.label, .on = "the options of the job (its " + called.function + ")"});
  try {
    return make();
  } catch (const std::exception& e) {
    return threw(std::string("an exception: ") + e.what());
  } catch (...) {
    return threw("something that is no std::exception");
  }
}

}  // namespace tidepool
