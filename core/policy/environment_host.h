#pragma once
// Where the environments of a rollout live, as the one who acts sees them. No LibTorch.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/call_watch.h"
#include "core/base/status.h"
#include "core/environments/vector.h"

namespace tidepool::policy {

// Where environments live: in this process (LocalHost) or in an environment worker. A session is the
// instances of one fragment. kUnavailable, kDeadlineExceeded: they are lost and every session with them;
// others: that session is wrong.
class EnvironmentHost {
 public:
  struct Moved {
    int64_t session = 0;
    Status status;  // kDataLoss, kInvalidArgument: of VectorEnvironment::Step, for this session alone
    environments::VectorStep step;
  };
  struct Action {
    int64_t session = 0;
    std::vector<float> actions;  // [instances, action_size]
  };
  virtual ~EnvironmentHost() = default;
  // First observations [instances, observation_size].
  virtual StatusOr<std::vector<float>> Open(int64_t session,
                                            const std::vector<environments::InstanceState>& states) = 0;
  // One step of each session named, answers in their order. Its own error: no session has moved.
  virtual StatusOr<std::vector<Moved>> Step(const std::vector<Action>& actions) = 0;
  // The states in which the instances are; the session is over.
  virtual StatusOr<std::vector<environments::InstanceState>> Close(int64_t session) = 0;
};

class LocalHost : public EnvironmentHost {
 public:
  // `limit`: each call of the task is a LimitedCall like that (core/base/limited_call.h). None: somebody else
  // watches.
  explicit LocalHost(environments::VectorOptions options, std::optional<PluginCall> limit = std::nullopt)
      : options_(std::move(options)), limit_(std::move(limit)) {}
  StatusOr<std::vector<float>> Open(int64_t session,
                                    const std::vector<environments::InstanceState>& states) override;
  StatusOr<std::vector<Moved>> Step(const std::vector<Action>& actions) override;
  StatusOr<std::vector<environments::InstanceState>> Close(int64_t session) override;
  [[nodiscard]] int64_t sessions() const { return static_cast<int64_t>(sessions_.size()); }

 private:
  environments::VectorOptions options_;
  std::optional<PluginCall> limit_;
  std::map<int64_t, std::unique_ptr<environments::VectorEnvironment>> sessions_;
};

}  // namespace tidepool::policy
