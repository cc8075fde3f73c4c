#pragma once
// Plays fragments: the rollout engine of vector policies. One Step() moves every running fragment by one
// environment step, with one forward for all of them, as the token engine moves every running sample by one
// token.
//
// A fragment that is cancelled, or whose environments are lost, leaves nothing behind and is played again
// from its start states. Not thread-safe: one thread owns a Player.

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/ids.h"
#include "core/base/status.h"
#include "core/environments/vector.h"
#include "core/policy/environment_host.h"
#include "core/policy/fragment.h"
#include "core/policy/network.h"

namespace tidepool::policy {

struct FragmentRequest {
  SampleId tid;
  int32_t att = 0;
  int64_t steps = 0;  // to play; a whole episode, at most as many, where `episode`
  bool greedy = false;
  bool uniform = false;  // actions are uniform inside the bounds: what an off-policy algorithm begins with
  bool episode = false;  // ends with the first episode of its (one) instance: evaluation
  std::vector<environments::InstanceState> starts;
};

struct PlayedFragment {
  SampleId tid;
  int32_t att = 0;
  Status status;  // not ok: nothing was made; kUnavailable: the environments were lost, play it again
  Fragment fragment;
};

struct PlayerStats {
  int64_t running = 0;  // fragments
  int64_t steps = 0;    // environment steps of the last Step()
};

class Player {
 public:
  // `weights` and `host` outlive this.
  Player(const PolicySpec& spec, const model::Weights& weights, EnvironmentHost& host, uint64_t seed);

  // kInvalidArgument: sizes that cannot be; kAlreadyExists: it runs. The host is not asked yet.
  Status Add(FragmentRequest request);
  bool Cancel(const SampleId& tid, int32_t att);  // true: it was running
  std::vector<std::pair<SampleId, int32_t>> Drain();
  void WeightsChanged() { network_.WeightsChanged(); }
  [[nodiscard]] bool HasWork() const { return !running_.empty(); }
  [[nodiscard]] int64_t running() const { return static_cast<int64_t>(running_.size()); }
  // One environment step of every running fragment; those that ended.
  std::vector<PlayedFragment> Step(PlayerStats* stats = nullptr);

 private:
  struct Running {
    int64_t session = 0;
    FragmentRequest request;
    uint64_t uid = 0;
    bool open = false;
    Fragment fragment;
  };
  void Forget(Running& r);
  void Lose(const Status& why, std::vector<PlayedFragment>& out);
  // Adds the values that follow the last observations and closes the session.
  Status Finish(Running& r);

  PolicySpec spec_;
  Network network_;
  EnvironmentHost& host_;
  uint64_t seed_;
  int64_t next_session_ = 1;
  std::vector<Running> running_;
};

}  // namespace tidepool::policy
