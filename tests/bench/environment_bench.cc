// Environment steps a second of a control task that is a program of its own: the whole way from the one who
// acts over an environment worker's server to the program and back, with actions drawn at random. What
// environment_vs_peer.py runs beside Gymnasium's AsyncVectorEnv.
//
//   environment_bench PROCESSES INSTANCES SECONDS COMMAND...
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/rng.h"
#include "core/policy/spec.h"
#include "workers/side/environment_services.h"
#include "workers/side/guarded_process.h"
#include "workers/side/served_vectors.h"
#include "workers/side/vector_service.h"

namespace {

using namespace tidepool;
using namespace tidepool::workers;
using Clock = std::chrono::steady_clock;

int Failed(const Status& why) {
  std::fprintf(stderr, "%s\n", why.message().c_str());
  return 1;
}

const std::string kToken(64, 'a');

// What the two processes have in common: the task as it describes itself, and where its instances are served.
struct Found {
  int64_t observation_size, actions, max_episode_steps, continuous;
  char address[64];
};

JobConfig JobOf(int64_t processes, std::vector<std::string> command) {
  JobConfig job;
  job.job = RlJob{};
  EnvironmentConfig& e = std::get<RlJob>(job.job).environment;
  e.name = "bench";
  e.command = std::move(command);
  e.processes = processes;
  return job;
}
void Take(JobConfig& job, const Found& found) {
  EnvironmentConfig& e = std::get<RlJob>(job.job).environment;
  e.observation_size = found.observation_size;
  e.actions = found.actions;
  e.continuous = found.continuous != 0;
  e.max_episode_steps = found.max_episode_steps;
}

// The environment worker's part, until `stop` is closed.
int Serve(JobConfig job, int tell, int stop) {
  const auto services = EnvironmentServices::Start(*job.environment(), {.vector = true});
  const auto described = services->Describe({.deadline = Clock::now() + std::chrono::seconds(60)});
  if (!described.ok()) return Failed(described.status());
  Found found{
      described->observation_size, described->actions, described->max_turns, described->continuous, {}};
  Take(job, found);
  auto server = VectorServer::Start({.token = kToken});
  if (!server.ok()) return Failed(server.status());
  const auto kept = std::make_shared<KeptInstances>(0);
  (*server)->Serve([&] { return std::make_unique<ServedHost>(job, services, kept); });
  (*server)->address().copy(found.address, sizeof(found.address) - 1);
  if (::write(tell, &found, sizeof(found)) != sizeof(found)) return 1;
  char none = 0;
  while (::read(stop, &none, 1) > 0) {
  }
  (*server)->Stop();
  return 0;
}

int Bench(int64_t processes, int64_t instances, double seconds, std::vector<std::string> command) {
  // Two processes, as in a run: whoever acts, and the environment worker.
  int told[2], stop[2];
  if (::pipe2(told, O_CLOEXEC) != 0 || ::pipe2(stop, O_CLOEXEC) != 0) return 1;
  JobConfig job = JobOf(processes, std::move(command));
  if (::fork() == 0) {
    ::close(stop[1]);
    return Serve(std::move(job), told[1], stop[0]);
  }
  ::close(told[1]);
  Found found{};
  if (::read(told[0], &found, sizeof(found)) != sizeof(found)) return 1;
  Take(job, found);
  const EnvironmentConfig& e = *job.environment();
  RemoteHost host(found.address, kToken, 60);

  std::vector<uint64_t> indices(static_cast<size_t>(instances));
  for (size_t i = 0; i < indices.size(); ++i) indices[i] = i;
  const auto starts = environments::StartStates(policy::EnvironmentOfJob(job), indices);
  if (!starts.ok()) return Failed(starts.status());
  if (const auto first = host.Open(1, *starts); !first.ok()) return Failed(first.status());
  Rng rng(1);
  int64_t steps = 0, episodes = 0;
  const auto warm = Clock::now() + std::chrono::milliseconds(500);
  const auto step = [&]() -> Status {
    std::vector<float> actions(static_cast<size_t>(instances * (e.continuous ? e.actions : 1)));
    for (float& a : actions)
      a = e.continuous ? static_cast<float>(2 * rng.Uniform() - 1)
                       : static_cast<float>(rng.InRange(0, e.actions - 1));
    TP_ASSIGN_OR_RETURN(const auto moved, host.Step({{.session = 1, .actions = std::move(actions)}}));
    TP_RETURN_IF_ERROR(moved.front().status);
    steps += static_cast<int64_t>(moved.front().step.rewards.size());
    episodes += static_cast<int64_t>(moved.front().step.scores.size());
    return OkStatus();
  };
  while (Clock::now() < warm) {
    if (const Status s = step(); !s.ok()) return Failed(s);
  }
  steps = episodes = 0;
  const auto begun = Clock::now();
  double taken = 0;
  do {
    if (const Status s = step(); !s.ok()) return Failed(s);
    taken = std::chrono::duration<double>(Clock::now() - begun).count();
  } while (taken < seconds);
  std::printf("{\"steps\":%lld,\"episodes\":%lld,\"seconds\":%.3f}\n", static_cast<long long>(steps),
              static_cast<long long>(episodes), taken);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  // What guards the program is this one (workers/side/guarded_process.h).
  if (argc > 4 && std::string_view(argv[1]) == "guard-service")
    return RunGuard(argv[2], {argv + 4, argv + argc});
  if (argc < 5) {
    std::fprintf(stderr, "usage: environment_bench PROCESSES INSTANCES SECONDS COMMAND...\n");
    return 2;
  }
  return Bench(std::atoll(argv[1]), std::atoll(argv[2]), std::atof(argv[3]), {argv + 4, argv + argc});
}
