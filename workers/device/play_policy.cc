#include "workers/device/play_policy.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/limited_call.h"
#include "core/files/mapped_file.h"
#include "core/policy/player.h"
#include "core/policy/policy_files.h"
#include "workers/side/vector_service.h"

namespace tidepool::workers {
namespace {

// Rows of one forward; more at a time make nothing faster.
constexpr int64_t kTogether = 64;

}  // namespace

Status PlayPolicy(const PlayOptions& o) {
  TP_ASSIGN_OR_RETURN(const policy::PolicySpec spec, policy::ReadPolicySpec(o.policy));
  environments::VectorOptions environment = o.environment;
  if (!o.address.empty())
    environment.served = environments::VectorSpec{.name = environment.name,
                                                  .continuous = spec.continuous,
                                                  .observation_size = spec.observation_size,
                                                  .actions = spec.actions,
                                                  .max_episode_steps = environment.max_episode_steps,
                                                  .served = true};
  TP_ASSIGN_OR_RETURN(const environments::VectorSpec rules, environments::FindVectorEnvironment(environment));
  TP_RETURN_IF_ERROR(policy::CheckPlays(spec, rules).At(o.policy));
  TP_ASSIGN_OR_RETURN(const auto weights,
                      model::Weights::FromLayout(policy::PolicyLayout(spec), DType::kFloat32));
  TP_RETURN_IF_ERROR(policy::LoadPolicy(o.policy, *weights));
  std::ofstream out(o.out, std::ios::trunc);
  const PluginCall limit{.what = environments::LabelOf(rules),
                         .on = "a start or a step of its instances",
                         .limit_s = o.step_timeout_s,
                         .key = "environment.step_timeout_s"};
  std::unique_ptr<policy::EnvironmentHost> host;
  if (o.address.empty()) {
    host = std::make_unique<policy::LocalHost>(environment, limit);
  } else {
    TP_ASSIGN_OR_RETURN(const std::string token, files::ReadSmallFile(o.token_file, 4096));
    host = std::make_unique<RemoteHost>(o.address, token, o.step_timeout_s);
  }
  policy::Player player(spec, *weights, *host, environment.seed);
  int64_t next = 0, ended = 0;
  while (ended < o.episodes) {
    for (; next < o.episodes && player.running() < kTogether; ++next) {
      const std::vector<uint64_t> index = {environments::kEvaluationInstances + static_cast<uint64_t>(next)};
      std::optional<LimitedCall> call(std::in_place, limit);
      TP_ASSIGN_OR_RETURN(auto starts, environments::StartStates(environment, index));
      call.reset();
      policy::FragmentRequest request;
      request.tid = {next, 0, SampleId::kEvalSample};
      request.steps = rules.max_episode_steps;
      request.greedy = !o.sampled;
      request.episode = true;
      request.starts = std::move(starts);
      TP_RETURN_IF_ERROR(player.Add(std::move(request)));
    }
    for (const policy::PlayedFragment& played : player.Step()) {
      TP_RETURN_IF_ERROR(played.status);
      const policy::Fragment& f = played.fragment;
      nlohmann::json line = {{"episode", played.tid.ordinal},
                             {"return", f.scores.front()},
                             {"steps", f.steps},
                             {"terminated", f.flags.back() == environments::kTerminated}};
      if (played.tid.ordinal == o.actions_of) line["actions"] = f.actions;
      out << line.dump() << "\n" << std::flush;
      ++ended;
    }
    if (!out) return Unavailable(o.out + ": cannot be written");
  }
  return OkStatus();
}

}  // namespace tidepool::workers
