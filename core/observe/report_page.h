#pragma once
// The fixed parts of the report: its style sheet and its script.

#include <string_view>

namespace tidepool::observe {

std::string_view ReportStyle();
std::string_view ReportScript();

}  // namespace tidepool::observe
