#pragma once
// Token logs: what an engine samples and what an environment answers, from the moment it is said until the
// sample is a payload (payload.h). The process that makes tokens writes them, so that they are in files when
// it is killed and need not pass through the controller, which knows lengths, versions and places.
//
// Folder `tokens/`, readable by the owner only. Files are numbered like those of payload/. Little-endian.
//   header  magic "TPTOKS\r\n" | schema u32 = 1 | file u64 | run id {u32, bytes}
//   entry   bytes u32 (of all that follows) | tid {i64, i32, i32} | att i32 | from i64 | before {file i64,
//           offset i64} | a segment (core/sample/codec.h) | Hash64 u64 of all that is before it
//
// `from`: tokens of the attempt that go before the segment; `before`: the entry that has the last of them, in
// whichever file, none where `from` is 0. So an attempt is the chain that ends at its newest entry.
//
// `proof`, in this folder and in payload/, is a random word of the run: a worker that reads there what its
// controller names sees the run's own folders, and not others at the same paths.

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/file_system.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/sample/trajectory.h"

namespace tidepool::storage {

// Of the newest entry of an attempt.
struct TokenPlace {
  int64_t file = -1, offset = 0;
  [[nodiscard]] bool valid() const { return file >= 0; }
  friend bool operator==(const TokenPlace&, const TokenPlace&) = default;
};

struct LoggedTokens {
  SampleId tid;
  int32_t att = 0;
  int64_t from = 0;
  TokenPlace before;
  sample::Segment tokens;
};

// Not thread-safe.
class TokenLogWriter {
 public:
  // Makes `dir` if need be. The first Append begins the first file from number `first` on that is not there.
  static StatusOr<std::unique_ptr<TokenLogWriter>> Open(FileSystem& fs, const std::string& dir,
                                                        const std::string& run_id, int64_t first,
                                                        int64_t file_bytes = int64_t{64} << 20);
  // Writes all of them at once (safe from the death of this process) and says where each is. An error is
  // final.
  StatusOr<std::vector<TokenPlace>> Append(const std::vector<LoggedTokens>& entries);
  [[nodiscard]] std::string current_file() const { return path_; }  // empty before the first Append

 private:
  TokenLogWriter(FileSystem& fs, std::string dir, std::string run_id, int64_t first, int64_t file_bytes)
      : fs_(fs), dir_(std::move(dir)), run_id_(std::move(run_id)), next_(first), file_bytes_(file_bytes) {}

  FileSystem& fs_;
  const std::string dir_, run_id_;
  int64_t next_;  // number of the file that comes after file_
  const int64_t file_bytes_;
  std::string path_;
  std::unique_ptr<WritableFile> file_;
  Status broken_;
};

// An attempt, and the files that its chain lies in.
struct TokenChain {
  std::vector<sample::Segment> segments;  // joined where they are of one kind
  std::set<int64_t> files;
  int64_t from = 0;  // tokens of the attempt that go before
};
// All of the attempt up to the entry at `newest`; or what is behind the entry at `known`.  kNotFound,
// kDataLoss: it is not there whole.
StatusOr<TokenChain> ReadTokenChain(FileSystem& fs, const std::string& dir, const SampleId& tid, int32_t att,
                                    const TokenPlace& newest, const TokenPlace& known = {});
// The segments that `outline` has the shape of, with the tokens of the chain. kDataLoss: the chain has other
// tokens.
StatusOr<std::vector<sample::Segment>> FillOutline(const std::vector<sample::Segment>& outline,
                                                   TokenChain chain, const SampleId& tid);
// What another host has written may take a moment to be seen on this one: reads again until it is there, up
// to `until`.
StatusOr<TokenChain> AwaitTokenChain(FileSystem& fs, const std::string& dir, const SampleId& tid, int32_t att,
                                     const TokenPlace& newest, std::chrono::steady_clock::time_point until,
                                     const TokenPlace& known = {});

// Deletes the files that are in no attempt under way: all but those in `used`, those of a writer in `writing`
// (WriterOf) from the number there on, and those of writers behind `newest_writer`, which have begun since.
// kNotFound is no error: there is no folder.
Status DeleteTokenFiles(FileSystem& fs, const std::string& dir, const std::set<int64_t>& used,
                        const std::map<int64_t, int64_t>& writing, int64_t newest_writer);

// The run's word, made where there is none yet, in each of these folders.
StatusOr<std::string> MakeTokenProof(FileSystem& fs, const std::vector<std::string>& dirs);
// All of them have it.
bool HasTokenProof(FileSystem& fs, const std::vector<std::string>& dirs, const std::string& proof);

}  // namespace tidepool::storage
