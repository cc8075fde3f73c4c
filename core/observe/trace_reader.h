#pragma once
// Reads trace files back: for the report's time line, which is a picture, so of a long run it keeps no more
// spans than a picture shows.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tidepool::observe {

struct ReadSpan {
  int64_t worker = 0;
  int64_t role = 0;
  std::string name;
  std::string category;
  double start_s = 0;  // in the run's clock
  double duration_s = 0;
  int64_t count = 1;   // of spans that became this one
  double share_s = 0;  // of several: what its category took
  bool mixed = false;  // of several: they had other categories, too
};

struct ReadTrace {
  std::map<int64_t, std::string> workers;                    // names by pid
  std::map<std::pair<int64_t, int64_t>, std::string> roles;  // names by (pid, tid)
  std::vector<ReadSpan> spans;                               // in order of start
  std::vector<std::string> problems;                         // files that could not be read to their end
  // Merges some where there are more than kSpansKeptMax; leaves them in any order.
  void Add(ReadSpan span);
};

inline constexpr size_t kSpansShownMax = 12000;  // of a time line
// Merging to as many as are shown each time one more comes would take the time of all of them for each.
inline constexpr size_t kSpansKeptMax = 4 * kSpansShownMax;

// Puts spans in order of start, and makes one of neighbours in a lane, the shortest and closest first, until
// there are `most` or nothing is left to merge.
void MergeSpans(std::vector<ReadSpan>& spans, size_t most);

// All *.json.gz and *.json files of a folder; a folder that is not there gives an empty trace. Of a file that
// is damaged what stands before that is there.
ReadTrace ReadTraces(const std::string& folder);

}  // namespace tidepool::observe
