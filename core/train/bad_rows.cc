#include "core/train/bad_rows.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>

#include "core/base/little_endian.h"

namespace tidepool::train {
namespace {

// What one rank found, as it is sent to the others; nothing: all is well.
struct Found {
  std::string of_batch;
  std::map<SampleId, std::string> rows;

  [[nodiscard]] bool any() const { return !of_batch.empty() || !rows.empty(); }
  [[nodiscard]] std::string Encode() const {
    std::string out;
    if (!any()) return out;
    PutString(out, of_batch);
    for (const auto& [tid, why] : rows) {
      PutNumber(out, tid.ordinal);
      PutNumber(out, tid.issue);
      PutNumber(out, tid.sample);
      PutString(out, why);
    }
    return out;
  }
  // Adds what another rank found; what is there stays.
  bool Add(std::string_view bytes) {
    ByteReader reader(bytes);
    const std::string batch(reader.String());
    if (of_batch.empty()) of_batch = batch;
    while (reader.ok() && reader.left() > 0) {
      SampleId tid;
      tid.ordinal = reader.Number<int64_t>();
      tid.issue = reader.Number<int32_t>();
      tid.sample = reader.Number<int32_t>();
      std::string why(reader.String());
      if (reader.ok()) rows.emplace(tid, std::move(why));
    }
    return reader.ok();
  }
};

}  // namespace

Status AgreeOnRows(comm::Collective* group, const Status& mine, std::vector<BadRow>& bad,
                   const std::string& who) {
  Found found;
  if (!mine.ok()) found.of_batch = BadRowWords(mine.ToString());
  for (const BadRow& row : bad) {
    if (found.rows.size() < kMostBadRows) found.rows.emplace(row.tid, BadRowWords(row.why));
  }
  if (group != nullptr) {
    TP_ASSIGN_OR_RETURN(const std::vector<std::string> texts, group->AllGather(found.Encode(), "bad_rows"));
    Found all;
    for (const std::string& text : texts) {
      if (!text.empty() && !all.Add(text)) return Internal(who + ": a rank names its bad rows unreadably");
    }
    found = std::move(all);
  }
  bad.clear();
  for (auto& [tid, why] : found.rows) {
    if (bad.size() < kMostBadRows) bad.push_back({tid, std::move(why)});
  }
  if (!bad.empty()) return InvalidArgument(who + ": " + Described(bad));
  if (!mine.ok() || found.of_batch.empty()) return mine;
  return InvalidArgument(who + ": another rank: " + found.of_batch);
}

}  // namespace tidepool::train
