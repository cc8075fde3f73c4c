#include "core/config/service_rules.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tidepool::config {

bool CheckService(Binder& b, const EnvironmentConfig& e) {
  if (!e.command.empty() && !e.addresses.empty()) {
    b.Complain("environment.addresses",
               "written beside environment.command: a service is started, or it is there already; keep one "
               "of the two (null takes an inherited one away)");
    return false;
  }
  for (const std::string& address : e.addresses) {
    const bool unix_socket = address.starts_with("unix:") && address.size() > 5;
    const size_t colon = address.rfind(':');
    const bool port = colon != std::string::npos && colon > 0 && colon + 1 < address.size() &&
                      address.find_first_not_of("0123456789", colon + 1) == std::string::npos &&
                      address.find('/') == std::string::npos;
    if (unix_socket || port) continue;
    b.Complain("environment.addresses",
               "found '" + address + "'; expected host:port (127.0.0.1:7100) or unix:/path");
    return false;
  }
  // It stands beside "solved" in rewards, and in names of metrics.
  constexpr std::string_view kOfNames = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-";
  if (e.name == "solved" || e.name.find_first_not_of(kOfNames) != std::string::npos) {
    b.Complain("environment.name",
               e.name == "solved"
                   ? "is 'solved', which every environment says of an episode; give the service another name"
                   : "found a name of a service with other characters than A-Z a-z 0-9 _ . -; write one "
                     "without them");
    return false;
  }
  if (!e.command.empty() && e.command.front().empty()) {
    b.Complain("environment.command",
               "begins with an empty word; expected a program, like [python3, game.py]");
    return false;
  }
  return true;
}

StatusOr<std::string> AskSpaces(LoadedConfig& loaded, const AskService& ask_service) {
  EnvironmentConfig& e = std::get<RlJob>(loaded.config.job).environment;
  const std::string key = e.command.empty() ? "environment.addresses" : "environment.command";
  const auto told = [&](const std::string& what) {
    return loaded.OriginOf(key).Where() + ": " + key + ": " + what;
  };
  const auto said = ask_service(loaded.config);
  if (said.status().code() == StatusCode::kUnavailable && e.observation_size > 0)
    return told("environment " + e.name + " was not tried: " + said.status().message());
  if (!said.ok()) return InvalidArgument(told(said.status().message()));
  const std::string why = "as the service says";
  Adjust(loaded, "environment.observation_size", e.observation_size, said->observation_size, why);
  Adjust(loaded, "environment.actions", e.actions, said->actions, why);
  Adjust(loaded, "environment.continuous", e.continuous, said->continuous, why);
  Adjust(loaded, "environment.action_low", e.action_low, said->action_low, why);
  Adjust(loaded, "environment.action_high", e.action_high, said->action_high, why);
  if (e.max_episode_steps == 0 || e.max_episode_steps > said->max_episode_steps)
    Adjust(loaded, "environment.max_episode_steps", e.max_episode_steps, said->max_episode_steps, why);
  if (loaded.OriginOf("environment.solved_return").kind == Origin::Kind::kDefault)
    Adjust(loaded, "environment.solved_return", e.solved_return, said->solved_return, why);
  // The rules that need to know them.
  std::vector<std::string> filled = loaded.overrides;
  filled.push_back("environment.observation_size=" + std::to_string(e.observation_size));
  filled.push_back("environment.actions=" + std::to_string(e.actions));
  filled.push_back(std::string("environment.continuous=") + (e.continuous ? "true" : "false"));
  filled.push_back("environment.action_low=" + std::to_string(e.action_low));
  filled.push_back("environment.action_high=" + std::to_string(e.action_high));
  filled.push_back("environment.max_episode_steps=" + std::to_string(e.max_episode_steps));
  TP_RETURN_IF_ERROR(LoadConfig(loaded.files.front(), filled).status());
  return std::string();
}

}  // namespace tidepool::config
