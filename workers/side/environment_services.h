#pragma once
// Environments that are services (proto/environment.proto), as the games of an environment worker.
//
// Where the job names a command, one service is started and guarded (guarded_process.h), and started again
// when it dies or hangs; where it names addresses, services that are there are found. A thread a service
// keeps it: it asks Describe until that is answered, and asks again when a game was lost or not answered;
// until then no game begins there. A game is one stream, on the service that has the fewest of those that
// answer. What is done with an episode whose game is lost is EpisodeHost's business.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/config.h"
#include "core/base/status.h"
#include "core/config/load.h"
#include "core/environments/episode.h"
#include "core/text/tool_calls.h"

namespace tidepool::workers {

struct ServiceDescription {
  std::string name;
  bool replays = false;
  int64_t max_turns = 0, instances = 0;
  std::string characters;
  bool conversation = false;  // it says messages
  // Of kind VECTOR.
  int64_t observation_size = 0, actions = 0;
  bool continuous = false;
  double action_low = 0, action_high = 0;  // equal: no bounds that are known
  double solved_return = 0;
  friend bool operator==(const ServiceDescription&, const ServiceDescription&) = default;
};

// "observations of 4 numbers and actions of 2 choices".
std::string SpacesOf(int64_t observation_size, int64_t actions, bool continuous);

// What some or all instances of a stream are to do, and what came of it: bytes as proto/environment.proto has
// them.
struct VectorMove {
  bool reset = false;
  std::string which, seeds, actions;
};
struct VectorMoved {
  std::string observations, rewards, flags, final_observations;
};

// Instances of a service of kind VECTOR. What is asked is answered before more is asked. Of one thread at a
// time; it ends before its EnvironmentServices. Errors as of environments::Playing; after any of them it is
// of no more use.
class VectorStream {
 public:
  virtual ~VectorStream() = default;
  virtual Status Ask(VectorMove move, const environments::PlayLimit& limit) = 0;
  virtual StatusOr<VectorMoved> Answer(const environments::PlayLimit& limit) = 0;
  [[nodiscard]] virtual std::string where() const = 0;  // its service, for messages
};

// Thread-safe.
class EnvironmentServices final : public environments::GameService {
 public:
  struct Options {
    text::ToolFormat tools = text::ToolFormat::kTagged;  // that the policy writes calls in
    int output = 2;                                      // where a service that is started writes to
    bool vector = false;                                 // its kind: VECTOR, else TEXT
  };
  // Returns at once.
  static std::shared_ptr<EnvironmentServices> Start(const EnvironmentConfig& config) {
    return Start(config, Options());
  }
  static std::shared_ptr<EnvironmentServices> Start(const EnvironmentConfig& config, const Options& options);
  ~EnvironmentServices() override;  // ends what it started; waits a few seconds at most

  // Waits until one service has described itself.
  StatusOr<ServiceDescription> Describe(const environments::PlayLimit& limit);
  StatusOr<environments::Begun> Begin(int64_t seed, bool held_out, int64_t replay,
                                      const environments::PlayLimit& limit) override;
  // A stream for so many fresh instances, on the service that has the fewest; waits for one. Of kind VECTOR.
  StatusOr<std::unique_ptr<VectorStream>> BeginVector(int64_t instances,
                                                      const environments::PlayLimit& limit);
  [[nodiscard]] int64_t sites() const;  // that it starts or finds
  [[nodiscard]] bool replays() const override;
  [[nodiscard]] int64_t max_turns() const override;
  // Not empty: why no game will ever be begun here: it cannot be started, or all lie about themselves.
  [[nodiscard]] std::string failed() const;
  // Not empty: why one of them cannot be used. Waits until all were asked once.
  [[nodiscard]] std::string unusable(const environments::PlayLimit& limit) const;

 private:
  struct Impl;
  explicit EnvironmentServices(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Whether the environment of a job can be used, for who is about to run it: starts or finds the services, and
// begins a game of each kind twice, or two instances of a control task. Returns all characters that it says,
// or its spaces. In a child of this process, so before it has threads. kInvalidArgument and other errors say
// what is wrong, in words that begin with the environment's name; kUnavailable: this machine has no child for
// it.
StatusOr<config::ServiceSays> TryEnvironmentService(const JobConfig& config);

}  // namespace tidepool::workers
