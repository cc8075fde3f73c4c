// What a job's rows become before there is a run: tokens, lengths, places, and what is said of them.

#include "workers/data/data_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "workers/data/model_folder.h"
#include "workers/data/row_source.h"

namespace tidepool::workers {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class DataSummaryTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "data-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
    config_.model.init = ModelInit{};
    config_.model.init->alphabet = "abcdefghijklmnopqrstuvwxyz:. ";
    config_.model.init->max_position = 64;
    config_.train.micro_batch_tokens = 128;
    config_.data.path = dir_ + "/rows.jsonl";
    config_.data.held_out = 0;
    config_.data.max_prompt_tokens = 8;
  }
  void TearDown() override {
    std::error_code error;
    fs::remove_all(dir_, error);
  }
  void Rows(const std::string& text) { std::ofstream(config_.data.path) << text; }
  // A model folder whose template says role and words of each turn.
  StatusOr<std::unique_ptr<RowSource>> Chat() {
    TP_RETURN_IF_ERROR(WriteInitFolder(*config_.model.init, DType::kFloat32, dir_ + "/model"));
    std::ofstream(dir_ + "/model/chat_template.jinja")
        << "{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}.{% endfor %}"
           "{% if add_generation_prompt %}assistant:{% endif %}";
    return RowSource::Create(config_, dir_ + "/model");
  }
  std::string Learned(const RowSource& rows, const EncodedRow& row) {
    std::string text;
    for (size_t i = 0; i < row.response.size(); ++i)
      text += row.loss_mask[i] != 0 ? rows.tokenizer().Decode(std::vector{row.response[i]}, true) : "_";
    return text;
  }

  std::string dir_;
  JobConfig config_;
};

TEST_F(DataSummaryTest, SaysHowManyRowsTheLongestPromptAndWhatIsLeftOutByFileAndLine) {
  std::string text;
  for (int i = 0; i < 200; ++i)
    text += R"({"prompt": "ab", "answer": "c"})"
            "\n";
  Rows(text + "{\"prompt\": \"abcdefghijkl\"}\nbroken\n{\"prompt\": \"abcdef\", \"answer\": \"x\"}\n");
  const auto s = SummarizeData(config_);
  ASSERT_TRUE(s.ok()) << s.status().message();
  EXPECT_EQ(s->rows, 202);
  EXPECT_EQ(s->looked_at, 202);
  const std::string at = config_.data.path;
  EXPECT_EQ(s->longest_prompt.place, at + ":201");
  EXPECT_GE(s->longest_prompt.tokens, 12);
  EXPECT_EQ(s->too_long.count, 1);
  EXPECT_THAT(s->too_long.first, ElementsAre(HasSubstr(at + ":201: the prompt has ")));
  EXPECT_THAT(s->bad_lines.first, ElementsAre(HasSubstr(at + ":202: no valid JSON")));
  EXPECT_EQ(s->example_place, at + ":1");
  EXPECT_THAT(s->example_prompt, HasSubstr("ab"));
  const std::string all = testing::PrintToString(DataLines(*s));
  for (const char* words : {"202 rows to train on, 0 held out", "longest prompt: ", "too long: 1, left out",
                            "bad lines: 1, left out", "data.max_prompt_tokens is 8"})
    EXPECT_THAT(all, HasSubstr(words));
}

TEST_F(DataSummaryTest, OfManyRowsTheLongestAreLookedAt) {
  std::string text;
  for (int i = 0; i < 30000; ++i)
    text += i == 17777 ? "{\"prompt\": \"abcdefgh\"}\n" : "{\"prompt\": \"ab\"}\n";
  Rows(text);
  const auto s = SummarizeData(config_);
  ASSERT_TRUE(s.ok()) << s.status().message();
  EXPECT_EQ(s->rows, 30000);
  EXPECT_LT(s->looked_at, 12000);
  EXPECT_EQ(s->longest_prompt.place, config_.data.path + ":17778");
  EXPECT_THAT(DataLines(*s), testing::Contains(HasSubstr("those with the longest lines")));
}

