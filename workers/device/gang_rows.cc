#include "workers/device/gang_rows.h"

#include <span>
#include <string>
#include <utility>

#include "core/base/little_endian.h"
#include "core/sample/codec.h"
#include "workers/net/wire.h"

namespace tidepool::workers {
namespace {

constexpr const char* kWord = "rows";  // of the collectives, in errors
constexpr int kFirst = 0;              // who fetches

enum class Kind : uint8_t { kExpect, kFailed, kRows };

// kExpect: seconds; kFailed: why; kRows: how many bytes follow.
struct Word {
  Kind kind = Kind::kFailed;
  double within_s = 0;
  uint64_t bytes = 0;
  std::string why;
};

std::string Encode(const Word& word) {
  std::string out;
  PutNumber(out, static_cast<uint8_t>(word.kind));
  PutNumber(out, word.within_s);
  PutNumber(out, word.bytes);
  PutString(out, word.why);
  return out;
}

StatusOr<Word> Decode(const std::string& bytes) {
  ByteReader reader(bytes);
  Word word;
  const auto kind = reader.Number<uint8_t>();
  word.within_s = reader.Number<double>();
  word.bytes = reader.Number<uint64_t>();
  word.why = reader.String();
  if (!reader.ok() || reader.left() > 0 || kind > static_cast<uint8_t>(Kind::kRows))
    return Internal("the rank that fetches the rows says something else than how they are");
  word.kind = static_cast<Kind>(kind);
  return word;
}

// Everybody hears what the first rank says.
StatusOr<std::string> Hear(comm::Collective& gang, const std::string& mine, double patience_s) {
  TP_ASSIGN_OR_RETURN(auto all, gang.AllGather(mine, kWord, patience_s));
  return std::move(all[kFirst]);
}

// In place: everybody gets the bytes of the first rank.
Status Spread(comm::Collective& gang, std::string& bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  std::vector<sharding::Interval> of_rank(static_cast<size_t>(gang.size()), {size, size});
  of_rank[kFirst] = {0, size};
  return gang.AllGather(std::as_writable_bytes(std::span(bytes)), of_rank, kWord);
}

Status AreTheJournals(const FetchedRows& fetched, int64_t rank) {
  for (const BatchRow& row : fetched.rows) {
    if (row.rank == rank &&
        (row.trajectory.is_outline() || sample::Digest(row.trajectory) != row.stored.digest))
      return Internal("row " + ToString(row.stored.tid) + " is not what its ENQ says");
  }
  return OkStatus();
}

}  // namespace

Status ExpectRows(comm::Collective& gang, double within_s) {
  return Hear(gang, Encode(Word{.kind = Kind::kExpect, .within_s = within_s}), 0).status();
}

Status GiveRows(comm::Collective& gang, const StatusOr<FetchedRows>& fetched) {
  if (!fetched.ok())
    return Hear(gang, Encode(Word{.kind = Kind::kFailed, .why = fetched.status().message()}), 0).status();
  std::string bytes = AsBytes(*fetched);
  TP_RETURN_IF_ERROR(Hear(gang, Encode(Word{.kind = Kind::kRows, .bytes = bytes.size()}), 0).status());
  return Spread(gang, bytes);
}

StatusOr<FetchedRows> TakeRows(comm::Collective& gang, int64_t rank, double within_s) {
  while (true) {
    TP_ASSIGN_OR_RETURN(const std::string said, Hear(gang, "", within_s));
    TP_ASSIGN_OR_RETURN(const Word word, Decode(said));
    if (word.kind == Kind::kFailed)
      return Unavailable("the rank that fetches the rows of this gang has none: " + word.why);
    if (word.kind == Kind::kRows) {
      std::string bytes(word.bytes, '\0');
      TP_RETURN_IF_ERROR(Spread(gang, bytes));
      TP_ASSIGN_OR_RETURN(FetchedRows fetched, FetchedFrom(bytes));
      if (fetched.bad.empty()) TP_RETURN_IF_ERROR(AreTheJournals(fetched, rank));
      return fetched;
    }
    within_s = word.within_s;
  }
}

}  // namespace tidepool::workers
