#pragma once
// The report's time line: one lane for each role of each worker, spans coloured by category.

#include <string>
#include <vector>

#include "core/observe/run_data.h"

namespace tidepool::observe {

// Colour of a span category; the same everywhere in the report.
std::string CategoryColor(const std::string& category);

// SVG of the spans within [from_s, to_s]; spans closer than a pixel are drawn as one. Empty if there
// are none. `marks_s` are thin vertical lines (ends of steps).
std::string TimelineSvg(const ReadTrace& trace, double from_s, double to_s,
                        const std::vector<double>& marks_s);

// Spans made from the phase times of the metrics (timing_s/*), one lane, for runs without traces.
ReadTrace TraceFromMetrics(const RunData& run);

}  // namespace tidepool::observe
