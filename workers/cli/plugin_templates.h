#pragma once
// The files of examples/plugins/, as the build embeds them: what `tidepool new` begins a plug-in with. Each
// works as it is, under the name my_reward, my_task and so on (MyReward in the names of C++).

#include <string_view>

namespace tidepool::workers {

std::string_view RewardTemplate();
std::string_view TaskTemplate();
std::string_view EnvironmentTemplate();
std::string_view ControlTemplate();
std::string_view AlgorithmTemplate();
std::string_view ModelTemplate();
std::string_view PolicyTemplate();
std::string_view RewardTestTemplate();
std::string_view TaskTestTemplate();
std::string_view EnvironmentTestTemplate();
std::string_view ControlTestTemplate();
std::string_view AlgorithmTestTemplate();
std::string_view ModelTestTemplate();
std::string_view PolicyTestTemplate();

}  // namespace tidepool::workers
