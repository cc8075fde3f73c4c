#pragma once
// What the dashboard (`tidepool dashboard`) says about the runs of a folder, as JSON, and its page. It reads
// files and changes none; a run that is half written or gone is an answer like another. What is expensive is
// kept, and made anew only when its files changed and at most a twentieth of the time. Thread-safe.
//
//   /                                the page; has nothing of the runs in it
//   /api/runs                        {root, runs: [RunBrief, workers/cli/run_list.h]}
//   /api/run?run=R&cursor=C&seen=S   brief; live (status.json); curves, what is new since C
//                                    (core/observe/live_curves.h), more: there is more of it; seen, and where
//                                    S is another: folder, facts, config, values; seconds, peak_bytes, drops,
//                                    lost; steps of samples; problems
//   /api/pool?run=R                  slots over time (core/observe/report.h: pool), faults; problem: why the
//                                    journal cannot be read. null: it is just being read
//   /api/samples?run=R&step=N        [{prompt, text, reward, rewards, about}]
//   /api/logs?run=R                  [{name, bytes}]
//   /api/log?run=R&name=L&from=B     {text, from, to, bytes}: from byte B on, without one the end
//   /api/compare?runs=R/S            config's differences and figures (core/observe/comparison.h)
//
// A run is named by its folder's name. Errors: {error} with 400, 404, or 503: a look at the same files is
// under way and takes long. /api/runs then has what was known before, and "unreadable" where that is nothing.

#include <cstdint>
#include <memory>
#include <string>

#include "workers/net/http_server.h"

namespace tidepool::workers {

class Board {
 public:
  // Looks at files at a time: a disk that hangs takes one or two for each run that is looked at, and whoever
  // serves this has threads besides.
  static constexpr int64_t kLooksMax = 15;
  explicit Board(std::string root);  // folder of runs
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  HttpResponse Answer(const HttpRequest& request);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool::workers
