#include "workers/device/row_outlines.h"

#include "core/base/little_endian.h"
#include "core/sample/codec.h"

namespace tidepool::workers {

std::string OutlinesOf(std::span<const StatusOr<sample::Trajectory>> read) {
  std::string out;
  for (const StatusOr<sample::Trajectory>& t : read) {
    StatusOr<std::string> outline = t.ok() ? sample::Encode(t->Outline()) : t.status();
    PutNumber(out, static_cast<uint8_t>(outline.ok() ? 1 : 0));
    PutString(out, outline.ok() ? *outline : outline.status().message());
  }
  return out;
}

Status TakeOutlines(std::span<const std::string> said, int64_t rank, std::vector<BatchRow>& rows,
                    std::vector<BadRow>& bad) {
  std::vector<ByteReader> of(said.begin(), said.end());
  for (BatchRow& row : rows) {
    if (row.stored.payload_file < 0) continue;
    if (row.rank < 0 || row.rank >= static_cast<int64_t>(of.size()))
      return Internal("row " + ToString(row.stored.tid) + " is one of rank " + std::to_string(row.rank) +
                      " in a group of " + std::to_string(of.size()));
    ByteReader& reader = of[static_cast<size_t>(row.rank)];
    const bool read = reader.Number<uint8_t>() == 1;
    const std::string_view text = reader.String();
    if (reader.ok() && !read) {
      if (bad.size() < kMostBadRows) bad.push_back({row.stored.tid, BadRowWords(text)});
    } else if (reader.ok() && row.rank != rank) {
      auto outline = sample::Decode(text);
      if (!outline.ok() || !outline->is_outline() || outline->tid != row.stored.tid ||
          outline->prompt_size() != row.stored.prompt_len || outline->size() != row.stored.response_len)
        return Internal("rank " + std::to_string(row.rank) + " said another outline than that of row " +
                        ToString(row.stored.tid));
      row.trajectory = *std::move(outline);
    }
  }
  for (size_t r = 0; r < of.size(); ++r)
    if (!of[r].ok() || of[r].left() > 0)
      return Internal("rank " + std::to_string(r) + " said outlines of other rows than its own");
  return bad.empty() ? OkStatus() : InvalidArgument(Described(bad));
}

}  // namespace tidepool::workers
