#pragma once
// Rewards that are models: the score of a reward model, the grade of a judge (core/tasks/judge.h). A reward
// worker with one of them is the program that computes (`tidepool-worker reward`), and has a thread for each
// such function, which loads its model, computes with it on the CPU, and owns it. Those of its callers that
// wait are computed together, and a sample's score does not depend on which they are (core/model/decoder.h).
// Here is what needs no LibTorch: what a reward worker asks of such a function, and what is known of one
// before it is there.

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "core/base/call_watch.h"
#include "core/base/config.h"
#include "core/base/status.h"
#include "core/model/spec.h"
#include "core/tasks/reward.h"
#include "workers/data/row_source.h"
#include "workers/side/reward_server.h"

namespace tidepool::workers {

// Thread-safe.
class ModelReward {
 public:
  virtual ~ModelReward() = default;
  // Verdicts of all inputs. Waits while the model is loaded, for reward.load_timeout_s at most, and then no
  // longer than timeout_s: kInfra; and not for long after `stop`.
  virtual Verdicts Ask(RewardInputs inputs, const std::stop_token& stop) = 0;
  // Why it is of no use any more: it could not be loaded, or memory was short.
  [[nodiscard]] virtual std::optional<std::string> failure() const = 0;
};

// Of a function by model. Loads and calls are `watch`'s, which outlives it.
using OpenModelReward = std::function<std::unique_ptr<ModelReward>(const RewardFunction& function,
                                                                   const JobConfig& job, CallWatch& watch)>;

// The folder of a function by model: a whole model, or an adapter of a reward model with the model that it
// names.
struct GradingFolder {
  std::string dir;      // of the model, whose tokenizer counts
  std::string adapter;  // empty: none
  model::ModelSpec spec;
};
StatusOr<GradingFolder> FindGradingFolder(const RewardFunction& function);  // errors as CheckModelReward's
StatusOr<model::ModelSpec> SpecOf(const RewardFunction& function);

// Whether the folder of a function by model has what it needs: a model with a value head or a language model,
// and a tokenizer of its vocabulary. Of an adapter's model it compares tensors.
Status CheckModelReward(const RewardFunction& function);
// Tokens that the model can be given together with what it answers: max_tokens, or fewer positions.
int64_t MostTokens(const RewardFunction& function, const model::ModelSpec& spec);
// Of a judge's KV cache: for all that its callers ask at a time, as far as 256 MiB go.
int64_t JudgeKvTokens(const RewardFunction& function, const RewardConfig& reward,
                      const model::ModelSpec& spec);
bool IsJudge(const RewardFunction& function);

}  // namespace tidepool::workers