TEST_F(DataSummaryTest, WithoutATokenizerTheRowsAreCountedAndItSaysWhy) {
  Rows("{\"prompt\": \"ab\"}\n");
  config_.model.init.reset();
  config_.model.path = dir_ + "/none";
  const auto s = SummarizeData(config_);
  ASSERT_TRUE(s.ok()) << s.status().message();
  EXPECT_EQ(s->rows, 1);
  EXPECT_EQ(s->looked_at, 0);
  EXPECT_THAT(s->unread, HasSubstr("/none is no folder"));
  fs::remove(config_.data.path);
  EXPECT_THAT(SummarizeData(config_).value().unread, HasSubstr("rows.jsonl is not there"));
}

TEST_F(DataSummaryTest, ARowThatCannotBeUsedIsNamedByFileAndLine) {
  Rows("{\"prompt\": \"ab\"}\n\n{\"prompt\": \"abcdefghijkl\"}\n");
  config_.data.shuffle = false;
  const auto folder = TextFolder::Of(config_.model);
  ASSERT_TRUE(folder.ok());
  const auto rows = RowSource::Create(config_, folder->path());
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  EXPECT_TRUE((*rows)->Row(0).ok());
  EXPECT_THAT((*rows)->Row(1).status().message(), HasSubstr(config_.data.path + ":3: the prompt has "));
  Rows("{\"prompt\": \"abcdefghijkl\"}\n");
  EXPECT_THAT(SummarizeData(config_).status().message(), HasSubstr("no row of the data can be used"));
}

TEST_F(DataSummaryTest, OfAConversationTheTurnsOfTheCompletionAreLearned) {
  config_.job = SftJob{};
  config_.data.max_prompt_tokens = 200;
  config_.data.shuffle = false;
  config_.model.init->max_position = 400;
  config_.train.micro_batch_tokens = 400;
  const std::string turns = R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}, )"
                            R"({"role": "user", "content": "why"}])";
  const std::string last = R"([{"role": "assistant", "content": "so"}])";
  Rows(R"({"prompt": )" + turns + R"(, "completion": )" + last + "}\n" +  //
       R"({"prompt": )" + turns + R"(, "completion": "so"})" + "\n" +     //
       R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]})" + "\n" +
       R"({"text": "as it is"})" + "\n");
  const auto rows = Chat();
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  std::vector<std::string> asked, learned;
  for (int64_t i = 0; i < 4; ++i) {
    const auto row = (*rows)->Row(i);
    ASSERT_TRUE(row.ok()) << row.status().message();
    asked.push_back((*rows)->tokenizer().Decode(row->prompt, true));
    learned.push_back(Learned(**rows, *row));
  }
  const std::string before = "user:hi.assistant:yo.user:why.assistant:";
  EXPECT_THAT(asked, ElementsAre(before, before, "user:hi.assistant:", testing::_));
  EXPECT_THAT(learned, ElementsAre("so.", "so", "yo.", HasSubstr("s it is")));
}

TEST_F(DataSummaryTest, APairInTurnsKeepsItsWholePrompt) {
  config_.job = DpoJob{};
  config_.data.max_prompt_tokens = 200;
  config_.model.init->max_position = 400;
  config_.train.micro_batch_tokens = 400;
  const std::string turns =
      R"([{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}, )";
  Rows(R"({"chosen": )" + turns + R"({"role": "assistant", "content": "yes"}], "rejected": )" + turns +
       R"({"role": "assistant", "content": "no"}]})" + "\n");
  const auto rows = Chat();
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  const auto row = (*rows)->Row(0);
  ASSERT_TRUE(row.ok()) << row.status().message();
  const text::Tokenizer& t = (*rows)->tokenizer();
  EXPECT_EQ(t.Decode(row->prompt, true), "system:be kind.user:hi.assistant:");
  EXPECT_EQ(t.Decode(row->response, true), "yes");
  EXPECT_EQ(t.Decode(row->rejected, true), "no");
}

}  // namespace
}  // namespace tidepool::workers
