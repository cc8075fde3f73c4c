#include "workers/side/judge_model.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/device/cpu/cpu_device.h"
#include "core/engine/engine.h"
#include "core/model/weights.h"
#include "core/tasks/judge.h"
#include "workers/side/score_model.h"

namespace tidepool::workers {
namespace {

using Outcome = tasks::Verdict::Outcome;

class JudgeModel : public GradingModel {
 public:
  JudgeModel(RewardFunction function, RewardConfig reward, std::string template_date)
      : function_(std::move(function)),
        reward_(std::move(reward)),
        template_date_(std::move(template_date)) {}

  Status Load() override {
    TP_ASSIGN_OR_RETURN(tasks::Judge judge, tasks::Judge::Create(function_));
    judge_ = std::make_unique<tasks::Judge>(std::move(judge));
    TP_ASSIGN_OR_RETURN(text_, RowSource::OfFolder(function_.path, template_date_));
    TP_ASSIGN_OR_RETURN(weights_, model::LoadHuggingFace(function_.path, function_.dtype));
    if (weights_->spec().value_head) return InvalidArgument(function_.path + ": writes no text");
    most_ = MostTokens(function_, weights_->spec());
    engine::EngineOptions options;
    options.device = std::make_shared<device::CpuDevice>();
    weights_->LayOutFor(*options.device);
    options.kv_cache_tokens = JudgeKvTokens(function_, reward_, weights_->spec());
    options.max_running = reward_.concurrency * reward_.batch;
    options.max_batched_tokens = std::max(most_, options.max_running);
    TP_ASSIGN_OR_RETURN(engine_, engine::Engine::Create(*weights_, std::move(options)));
    return OkStatus();
  }

  void Begin(std::vector<AskedSample> asked) override {
    for (AskedSample& sample : asked) {
      if (const Status begun = BeginOne(sample); !begun.ok())
        sample.Tell({Outcome::kData, 0, function_.name + ": " + begun.message()});
    }
  }

  StatusOr<bool> Step() override {
    std::erase_if(under_way_, [&](const auto& one) {
      if (one.second.sample.of->wanted()) return false;
      engine_->Cancel(one.first, 0);
      engine_->ForgetGroup({one.first.ordinal});
      return true;
    });
    if (!engine_->HasWork()) return false;
    for (engine::Delta& d : engine_->Step().deltas) {
      const auto it = under_way_.find(d.tid);
      if (it == under_way_.end()) continue;
      it->second.answer.insert(it->second.answer.end(), d.ids.begin(), d.ids.end());
      if (d.finish == engine::FinishReason::kNone) continue;
      it->second.sample.Tell(VerdictOf(d, it->second.answer));
      under_way_.erase(it);
      engine_->ForgetGroup({d.tid.ordinal});
    }
    return engine_->HasWork();
  }

 private:
  Status BeginOne(AskedSample& sample) {
    tasks::RewardInput asked = sample.input;
    for (std::string* text : {&asked.prompt, &asked.text, &asked.answer})
      *text = text_->WithoutSpecialTokens(std::move(*text));
    TP_ASSIGN_OR_RETURN(std::vector<int32_t> ids, text_->EncodePrompt(judge_->Ask(asked)));
    TP_ASSIGN_OR_RETURN(ids, text_->CheckedIds(std::move(ids)));
    const auto tokens = static_cast<int64_t>(ids.size());
    if (tokens + function_.max_new_tokens > most_) {
      return InvalidArgument("the judge is asked " + std::to_string(tokens) + " tokens, may answer " +
                             std::to_string(function_.max_new_tokens) + " (max_new_tokens), and takes " +
                             std::to_string(most_) + " together (max_tokens, or its positions)");
    }
    const SampleId tid{next_++, 0, 0};
    engine::ChunkRequest request;
    request.tid = tid;
    request.gid = GroupId{tid.ordinal};
    request.prompt = std::move(ids);
    request.max_new_tokens = request.max_total_new = function_.max_new_tokens;
    request.sampling.temperature = 0;
    TP_RETURN_IF_ERROR(engine_->Add(std::move(request)));
    under_way_.emplace(tid, UnderWay{std::move(sample), {}});
    return OkStatus();
  }

  [[nodiscard]] tasks::Verdict VerdictOf(const engine::Delta& last,
                                         const std::vector<int32_t>& answer) const {
    if (last.finish == engine::FinishReason::kError)
      return {Outcome::kInfra, 0, function_.name + ": " + last.error};
    tasks::Verdict verdict =
        judge_->Read(text_->ResponseText(answer), last.finish == engine::FinishReason::kLength);
    if (verdict.outcome != Outcome::kOk) verdict.detail = function_.name + ": " + verdict.detail;
    return verdict;
  }

  struct UnderWay {
    AskedSample sample;
    std::vector<int32_t> answer;
  };
  const RewardFunction function_;
  const RewardConfig reward_;
  const std::string template_date_;
  std::unique_ptr<tasks::Judge> judge_;
  std::unique_ptr<RowSource> text_;
  std::unique_ptr<model::Weights> weights_;
  std::unique_ptr<engine::Engine> engine_;
  int64_t most_ = 0, next_ = 0;
  std::map<SampleId, UnderWay> under_way_;
};

}  // namespace

std::unique_ptr<GradingModel> MakeJudgeModel(const RewardFunction& function, const JobConfig& job) {
  return std::make_unique<JudgeModel>(function, job.reward, job.data.template_date);
}

std::unique_ptr<ModelReward> OpenModelRewardHere(const RewardFunction& function, const JobConfig& job,
                                                 CallWatch& watch) {
  return std::make_unique<ModelThread>(
      function, job.reward, watch,
      IsJudge(function) ? MakeJudgeModel(function, job) : MakeScoreModel(function, job));
}

}  // namespace tidepool::workers
