#include "core/policy/environment_host.h"

#include "core/base/limited_call.h"

namespace tidepool::policy {

StatusOr<std::vector<float>> LocalHost::Open(int64_t session,
                                             const std::vector<environments::InstanceState>& states) {
  std::optional<LimitedCall> call;
  if (limit_) call.emplace(*limit_);
  TP_ASSIGN_OR_RETURN(auto set, environments::VectorEnvironment::Resume(options_, states));
  TP_ASSIGN_OR_RETURN(std::vector<float> first, set->Observations());
  sessions_[session] = std::move(set);
  return first;
}

StatusOr<std::vector<EnvironmentHost::Moved>> LocalHost::Step(const std::vector<Action>& actions) {
  std::optional<LimitedCall> call;
  if (limit_) call.emplace(*limit_);
  std::vector<Moved> out(actions.size());
  for (size_t i = 0; i < actions.size(); ++i) {
    const auto it = sessions_.find(actions[i].session);
    if (it == sessions_.end())
      return NotFound("environment session " + std::to_string(actions[i].session) + " is not open");
    out[i].session = actions[i].session;
    out[i].status = it->second->Step(actions[i].actions, out[i].step);
  }
  return out;
}

StatusOr<std::vector<environments::InstanceState>> LocalHost::Close(int64_t session) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end())
    return NotFound("environment session " + std::to_string(session) + " is not open");
  std::vector<environments::InstanceState> states = it->second->states();
  sessions_.erase(it);
  return states;
}

}  // namespace tidepool::policy
