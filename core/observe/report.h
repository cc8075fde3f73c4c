#pragma once
// `tidepool report`: one self-contained HTML page about a run that is live, finished or failed.
//
// The page is a file of its own, core/observe/pages/report.html, which draws itself from a block of JSON. The
// code here writes that block and knows nothing of how it is shown.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/observe/run_data.h"

namespace tidepool::observe {

// Writes run_dir/report.html (whole or not at all). kNotFound: no run directory.
Status WriteReport(const std::string& run_dir);

// The page with the data of a run in it. Pure.
std::string ReportHtml(const RunData& run);

// `page` with the data in the place of {{run}}, so that no text of it can end the block. Pure.
std::string PageWith(std::string_view page, const nlohmann::json& data);

// The data of the page. Pure. Long curves and time lines are made coarser, so that a page of a run of any
// length opens in a browser:
//   folder, facts, state, exit_code, problems   as in RunData
//   config, values                              config.yaml; its keys and values (core/observe/config_text.h)
//   seconds, peak_bytes, drops, faults          numbers by name
//   lost                                        lines: samples that were lost, and why the last
//   steps: [[step ...] ...], metrics: {name: {x: index into steps, y, median, max}}
//   clock: [[step, second of the run] ...]
//   trace, pool: {lanes, categories, names, spans: [[lane, category, name, from, seconds, count] ...]}; the
//   last
//     three of a span's first numbers are indices. pool also: steps (ends, in seconds), end_s, moves, times,
//     restores
//   samples: [{step, rows: [{prompt, text, reward, rewards, about}]}]
nlohmann::json ReportData(const RunData& run);
// Its parts that the dashboard asks for one by one. Pure.
nlohmann::json PoolData(const PoolHistory& pool);
nlohmann::json SampleData(const SampleRow& row);
// Of it what a page with curves of several runs needs: folder to values, steps, metrics, clock. Pure.
nlohmann::json CurvesData(const RunData& run);

}  // namespace tidepool::observe
