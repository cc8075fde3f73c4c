#include "workers/data/row_answers.h"

#include <utility>
#include <vector>

#include "core/base/limited_call.h"
#include "core/tasks/reward.h"

namespace tidepool::workers {

StatusOr<RowsWithoutAnswer> CountRowsWithoutAnswer(const JobConfig& config, const RowSource& rows) {
  constexpr int64_t kLooked = 100'000;  // evenly spread: seconds
  RowsWithoutAnswer without;
  // Questions of a task come with their answers.
  if (config.rl() == nullptr || config.environment() != nullptr || config.model.is_policy() ||
      !config.data.task.empty())
    return without;
  struct Asked {
    std::string name;
    tasks::Reward reward;
    PluginCall call;  // on: each time anew
  };
  std::vector<Asked> rewards;
  for (const RewardFunction& f : config.reward.functions) {
    if (!f.endpoint.empty() || f.by_model()) continue;
    TP_ASSIGN_OR_RETURN(tasks::Reward reward, tasks::MakeReward(f.name));
    rewards.push_back({f.name, std::move(reward), tasks::RewardCall(f.name, f.timeout_s)});
  }
  for (const bool held_out : {false, true}) {
    const int64_t count = held_out ? rows.held_out_size() : rows.size();
    int64_t looked = 0, lacking = 0, first_line = 0;
    for (int64_t i = 0; i < count; i += 1 + count / kLooked, ++looked) {
      const tasks::Question q = held_out ? rows.data().HeldOut(i) : rows.data().Row(i);
      for (auto& [name, reward, named] : rewards) {
        named.on = rows.Place({i, held_out});
        const LimitedCall call(named);
        if (!tasks::LacksAnswer(reward, {.prompt = q.prompt, .answer = q.answer, .fields = q.fields}))
          continue;
        const int64_t line = held_out ? rows.data().HeldOutOrigin(i).line : rows.data().Origin(i).line;
        if (without.count == 0 && (lacking == 0 || line < first_line)) {
          first_line = line;
          without.first = named.on;
          without.reward = name;
        }
        ++lacking;
        break;
      }
    }
    if ((!held_out || rows.size() == 0) && looked > 0) without.none_to_train_on = lacking == looked;
    without.count += lacking;
    without.looked_at += looked;
  }
  return without;
}

std::string WarningOf(const RowsWithoutAnswer& without) {
  return without.first + ": has no \"answer\", which reward " + without.reward + " compares with; " +
         std::to_string(without.count) + " of " + std::to_string(without.looked_at) +
         " rows have none, and no response to them can be graded";
}

Status CheckAnswers(const RowsWithoutAnswer& without) {
  if (!without.none_to_train_on) return OkStatus();
  return InvalidArgument(WarningOf(without) + "; add it, or take a reward that needs none");
}

}  // namespace tidepool::workers
