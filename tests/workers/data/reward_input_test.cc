// What a grader sees of a response (RowSource::InputOf).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "workers/data/model_folder.h"
#include "workers/data/row_source.h"

namespace tidepool::workers {
namespace {

using tasks::Message;
using testing::ElementsAre;

class RewardInputTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "reward-input-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
    config_.model.init = ModelInit{};
    config_.model.init->alphabet = "abcdefghijklmnopqrstuvwxyz :";
    config_.rollout.max_new_tokens = 8;
    ASSERT_TRUE(WriteInitFolder(*config_.model.init, DType::kFloat32, dir_).ok());
  }
  void TearDown() override {
    std::error_code error;
    std::filesystem::remove_all(dir_, error);
  }
  void WriteTemplate() {
    std::ofstream(dir_ + "/chat_template.jinja")
        << "{% for m in messages %}{{ m.role }}: {{ m.content }}<eos> {% endfor %}"
           "{% if add_generation_prompt %}assistant: {% endif %}";
  }
  // Of the answer "ok" to the first row of a file with these lines.
  tasks::RewardInput First(const std::string& lines) {
    config_.data.path = dir_ + "/rows.jsonl";
    config_.data.shuffle = false;
    config_.data.held_out = 0;
    std::ofstream(config_.data.path) << lines;
    const auto rows = RowSource::Create(config_, dir_);
    TP_CHECK(rows.ok()) << rows.status().message();
    const auto row = (*rows)->Row(0);
    TP_CHECK(row.ok()) << row.status().message();
    const auto ids = (*rows)->tokenizer().Encode("ok", {.add_special = false});
    return (*rows)->InputOf({0, 1, 2}, *row, *ids, /*ended=*/true);
  }
  std::string dir_;
  JobConfig config_;
};

TEST_F(RewardInputTest, HasTheWholeConversationAndWhatTheModelRead) {
  WriteTemplate();
  const tasks::RewardInput in =
      First(R"({"prompt": [{"role": "system", "content": "brief"}, {"role": "user", "content": "hi"},)"
            R"( {"role": "assistant", "content": "yes"}, {"role": "user", "content": "more"}],)"
            R"( "answer": "ok", "level": 3})"
            "\n");
  EXPECT_THAT(in.messages, ElementsAre(Message{"system", "brief"}, Message{"user", "hi"},
                                       Message{"assistant", "yes"}, Message{"user", "more"}));
  EXPECT_EQ(in.prompt, "more");
  EXPECT_EQ(in.rendered_prompt,
            "system: brief<eos> user: hi<eos> assistant: yes<eos> user: more<eos> assistant: ");
  EXPECT_EQ(in.text, "ok");
  EXPECT_EQ(in.fields.at("level"), "3");
  EXPECT_EQ(in.file, config_.data.path);
  EXPECT_EQ(in.line, 1);
  EXPECT_EQ(in.max_new_tokens, 8);
  EXPECT_EQ(in.sample, "0.1.2");
  EXPECT_FALSE(in.held_out);
}

TEST_F(RewardInputTest, APlainPromptIsOneUserTurn) {
  const tasks::RewardInput in = First("\n{\"prompt\": \"hi\", \"answer\": \"ok\"}\n");
  EXPECT_THAT(in.messages, ElementsAre(Message{"user", "hi"}));
  EXPECT_THAT(in.rendered_prompt, testing::HasSubstr("hi"));
  EXPECT_EQ(in.line, 2);
  EXPECT_EQ(in.row, 0);
}

// The answers of a supervised conversation are what is learned, not what is asked.
TEST_F(RewardInputTest, ASupervisedConversationEndsBeforeItsFirstAnswer) {
  WriteTemplate();
  config_.job = SftJob{};
  const tasks::RewardInput in =
      First(R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "secret"}]})"
            "\n");
  EXPECT_THAT(in.messages, ElementsAre(Message{"user", "hi"}));
}

}  // namespace
}  // namespace tidepool::workers
