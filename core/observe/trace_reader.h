#pragma once
// Reads trace files back: for the report's time line.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace tidepool::observe {

struct ReadSpan {
  int64_t worker = 0;
  int64_t role = 0;
  std::string name;
  std::string category;
  double start_s = 0;  // in the run's clock
  double duration_s = 0;
};

struct ReadTrace {
  std::map<int64_t, std::string> workers;                    // names by pid
  std::map<std::pair<int64_t, int64_t>, std::string> roles;  // names by (pid, tid)
  std::vector<ReadSpan> spans;                               // in order of start
  std::vector<std::string> problems;                         // files that could not be read
};

// All *.json.gz and *.json files of a folder; a folder that is not there gives an empty trace.
ReadTrace ReadTraces(const std::string& folder);

// The bytes of a gzip file (several members are read as one) or of a plain one. kDataLoss.
StatusOr<std::string> Gunzip(const std::string& bytes, int64_t max_bytes);

}  // namespace tidepool::observe
