#pragma once
// Payload files: the tokens of finished samples, beside the journal. A sample's bytes are durable here
// before its ENQ record says where they are, so a training step can be repeated from them alone.
//
// Folder `payload/`: 0000.tpp, 0001.tpp, ..., append-only, readable by the owner only. Little-endian.
//   header   magic "TPPAYL\r\n" | schema u32 | file u64 | run id {u32, bytes}
//   payload  bytes u32 (all of it, these four included) | tid {i64, i32, i32} | att i32 | finish u8 |
//            u32 n, prompt i32[n] | u32 n, response i32[n] | u32 n, logprobs f32[n] |
//            u32 n, log_kept f32[n] | u32 n, versions {lineage i32, number i64, tokens i32}[n]
//            and, up to the last one that is not empty: | u32 n, routing u8[n] | u32 n, loss_mask u8[n] | u32
//            n, fragment u8[n] | u32 n, turns {begin i64, state u64, reward_before f64}[n]
// A payload's digest is Hash64 of all its bytes; it is kept in ENQ, so that damage here is found even
// if this file looks well-formed. Each life of a controller begins a new file at its first Append.

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/file_system.h"
#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/base/turn_mark.h"

namespace tidepool::storage {

enum class FinishReason : uint8_t { kEos = 0, kStop = 1, kLength = 2 };

// `tokens` tokens in a row that were sampled by one version.
struct VersionRun {
  Version version;
  int32_t tokens = 0;
  friend bool operator==(const VersionRun&, const VersionRun&) = default;
};

struct Payload {
  SampleId tid;
  int32_t att = 0;
  std::vector<int32_t> prompt;    // [prompt] token ids
  std::vector<int32_t> response;  // [response]
  std::vector<float> logprobs;    // [response], nats, under the distribution that sampled; or empty (sft)
  std::vector<float> log_kept;    // [response], log of the mass that top-k, top-p, min-p left; empty: all 0
  std::vector<VersionRun> versions;  // their tokens sum to [response]; or empty (sft)
  std::string
      routing;  // experts of the rows that the response was drawn from (core/model/routing.h), or empty
  std::vector<uint8_t> loss_mask;  // [response], 0 on tokens that an environment said; empty: all 1
  // In place of tokens: a fragment of a policy of control tasks (core/policy/fragment.h), whose steps
  // `versions` counts.
  std::string fragment;
  std::vector<TurnMark> turns;  // of an episode, ascending; else empty
  FinishReason finish = FinishReason::kEos;
  friend bool operator==(const Payload&, const Payload&) = default;
};

// Appends `version` for `tokens` more tokens, joining it to the last run where it is the same.
void AddVersion(std::vector<VersionRun>& runs, const Version& version, int32_t tokens);

// Where a payload is; what ENQ holds.
struct PayloadRef {
  int64_t file = -1;
  int64_t offset = 0;
  int64_t bytes = 0;
  uint64_t digest = 0;
  friend bool operator==(const PayloadRef&, const PayloadRef&) = default;
};

// kInvalidArgument if the lengths of a payload do not agree.
StatusOr<std::string> EncodePayload(const Payload& payload);
// kDataLoss if the bytes do not parse.
StatusOr<Payload> DecodePayload(std::string_view bytes);

// Not thread-safe: one thread owns it.
class PayloadWriter {
 public:
  // Makes `dir` if need be. Files of earlier lives are left alone; numbers go on after theirs.
  static StatusOr<std::unique_ptr<PayloadWriter>> Open(FileSystem& fs, const std::string& dir,
                                                       const std::string& run_id,
                                                       int64_t file_bytes = int64_t{64} << 20);
  // Writes the payload (safe from the death of this process) and says where. kInvalidArgument;
  // kResourceExhausted: disk full, nothing written, may be tried again; other errors are final.
  StatusOr<PayloadRef> Append(const Payload& payload);
  // The file that is written now, empty before the first; earlier ones are durable.
  [[nodiscard]] std::string current_file() const;
  // Returns when everything appended so far is durable.
  Status Sync();

 private:
  PayloadWriter(FileSystem& fs, std::string dir, std::string run_id, int64_t file_bytes)
      : fs_(fs), dir_(std::move(dir)), run_id_(std::move(run_id)), file_bytes_(file_bytes) {}
  Status StartFile();

  FileSystem& fs_;
  std::string dir_, run_id_;
  int64_t file_bytes_;
  int64_t number_ = -1;
  std::unique_ptr<WritableFile> file_;
  bool unsynced_ = false;
  Status broken_;
};

// Thread-safe.
class PayloadReader {
 public:
  PayloadReader(FileSystem& fs, std::string dir) : fs_(fs), dir_(std::move(dir)) {}
  // kNotFound: the file is gone; kDataLoss: the bytes there do not have `ref.digest`, or are cut short.
  StatusOr<Payload> Read(const PayloadRef& ref);

 private:
  FileSystem& fs_;
  std::string dir_;
  std::mutex mu_;
  std::map<int64_t, std::shared_ptr<ReadableFile>> files_;  // guarded by mu_; shared with reads in flight
};

// Deletes the files with numbers below `smallest_needed` (the smallest file that an ENQ which may still be
// trained, or trained again from a kept checkpoint, refers to). Returns how many went.
StatusOr<int64_t> DeletePayloadFilesBelow(FileSystem& fs, const std::string& dir, int64_t smallest_needed);

}  // namespace tidepool::storage
