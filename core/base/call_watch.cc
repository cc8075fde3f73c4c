#include "core/base/call_watch.h"

#include <cstdio>

namespace tidepool {

std::string PluginCall::Late() const {
  char limit[32];
  std::snprintf(limit, sizeof(limit), "%g s", Seconds());
  std::string late = what + " did not return within " + limit;
  if (!key.empty()) late += " (" + key + ")";
  late += " on " + on + "; correct it";
  return key.empty() ? late : late + ", or raise " + key;
}

}  // namespace tidepool
