#pragma once
// Using a model outside a run: one device worker process on loopback, driven directly. The same worker
// and engine as in training, no journal. One thread owns a session.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/own_weights.h"
#include "core/base/status.h"
#include "workers/net/messages.h"

namespace tidepool::workers {

struct InferenceOptions {
  // What the worker takes of a job: model, rollout, cluster.threads_per_slot, seed, deterministic.
  JobConfig job;
  int64_t max_position = 0;  // of the model: an answer ends there
  std::string worker_path;   // tidepool-worker
  double start_timeout_s = 300;
  int64_t together_ms = 100;               // tokens are told so late at most; often costs throughput
  std::vector<std::string> adapters = {};  // folders, of the model: requests may name them, from 0 on
  std::function<bool()> stop;              // asked often; true: what goes on ends with kAborted
};

struct Completion {
  TokenRecord tokens;
  bool ended = false;  // by itself, not cut at the limit
  std::string error;   // not empty: this prompt could not be completed
};

class InferenceSession {
 public:
  // Starts the worker and returns: the model is loaded while the caller prepares its prompts. Complete()
  // waits for it; what went wrong is its error then.
  static StatusOr<std::unique_ptr<InferenceSession>> Start(const InferenceOptions& options);
  ~InferenceSession();

  // --- one chunk at a time, for a caller with requests that come and go. The worker serves; meanwhile (may
  // be empty) is called some twenty times a second until it does:
  Status Await(const std::function<void()>& meanwhile = {});
  // Slot, epoch and version are the session's. Where the chunk goes on, `have` spares prompt and tokens.
  void Send(down::StartChunk chunk);
  // The attempt is over: what the worker keeps of it beside its KV goes, and what is under way of it ends.
  void Drop(const SampleId& tid, int32_t att);
  // What has come, of any chunk; waits so long for it at most. Ask often: the worker is told by it that it
  // may serve on. kUnavailable: the worker died.
  StatusOr<std::vector<up::StepTokens>> Wait(std::chrono::milliseconds patience);
  // Only tells the worker so; what has come is kept.
  Status Renew();
  void Wake();  // ends a Wait early; any thread

  // --- many requests at once
  struct Request {
    // Names the noise: the same (seed, ordinal, sample) gives the same tokens. Of each adapter once.
    int64_t ordinal = 0;
    int32_t sample = 0;
    std::vector<int32_t> prompt;
    bool greedy = false;
    int64_t max_new_tokens = 0;  // at most rollout.max_new_tokens; 0: those
    int32_t adapter = kOwnWeights;
  };
  // Completes all requests, results in their order. `on_tokens` (may be empty) gets tokens as they come,
  // `on_done` each completion when it is whole, in the order in which they end. kInvalidArgument: the model
  // cannot be loaded; kUnavailable: the worker died; kDeadlineExceeded: no token for 120 s.
  StatusOr<std::vector<Completion>> Complete(
      const std::vector<Request>& requests,
      const std::function<void(size_t request, const std::vector<int32_t>& ids)>& on_tokens = {},
      const std::function<bool()>& stop = {},
      const std::function<void(size_t request, const Completion& completion)>& on_done = {});

 private:
  InferenceSession();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool::workers
