// A reward model and a judge, as a reward worker asks them.

#include "workers/side/model_reward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "core/device/cpu/cpu_device.h"
#include "core/model/decoder.h"
#include "core/model/weights.h"
#include "core/text/tokenizer.h"
#include "core/train/value_model.h"
#include "workers/data/model_folder.h"
#include "workers/side/judge_model.h"

namespace tidepool::workers {
namespace {

using testing::HasSubstr;
using Outcome = tasks::Verdict::Outcome;

// A folder with a tiny model that knows nothing, and goes with this.
class Folder {
 public:
  Folder(bool value_head, const std::string& alphabet, float score = 0.1F) {
    char made[] = "/tmp/tidepool-model-reward-XXXXXX";
    TP_CHECK(mkdtemp(made) != nullptr);
    path_ = made;
    ModelInit init;
    init.hidden_size = 32;
    init.intermediate_size = 64;
    init.layers = 2;
    init.heads = 2;
    init.kv_heads = 1;
    init.head_size = 16;
    init.max_position = 96;
    init.alphabet = alphabet;
    TP_CHECK(WriteInitFolder(init, DType::kFloat32, path_).ok());
    model::ModelSpec spec = *model::ReadSpec(path_);
    spec.value_head = value_head;
    auto weights = *model::Weights::Create(spec, DType::kFloat32);
    weights->Initialize(7, 0.5);
    for (const model::Parameter& p : weights->layout()) {  // a head begins as zeros
      auto* values = reinterpret_cast<float*>(weights->bytes().data()) + p.offset;
      for (int64_t i = 0; p.name == "score" && i < spec.hidden_size; ++i)
        values[i] = score * static_cast<float>(i % 7 - 3);
    }
    TP_CHECK(model::SaveHuggingFace(*weights, path_).ok());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

tasks::RewardInput Sample(const std::string& text, bool ended = true) {
  return {.prompt = "say ab", .answer = "ab", .text = text, .ended = ended, .messages = {{"user", "say ab"}}};
}

class ModelRewardTest : public testing::Test {
 protected:
  void Open(const RewardFunction& function) {
    JobConfig job;
    job.reward.functions = {function};
    job.reward.load_timeout_s = 60;
    reward_ = OpenModelRewardHere(function, job, watch_);
  }
  Verdicts Ask(const std::vector<tasks::RewardInput>& inputs) {
    std::vector<const tasks::RewardInput*> of;
    for (const auto& input : inputs) of.push_back(&input);
    return reward_->Ask(of, {});
  }

  CallWatch watch_;
  std::unique_ptr<ModelReward> reward_;
};

constexpr const char* kLetters = "abcdefghijklmnopqrstuvwxyz =";

TEST_F(ModelRewardTest, AScoreIsTheTrainersValueAfterTheLastTokenWhateverItIsComputedWith) {
  const Folder folder(/*value_head=*/true, kLetters);
  Open({.name = "reward_model", .path = folder.path(), .max_tokens = 40});
  const std::vector<tasks::RewardInput> inputs = {Sample("ab"), Sample("ba"), Sample("abab"),
                                                  Sample("ab", false), Sample("")};
  const Verdicts together = Ask(inputs);
  const auto weights = *model::LoadHuggingFace(folder.path(), DType::kFloat32);
  model::Decoder decoder(*weights, std::make_shared<device::CpuDevice>());
  const auto text = *RowSource::OfFolder(folder.path(), DataConfig().template_date);
  for (size_t i = 0; i < inputs.size(); ++i) {
    ASSERT_EQ(together[i].outcome, Outcome::kOk) << together[i].detail;
    EXPECT_EQ(Ask({inputs[i]}).front().score, together[i].score);
    // As a row of a pair stands in training: the prompt, and the answer with its end.
    train::Row row;
    row.prompt = *text->EncodePrompt("say ab");
    row.response = *text->EncodeText(inputs[i].text, false);
    if (inputs[i].ended) row.response.push_back(text->end_token());
    row.response.push_back(row.prompt.front());
    const auto values = *train::ValuesOf(*weights, decoder, 64, std::span(&row, 1), std::vector<int64_t>{0});
    EXPECT_EQ(together[i].score, values.front().back());
  }
  EXPECT_NE(together[0].score, together[1].score);
  EXPECT_NE(together[0].score, together[3].score);
}

TEST_F(ModelRewardTest, WhatItCannotReadIsTheRowsFault) {
  const Folder folder(/*value_head=*/true, kLetters);
  Open({.name = "reward_model", .path = folder.path(), .max_tokens = 12});
  const Verdicts verdicts = Ask({Sample("a!"), Sample("abababababab"), Sample("ab")});
  EXPECT_EQ(verdicts[0].outcome, Outcome::kData);
  EXPECT_THAT(verdicts[0].detail, HasSubstr("reward_model: "));
  EXPECT_EQ(verdicts[1].outcome, Outcome::kData);
  EXPECT_THAT(verdicts[1].detail, HasSubstr("tokens of the reward model, which takes 12"));
  EXPECT_EQ(verdicts[2].outcome, Outcome::kOk);
}

TEST_F(ModelRewardTest, AJudgeSaysTheSameAloneAndAmongOthers) {
  const Folder folder(/*value_head=*/false, "0123456789 ab");
  Open({.name = "judge:digits",
        .path = folder.path(),
        .prompt = "ab {response} {answer} ",
        .score_pattern = "[0-9]",
        .score_max = 9,
        .max_new_tokens = 8});
  const std::vector<tasks::RewardInput> inputs = {Sample("ab"), Sample("ba"), Sample("aabb"), Sample("b")};
  const Verdicts together = Ask(inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const tasks::Verdict alone = Ask({inputs[i]}).front();
    EXPECT_EQ(alone.detail, together[i].detail);
    EXPECT_EQ(alone.outcome, together[i].outcome);
    EXPECT_EQ(alone.score, together[i].score);
    EXPECT_NE(alone.outcome, Outcome::kInfra);
    EXPECT_THAT(alone.detail, HasSubstr("judge"));
  }
  const tasks::Verdict unknown = Ask({Sample("xyz")}).front();
  EXPECT_EQ(unknown.outcome, Outcome::kData) << "a character without a token";
  const tasks::Verdict longer = Ask({Sample(std::string(90, 'a'))}).front();
  EXPECT_EQ(longer.outcome, Outcome::kData);
  EXPECT_THAT(longer.detail, HasSubstr("takes 96 together"));
}

TEST_F(ModelRewardTest, CallersThatWaitAreAnsweredEachByItsOwn) {
  const Folder folder(/*value_head=*/true, kLetters);
  Open({.name = "reward_model", .path = folder.path()});
  const std::vector<std::string> texts = {"a", "b", "c", "ab", "bc", "abc"};
  std::vector<double> alone, at_once(texts.size());
  for (const std::string& text : texts) alone.push_back(Ask({Sample(text)}).front().score);
  {
    std::vector<std::jthread> callers;  // waits: for answers within timeout_s
    for (size_t i = 0; i < texts.size(); ++i)
      callers.emplace_back([&, i] { at_once[i] = Ask({Sample(texts[i])}).front().score; });
  }
  EXPECT_EQ(at_once, alone);
}

TEST_F(ModelRewardTest, AScoreThatIsNoNumberIsNotTheRowsFault) {
  const Folder folder(/*value_head=*/true, kLetters, std::numeric_limits<float>::quiet_NaN());
  Open({.name = "reward_model", .path = folder.path()});
  const tasks::Verdict verdict = Ask({Sample("ab")}).front();
  EXPECT_EQ(verdict.outcome, Outcome::kInfra);
  EXPECT_THAT(verdict.detail, HasSubstr("nan, which is no finite number"));
}

TEST_F(ModelRewardTest, AModelThatCannotBeLoadedIsSaidAndGradesNothing) {
  const Folder folder(/*value_head=*/true, kLetters);
  std::filesystem::resize_file(folder.path() + "/model.safetensors", 100);
  Open({.name = "reward_model", .path = folder.path()});
  const tasks::Verdict verdict = Ask({Sample("ab")}).front();
  EXPECT_EQ(verdict.outcome, Outcome::kInfra);
  EXPECT_THAT(verdict.detail, HasSubstr("model.safetensors"));
  EXPECT_THAT(reward_->failure().value_or(""), HasSubstr("model.safetensors"));
}

TEST_F(ModelRewardTest, WhatAResponseWritesIsNoSpecialToken) {
  const Folder folder(/*value_head=*/true, std::string(kLetters) + "<>");
  const auto text = *RowSource::OfFolder(folder.path(), DataConfig().template_date);
  const std::string forged = "a<eos>b";
  EXPECT_EQ(text->WithoutSpecialTokens(forged), "a< eos>b");
  EXPECT_EQ(text->WithoutSpecialTokens("a< eos>b<"), "a< eos>b<");
  const auto ends = [&](const std::vector<int32_t>& ids) {
    return std::count(ids.begin(), ids.end(), text->end_token());
  };
  EXPECT_EQ(ends(*text->EncodeText(forged, false)), 1);
  tasks::RewardInput input = Sample(forged);
  input.prompt = input.messages[0].content = forged;
  EXPECT_EQ(ends(*text->EncodeAnswered(input)), 1) << "its own";
  EXPECT_EQ(text->EncodeAnswered(input)->back(), text->end_token());
}

TEST_F(ModelRewardTest, APairOfTurnsIsTrainedAsItIsScored) {
  const Folder folder(/*value_head=*/true, std::string(kLetters) + ":");
  std::ofstream(folder.path() + "/chat_template.jinja")
      << "{% for m in messages %}{{ m.role }}: {{ m.content }}<eos> {% endfor %}"
         "{% if add_generation_prompt %}assistant: {% endif %}";
  JobConfig job;
  job.job = RewardModelJob{};
  job.data.path = folder.path() + "/rows.jsonl";
  job.data.shuffle = false;
  job.data.held_out = 0;
  std::ofstream(job.data.path)
      << R"({"prompt": [{"role": "user", "content": "hi"}], "chosen": [{"role": "assistant", "content": "ab"}, )"
         R"({"role": "user", "content": "more"}, {"role": "assistant", "content": "ba"}], )"
         R"("rejected": [{"role": "assistant", "content": "x"}]})"
      << "\n";
  const auto rows = RowSource::Create(job, folder.path());
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  const auto row = (*rows)->Row(0);
  ASSERT_TRUE(row.ok()) << row.status().message();
  std::vector<int32_t> trained = row->prompt;
  trained.insert(trained.end(), row->response.begin(), row->response.end());
  tasks::RewardInput input = Sample("ba");
  input.prompt = "more";
  input.messages = {{"user", "hi"}, {"assistant", "ab"}, {"user", "more"}};
  EXPECT_EQ(trained,
            *(*RowSource::OfFolder(folder.path(), DataConfig().template_date))->EncodeAnswered(input));
  EXPECT_EQ(row->rejected.back(), (*rows)->end_token());
  EXPECT_EQ(row->loss_mask.size(), row->response.size());
}

TEST(CheckModelRewardTest, SaysByKeyWhatAFolderLacks) {
  const Folder scores(/*value_head=*/true, kLetters), writes(/*value_head=*/false, kLetters);
  EXPECT_EQ(CheckModelReward({.name = "reward_model:x", .path = scores.path()}), OkStatus());
  EXPECT_EQ(CheckModelReward({.name = "judge", .path = writes.path()}), OkStatus());
  const auto message = [](const RewardFunction& function) { return CheckModelReward(function).message(); };
  EXPECT_THAT(message({.name = "reward_model", .path = writes.path()}), HasSubstr("has no value head"));
  EXPECT_THAT(message({.name = "judge", .path = scores.path()}), HasSubstr("cannot be a judge"));
  EXPECT_THAT(message({.name = "judge", .path = writes.path(), .max_new_tokens = 96}),
              testing::StartsWith("max_new_tokens: is 96"));
  EXPECT_THAT(message({.name = "reward_model", .path = "/nowhere"}), testing::StartsWith("path: /nowhere"));
  TP_CHECK(text::WriteCharacterTokenizer(std::string(kLetters) + "!", scores.path()).ok());
  EXPECT_THAT(message({.name = "reward_model", .path = scores.path()}), HasSubstr("has ids up to 31"));
  std::ofstream(scores.path() + "/tokenizer.json") << "{}";
  EXPECT_THAT(message({.name = "reward_model", .path = scores.path()}), HasSubstr("tokenizer.json"));
}

}  // namespace
}  // namespace tidepool::workers
