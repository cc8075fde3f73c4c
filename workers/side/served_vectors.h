#pragma once
// Control tasks that are services of their own (proto/environment.proto, kind VECTOR), as the environments of
// a worker. The instances of a fragment are spread over the services in equal parts, one stream each; a step
// is one message to each of them, and the answers are waited for together.
//
// What an instance's state is, is what was done in its episode (InstanceState::actions). A part whose
// fragment is over is kept: the next fragment of the lane begins with those very states, and nothing is
// played again. Where it is not there any more (another worker had it, or it was lost) its episodes are
// played again from their seeds, and have to say the same, to the bit. Of a service that says `pinned` they
// cannot: such instances begin new episodes, and a fragment that was under way is thrown away (kAborted).
// Neither makes a reward.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/status.h"
#include "core/base/thread_annotations.h"
#include "core/environments/vector.h"
#include "core/policy/environment_host.h"
#include "workers/side/environment_services.h"

namespace tidepool::workers {

// Instances that nobody plays, with what they said last. Thread-safe.
class KeptInstances {
 public:
  struct Part {
    std::unique_ptr<VectorStream> stream;
    std::vector<float> observations;  // [instances, observation_size], what to act on next
  };
  explicit KeptInstances(size_t most) : most_(most) {}
  // Those that stand in these states; no stream: they are not here.
  Part Take(const std::string& states);
  // The part that was put first goes where there are more than `most`.
  void Put(std::string states, Part part);

 private:
  const size_t most_;
  Mutex mu_;
  int64_t next_ TP_GUARDED_BY(mu_) = 0;
  std::map<std::string, std::pair<int64_t, Part>> parts_ TP_GUARDED_BY(mu_);
};

// Of one thread; several may share `services` and `kept`. Session errors: kDataLoss (the environment broke
// its own rules, and would again), kInvalidArgument (of what was asked), kAborted (it is lost, or fails again
// and again). Its own: kUnavailable, no service will ever play here.
class ServedHost : public policy::EnvironmentHost {
 public:
  ServedHost(const JobConfig& job, std::shared_ptr<EnvironmentServices> services,
             std::shared_ptr<KeptInstances> kept);
  ~ServedHost() override;

  StatusOr<std::vector<float>> Open(int64_t session,
                                    const std::vector<environments::InstanceState>& states) override;
  StatusOr<std::vector<Moved>> Step(const std::vector<Action>& actions) override;
  StatusOr<std::vector<environments::InstanceState>> Close(int64_t session) override;

 private:
  struct Session;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// How many parts a worker of this job keeps: those of all its lanes.
size_t PartsToKeep(const JobConfig& job);

}  // namespace tidepool::workers
