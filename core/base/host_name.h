#pragma once
// The name of this machine, for messages.

#include <string>

namespace tidepool {

std::string HostName();  // "?": the system does not say

}  // namespace tidepool
