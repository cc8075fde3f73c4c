#pragma once
// The score of a reward model: the value of its head after the last token of question and response, by the
// function that `job: reward_model` trains and is evaluated with (core/train/value_model.h).

#include <memory>

#include "workers/side/model_thread.h"

namespace tidepool::workers {

std::unique_ptr<GradingModel> MakeScoreModel(const RewardFunction& function, const JobConfig& job);

}  // namespace tidepool::workers
