#include "workers/device/gang_rows.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "core/base/little_endian.h"
#include "core/sample/codec.h"
#include "workers/net/wire.h"

namespace tidepool::workers {
namespace {

constexpr const char* kWord = "rows";        // of the collectives, in errors
constexpr int kFirst = 0;                    // who fetches
constexpr double kLate_s = 60;               // the first rank waits so long for others
constexpr size_t kPiece = size_t{64} << 20;  // of what is spread within one deadline
constexpr std::chrono::milliseconds kLook{50};

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
  std::span<std::byte> left = std::as_writable_bytes(std::span(bytes));
  while (!left.empty()) {
    const std::span<std::byte> piece = left.first(std::min(left.size(), kPiece));
    const auto size = static_cast<int64_t>(piece.size());
    std::vector<sharding::Interval> of_rank(static_cast<size_t>(gang.size()), {size, size});
    of_rank[kFirst] = {0, size};
    TP_RETURN_IF_ERROR(gang.AllGather(piece, of_rank, kWord));
    left = left.subspan(piece.size());
  }
  return OkStatus();
}

// Until the first rank has something to say, or for so long, where ranks that wait can look around meanwhile.
Status Await(comm::Collective& gang, double within_s, const std::function<bool()>& go_on) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(within_s);
  while (std::chrono::steady_clock::now() < until) {
    const StatusOr<bool> begun = gang.Begun(kFirst, kLook);
    if (begun.status().code() == StatusCode::kUnimplemented) return OkStatus();
    TP_RETURN_IF_ERROR(begun.status());
    if (*begun) return OkStatus();
    if (!go_on()) return Aborted("the wait for rows was called off");
  }
  return OkStatus();
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
  return Hear(gang, Encode(Word{.kind = Kind::kExpect, .within_s = within_s}), kLate_s).status();
}

Status GiveRows(comm::Collective& gang, const StatusOr<FetchedRows>& fetched) {
  if (!fetched.ok())
    return Hear(gang, Encode(Word{.kind = Kind::kFailed, .why = fetched.status().message()}), kLate_s)
        .status();
  std::string bytes = AsBytes(*fetched);
  TP_RETURN_IF_ERROR(Hear(gang, Encode(Word{.kind = Kind::kRows, .bytes = bytes.size()}), kLate_s).status());
  return Spread(gang, bytes);
}

StatusOr<FetchedRows> TakeRows(comm::Collective& gang, int64_t rank, double within_s,
                               const std::function<bool()>& go_on) {
  while (true) {
    const auto began = std::chrono::steady_clock::now();
    TP_RETURN_IF_ERROR(Await(gang, within_s, go_on));
    // By sockets this is the wait; else only a rank that did not come is left to be named.
    const double left_s =
        within_s - std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    TP_ASSIGN_OR_RETURN(const std::string said, Hear(gang, "", std::max(left_s, 0.1)));
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
