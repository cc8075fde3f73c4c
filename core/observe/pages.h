#pragma once
// The pages that show runs, as they stand in core/observe/pages/ with what they include. The build puts them
// into the program.

#include <string_view>

namespace tidepool::observe {

// HTML documents that draw themselves from a block of JSON; {{run}} stands where it belongs.
std::string_view ReportPage();

}  // namespace tidepool::observe
