// For tests/interop/control_differential.py: plays given actions in core/environments/vector.h and says what
// came of it. One JSON object a line: {"name", "options", "limit", "seed", "state": [..] or null, "actions":
// [[..], ..]} for one instance; the answer has for every step "obs", "reward", "flag" (0, 1 terminated, 2
// truncated) and "state", and for every step that ended an episode "final" (else null).
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "core/environments/vector.h"

int main() {
  using nlohmann::json;
  using namespace tidepool;
  std::string line;
  while (std::getline(std::cin, line)) {
    const json request = json::parse(line, nullptr, /*allow_exceptions=*/false);
    json answer;
    const auto play = [&]() -> Status {
      if (!request.is_object()) return InvalidArgument("no JSON object");
      environments::VectorOptions options{
          .name = request.value("name", ""),
          .options = request.value("options", std::map<std::string, std::string>{}),
          .max_episode_steps = request.value("limit", int64_t{0}),
          .seed = request.value("seed", uint64_t{1})};
      TP_ASSIGN_OR_RETURN(auto set,
                          environments::VectorEnvironment::Create(options, std::vector<uint64_t>{0}));
      if (request.contains("state") && request["state"].is_array()) {
        environments::InstanceState s = set->states()[0];
        for (size_t i = 0; i < request["state"].size() && i < s.state.size(); ++i)
          s.state[i] = request["state"][i].get<double>();
        TP_ASSIGN_OR_RETURN(set, environments::VectorEnvironment::Resume(options, {s}));
      }
      environments::VectorStep step;
      for (const json& action : request["actions"]) {
        TP_RETURN_IF_ERROR(set->Step(action.get<std::vector<float>>(), step));
        answer["obs"].push_back(step.observations);
        answer["reward"].push_back(step.rewards[0]);
        answer["flag"].push_back(step.flags[0]);
        answer["state"].push_back(set->states()[0].state);
        answer["final"].push_back(step.flags[0] == 0 ? json() : json(step.final_observations));
      }
      return OkStatus();
    };
    if (const Status status = play(); !status.ok()) answer = {{"error", status.message()}};
    std::cout << answer.dump() << "\n" << std::flush;
  }
  return 0;
}
