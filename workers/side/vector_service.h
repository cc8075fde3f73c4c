#pragma once
// Vectorised environments between processes (proto/vector.proto): the server is in an environment worker, the
// client is the EnvironmentHost of a device worker. A step is one message each way for all fragments of a
// device.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/call_watch.h"
#include "core/base/status.h"
#include "core/environments/vector.h"
#include "core/policy/environment_host.h"

namespace tidepool::workers {

struct VectorServerOptions {
  std::string bind = "127.0.0.1";
  std::string token;  // calls without it are refused
  int64_t max_message_bytes = 4 << 20;
  int64_t max_sessions = 4096;  // of one stream
};

class VectorServer {
 public:
  // Listens on any free port of `bind`. Until Serve, sessions are refused (kUnavailable): a worker says where
  // it listens before it is told which job it is for.
  static StatusOr<std::unique_ptr<VectorServer>> Start(const VectorServerOptions& options);
  ~VectorServer();
  // Where the sessions of one stream live; called once for each stream.
  using MakeHost = std::function<std::unique_ptr<policy::EnvironmentHost>()>;
  // Tasks of this process. Any thread. Errors of FindVectorEnvironment.
  Status Serve(const environments::VectorOptions& environment, double step_timeout_s = 60);
  // Others, which limit their calls themselves. Streams that are open go on where they were. Any thread.
  void Serve(MakeHost make);
  // The exchanges under way, each limited by `step_timeout_s`.
  [[nodiscard]] CallWatch& watch();
  // No exchange is under way afterwards. Waits for those that are.
  void Stop();
  [[nodiscard]] std::string address() const;
  [[nodiscard]] int64_t steps() const;  // of instances, since the start; any thread

 private:
  VectorServer();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Not thread-safe. Connects at the first call; after a failure (kUnavailable, kDeadlineExceeded) the sessions
// are gone and the next call connects anew.
class RemoteHost : public policy::EnvironmentHost {
 public:
  // `step_timeout_s`: of one exchange, whatever it is. An answer that is late ends the stream.
  RemoteHost(std::string address, std::string token, double step_timeout_s,
             int64_t max_message_bytes = 4 << 20);
  ~RemoteHost() override;
  [[nodiscard]] const std::string& address() const;

  StatusOr<std::vector<float>> Open(int64_t session,
                                    const std::vector<environments::InstanceState>& states) override;
  StatusOr<std::vector<Moved>> Step(const std::vector<Action>& actions) override;
  StatusOr<std::vector<environments::InstanceState>> Close(int64_t session) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool::workers
