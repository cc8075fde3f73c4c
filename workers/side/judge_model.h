#pragma once
// A judge (core/tasks/judge.h) that is a language model of its own: asked with its own chat template,
// answered by the engine of rollouts, greedily, so the same question always has the same answer.

#include <memory>

#include "workers/side/model_thread.h"

namespace tidepool::workers {

std::unique_ptr<GradingModel> MakeJudgeModel(const RewardFunction& function, const JobConfig& job);

// What a reward worker that computes is given (reward_worker.h).
std::unique_ptr<ModelReward> OpenModelRewardHere(const RewardFunction& function, const JobConfig& job,
                                                 CallWatch& watch);

}  // namespace tidepool::workers
