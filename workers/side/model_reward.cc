#include "workers/side/model_reward.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "core/model/adapter_files.h"
#include "core/model/hugging_face.h"
#include "core/model/memory_use.h"
#include "workers/data/model_folder.h"

namespace tidepool::workers {

bool IsJudge(const RewardFunction& f) { return f.name.substr(0, f.name.find(':')) == "judge"; }

StatusOr<GradingFolder> FindGradingFolder(const RewardFunction& f) {
  GradingFolder found{.dir = f.path, .adapter = {}, .spec = {}};
  std::error_code error;
  if (std::filesystem::exists(f.path + "/" + model::kAdapterConfigFile, error)) {
    TP_ASSIGN_OR_RETURN(const auto adapter, model::AdapterFolder::Open(f.path));
    if (!adapter.spec().score)
      return InvalidArgument("path: " + f.path +
                             " is an adapter of a language model; merge it: tidepool export " + f.path +
                             " --merge --out DIR, and give that folder");
    found.adapter = f.path;
    found.dir = ModelInRun(adapter, std::filesystem::path(f.path).lexically_normal().parent_path().string());
    if (found.dir.empty()) found.dir = adapter.base();
  }
  TP_RETURN_IF_ERROR(CheckModelFolder(
      found.dir, found.adapter.empty()
                     ? "path"
                     : "path: " + f.path + " is an adapter, and its base_model_name_or_path"));
  TP_ASSIGN_OR_RETURN(found.spec, model::ReadSpec(found.dir));
  found.spec.value_head |= !found.adapter.empty();
  return found;
}

StatusOr<model::ModelSpec> SpecOf(const RewardFunction& f) {
  TP_ASSIGN_OR_RETURN(GradingFolder found, FindGradingFolder(f));
  return std::move(found.spec);
}

Status CheckModelReward(const RewardFunction& f) {
  TP_ASSIGN_OR_RETURN(const GradingFolder found, FindGradingFolder(f));
  const model::ModelSpec& spec = found.spec;
  TP_RETURN_IF_ERROR(model::CheckHuggingFace(found.dir).At("path"));
  if (!found.adapter.empty()) {
    TP_ASSIGN_OR_RETURN(const auto adapter, model::AdapterFolder::Open(found.adapter));
    TP_RETURN_IF_ERROR(adapter.CheckBase(found.dir).At("path"));
  }
  if (IsJudge(f) && spec.value_head) {
    return InvalidArgument("path: " + f.path +
                           " has a value head and writes no text, so it cannot be a judge; take it as "
                           "name: reward_model, or give the folder of a language model");
  }
  if (!IsJudge(f) && !spec.value_head) {
    return InvalidArgument("path: " + f.path +
                           " has no value head (architectures: ...ForSequenceClassification with one label), "
                           "so it is no reward model; train one with job: reward_model, or ask it as "
                           "name: judge");
  }
  const int64_t most = MostTokens(f, spec);
  if (IsJudge(f) && f.max_new_tokens >= most) {
    return InvalidArgument("max_new_tokens: is " + std::to_string(f.max_new_tokens) + ", and question and " +
                           "answer together have " + std::to_string(most) +
                           " tokens (max_tokens, or the model's positions); lower it");
  }
  const auto text = RowSource::OfFolder(found.dir, DataConfig().template_date);
  if (!text.ok()) return text.status().At("path");
  if (const int64_t ids = (*text)->tokenizer().vocab_size(); ids > spec.vocab_size) {
    return InvalidArgument("path: tokenizer.json of " + found.dir + " has ids up to " +
                           std::to_string(ids - 1) + ", and the model's vocab_size is " +
                           std::to_string(spec.vocab_size) + "; the tokenizer is not this model's");
  }
  return OkStatus();
}

int64_t MostTokens(const RewardFunction& f, const model::ModelSpec& spec) {
  return std::min(f.max_tokens, spec.max_position);
}

int64_t JudgeKvTokens(const RewardFunction& f, const RewardConfig& reward, const model::ModelSpec& spec) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  // A block more of each: the engine promises whole ones.
  const int64_t one = MostTokens(f, spec) + 2 * 16, all = one * reward.concurrency * reward.batch;
  return std::max(one, std::min(all, kBytes / std::max<int64_t>(1, model::KvTokenBytes(spec, f.dtype))));
}

}  // namespace tidepool::workers
