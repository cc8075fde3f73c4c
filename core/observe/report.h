#pragma once
// `tidepool report`: one self-contained HTML page about a run, live, finished or failed. Charts are
// inline SVG; nothing is loaded from anywhere.

#include <string>

#include "core/base/status.h"
#include "core/observe/run_data.h"

namespace tidepool::observe {

// Writes run_dir/report.html (whole or not at all). kNotFound: no run directory.
Status WriteReport(const std::string& run_dir);

// The page itself. Pure.
std::string ReportHtml(const RunData& run);

}  // namespace tidepool::observe
