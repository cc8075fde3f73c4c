#pragma once
// Environments for vector policies: many instances of one environment stepped together, with auto-reset.
//
// An instance's state is data (InstanceState): a set of instances can be stopped, sent to another process and
// gone on with there, and gives the same steps as if it had never moved. Every start state and every chance
// of the dynamics is a pure function of (seed, instance index, episode, step), so the same actions give the
// same steps, whatever the number of instances, processes and restarts.
//
// An episode ends `terminated` (its own rules; the value after it is 0) or `truncated` (the time limit alone;
// the value after it is that of the final observation). One that terminates on the last allowed step is
// terminated. After either the instance starts its next episode at once: the observation handed out is the
// new episode's first, and the finished one's last observation comes beside it.
//
// Not thread-safe: one thread owns a VectorEnvironment.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace tidepool::environments {

// What a policy has to know of an environment.
struct VectorSpec {
  std::string name;         // "cartpole"
  std::string file;         // that defines it
  std::string reference;    // "CartPole-v1", the environment whose dynamics these are
  bool continuous = false;  // actions are numbers in [low, high] (clipped by the environment), else choices
  int64_t observation_size = 0;  // numbers
  int64_t actions = 0;           // choices, or numbers of a continuous action
  double low = 0, high = 0;      // continuous only
  int64_t max_episode_steps = 0;
  double solved_return = 0;  // mean return over 100 episodes that counts as solved
  std::string reward;        // one line
  std::string options = {};  // of `environment`, one line; empty: it takes none
  bool served = false;       // by a program of its own (proto/environment.proto); then there is no `file`
  // Numbers of one action as it travels: 1 choice, or `actions` numbers.
  [[nodiscard]] int64_t action_size() const { return continuous ? actions : 1; }
};

// A control task: one file in control_tasks/ each. max_episode_steps > 0 replaces the environment's limit.
// kInvalidArgument names what is wrong, with the list of what there is.
struct VectorOptions {
  std::string name;
  std::map<std::string, std::string> options = {};
  int64_t max_episode_steps = 0;
  uint64_t seed = 1;
  std::optional<VectorSpec> served = {};  // the task is a service's, which says this of itself
};
StatusOr<VectorSpec> FindVectorEnvironment(const VectorOptions& options);
const std::vector<VectorSpec>& ListVectorEnvironments();
// "control task NAME (FILE)", or "environment NAME" of a service; for messages
std::string LabelOf(const VectorSpec& spec);

// One instance between two steps. In this process its state is four numbers. Of a service it is what was done
// in its episode, which follows from that (`loss: replay`), or cannot be had again (`loss: pinned`).
struct InstanceState {
  uint64_t index = 0;  // names the instance's noise
  int64_t episode = 0;
  int64_t steps = 0;              // of this episode
  double score = 0;               // sum of this episode's rewards
  std::array<double, 4> state{};  // the environment's own, unused places 0
  // Of a service alone.
  uint64_t digest = 0;  // of all that this episode has said
  std::vector<float> actions =
      {};  // [steps, action_size] of this episode; empty where they are of no use (pinned)
  friend bool operator==(const InstanceState&, const InstanceState&) = default;
};

// Instances of evaluations, beyond all that training plays: episode i of an evaluation is instance
// kEvaluationInstances + i.
inline constexpr uint64_t kEvaluationInstances = uint64_t{1} << 40;

inline constexpr uint8_t kTerminated = 1;
inline constexpr uint8_t kTruncated = 2;

// What one step of all instances made. [instances] unless said.
struct VectorStep {
  std::vector<float> observations;  // [instances, observation_size], what to act on next
  std::vector<float> rewards;
  std::vector<uint8_t> flags;             // 0, kTerminated or kTruncated
  std::vector<float> final_observations;  // [ended, observation_size]: of instances with a flag, in order
  std::vector<double> scores;             // [ended]: returns of the finished episodes
};

// Where instances `indices` begin their episode number `episode`. Errors of VectorEnvironment::Create.
StatusOr<std::vector<InstanceState>> StartStates(const VectorOptions& options,
                                                 std::span<const uint64_t> indices, int64_t episode = 0);
// The seed with which a service begins an episode: 0 to 2^31 - 1.
int32_t SeedOfEpisode(uint64_t seed, uint64_t index, int64_t episode);
std::string NameOf(const InstanceState& state);  // "instance 3, step 17 of its episode 2", for messages

class Rules;  // control_tasks/control_plugin.h

// A control task with its options chosen.
struct ControlTask {
  VectorSpec spec;
  std::shared_ptr<const Rules> rules;  // shared, so that their type may stay with the plug-ins
};

class VectorEnvironment {
 public:
  // The first episode's start state of every instance `index`. `episode`: where the count begins.
  static StatusOr<std::unique_ptr<VectorEnvironment>> Create(const VectorOptions& options,
                                                             std::span<const uint64_t> indices,
                                                             int64_t episode = 0);
  // Of a task that is in no table.
  static StatusOr<std::unique_ptr<VectorEnvironment>> Of(ControlTask task, uint64_t seed,
                                                         std::span<const uint64_t> indices,
                                                         int64_t episode = 0);
  // Goes on from states. kInvalidArgument if one is not a state of this environment.
  static StatusOr<std::unique_ptr<VectorEnvironment>> Resume(const VectorOptions& options,
                                                             std::vector<InstanceState> states);
  ~VectorEnvironment();

  [[nodiscard]] const VectorSpec& spec() const;
  [[nodiscard]] const std::vector<InstanceState>& states() const;
  // [instances, observation_size]. kDataLoss: as of Step.
  [[nodiscard]] StatusOr<std::vector<float>> Observations() const;
  // actions: [instances, action_size], choices as whole numbers. kInvalidArgument: another length, a choice
  // that does not exist, a number that is not finite; nothing moved. kDataLoss: the task broke the rules of
  // Rules (a number that is not finite, another number of observations, an exception); it is not to be
  // stepped again. The message names task, file, instance and step, what was found and what to do.
  Status Step(std::span<const float> actions, VectorStep& out);

 private:
  VectorEnvironment();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool::environments
