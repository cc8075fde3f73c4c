#pragma once
// The pages that show runs, as they stand in core/observe/pages/ with what they include. The build puts them
// into the program.

#include <string_view>

namespace tidepool::observe {

// HTML documents that draw themselves from a block of JSON; {{run}} stands where it belongs.
std::string_view ReportPage();
std::string_view ComparePage();
// Draws itself from what it asks its server (workers/board/board.h); {{nonce}} stands where scripts may run.
std::string_view DashboardPage();

}  // namespace tidepool::observe
