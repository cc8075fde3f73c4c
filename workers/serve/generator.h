#pragma once
// Turns of many callers on one worker: continuous batching of what runs, a queue of what waits.
//
// A choice is generated in chunks (GeneratorOptions::chunk_tokens): the engine promises KV to the end of a
// chunk, not of an answer, so that answers that may be long do not keep others out. Choices begin in the
// order in which they came, as many at once as max_running and the KV cache have room for, counted to the end
// of their chunks. What they have of tokens stands here: a chunk that goes on brings them along, and where
// the worker has their KV still, nothing is computed again.

#include <chrono>
#include <cstdint>
#include <memory>

#include "core/base/status.h"
#include "workers/cli/inference.h"
#include "workers/serve/turn.h"

namespace tidepool::workers {

struct GeneratorOptions {
  int64_t max_running = 64;   // choices
  int64_t max_waiting = 256;  // choices beside these
  int64_t kv_tokens = 0;      // what the KV cache holds
  int64_t chunk_tokens = 256;
  std::chrono::milliseconds turn_timeout = std::chrono::minutes(30);  // from its begin to its last token
};

struct GeneratorCounts {
  int64_t running = 0, waiting = 0;  // choices, at present
  double kv_usage = 0;               // share of the KV cache that running requests have, of the last step
  int64_t prompt_tokens = 0, answer_tokens = 0;
  int64_t turns = 0, finished = 0, cancelled = 0, failed = 0,
          refused = 0;  // turns; refused: for want of room
};

class Generator {
 public:
  // Owns the session from now on; its worker may be starting still.
  Generator(std::unique_ptr<InferenceSession> session, const GeneratorOptions& options);
  ~Generator();  // ends what is under way without a word
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  // --- any thread
  // Returns the turn's number. kInvalidArgument: it can never fit; kResourceExhausted: too many wait;
  // kUnavailable: no turn begins any more, and why.
  StatusOr<int64_t> Begin(Turn turn, TurnSink sink);
  // Its sink hears nothing more, but for what is being said just now.
  void Cancel(int64_t turn);
  // No turn begins from now on, and `why`.
  void Close(const std::string& why);
  // Ends its thread: no sink hears anything from now on.
  void Stop();
  // Those that are under way fail.
  void EndAll(const Status& why);
  // Whether the worker serves by now; an error: it never will again. It has the worker's log, which is for
  // who runs the server, and for no caller.
  [[nodiscard]] StatusOr<bool> Serves() const;
  [[nodiscard]] GeneratorCounts Counts() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool::workers
