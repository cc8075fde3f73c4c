#include "workers/side/score_model.h"

#include <cmath>
#include <deque>
#include <utility>

#include "core/device/cpu/cpu_device.h"
#include "core/model/adapter_files.h"
#include "core/model/decoder.h"
#include "core/model/weights.h"
#include "core/train/value_model.h"

namespace tidepool::workers {
namespace {

using Outcome = tasks::Verdict::Outcome;

class ScoreModel : public GradingModel {
 public:
  ScoreModel(RewardFunction function, std::string template_date)
      : function_(std::move(function)), template_date_(std::move(template_date)) {}

  Status Load() override {
    TP_ASSIGN_OR_RETURN(const GradingFolder found, FindGradingFolder(function_));
    TP_ASSIGN_OR_RETURN(text_, RowSource::OfFolder(found.dir, template_date_));
    const auto device = std::make_shared<device::CpuDevice>();
    TP_ASSIGN_OR_RETURN(weights_, model::LoadHuggingFace(found.dir, function_.dtype));
    weights_->LayOutFor(*device);
    if (!found.adapter.empty()) {
      TP_ASSIGN_OR_RETURN(const auto adapter, model::AdapterFolder::Open(found.adapter));
      TP_ASSIGN_OR_RETURN(weights_, model::LoadAdapter(found.adapter, std::move(weights_), adapter.spec()));
    }
    if (!weights_->spec().value_head) return InvalidArgument(function_.path + ": has no value head");
    most_ = MostTokens(function_, weights_->spec());
    decoder_ = std::make_unique<model::Decoder>(*weights_, device);
    return OkStatus();
  }

  void Begin(std::vector<AskedSample> asked) override {
    for (AskedSample& sample : asked) {
      auto ids = text_->EncodeAnswered(sample.input);
      if (!ids.ok()) {
        sample.Tell({Outcome::kData, 0, function_.name + ": " + ids.status().message()});
      } else if (static_cast<int64_t>(ids->size()) > most_) {
        sample.Tell({Outcome::kData, 0,
                     function_.name + ": question and response have " + std::to_string(ids->size()) +
                         " tokens of the reward model, which takes " + std::to_string(most_) +
                         " (max_tokens, or its positions)"});
      } else {
        waiting_.push_back({std::move(sample), std::move(*ids)});
      }
    }
  }

  // Those that wait, up to max_tokens tokens together.
  StatusOr<bool> Step() override {
    std::vector<AskedSample> asked;
    std::vector<train::Row> rows;
    std::vector<int64_t> places;
    for (int64_t tokens = 0; !waiting_.empty(); waiting_.pop_front()) {
      auto& [sample, ids] = waiting_.front();
      if (!sample.of->wanted()) continue;
      if (tokens += static_cast<int64_t>(ids.size()); tokens > most_ && !rows.empty()) break;
      train::Row row;
      row.gid = GroupId{static_cast<int64_t>(rows.size())};
      row.response = {ids.front()};  // that is not read: its place is where the score stands
      row.prompt = std::move(ids);
      places.push_back(static_cast<int64_t>(rows.size()));
      rows.push_back(std::move(row));
      asked.push_back(std::move(sample));
    }
    if (rows.empty()) return false;
    TP_ASSIGN_OR_RETURN(const auto values, train::ValuesOf(*weights_, *decoder_, most_ + 1, rows, places));
    for (size_t i = 0; i < asked.size(); ++i) {
      const double score = values[i].back();
      asked[i].Tell(std::isfinite(score)
                        ? tasks::Verdict{Outcome::kOk, score, {}}
                        : tasks::Verdict{Outcome::kInfra, 0,
                                         function_.name + " gave the score " + std::to_string(score) +
                                             ", which is no finite number"});
    }
    return !waiting_.empty();
  }

 private:
  const RewardFunction function_;
  const std::string template_date_;
  std::unique_ptr<RowSource> text_;
  std::unique_ptr<model::Weights> weights_;
  std::unique_ptr<model::Decoder> decoder_;
  int64_t most_ = 0;
  std::deque<std::pair<AskedSample, std::vector<int32_t>>> waiting_;
};

}  // namespace

std::unique_ptr<GradingModel> MakeScoreModel(const RewardFunction& function, const JobConfig& job) {
  return std::make_unique<ScoreModel>(function, job.data.template_date);
}

}  // namespace tidepool::workers
