#pragma once
// The page that shows a report, as it stands in core/observe/report.html. The build puts it into the program.

#include <string_view>

namespace tidepool::observe {

// One HTML document. {{run}} stands where the JSON of a run belongs.
std::string_view ReportPage();

}  // namespace tidepool::observe
