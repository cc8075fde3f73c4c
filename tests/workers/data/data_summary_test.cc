// What a job's rows become before there is a run: tokens, lengths, places, and what is said of them.

#include "workers/data/data_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

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
    return Learned(rows, row.response, row.loss_mask);
  }
  std::string Learned(const RowSource& rows, const std::vector<int32_t>& ids,
                      const std::vector<uint8_t>& mask) {
    std::string text;
    for (size_t i = 0; i < ids.size(); ++i)
      text += mask.empty() || mask[i] != 0 ? rows.tokenizer().Decode(std::vector{ids[i]}, true) : "_";
    return text;
  }

  std::string dir_;
  JobConfig config_;
};

TEST_F(DataSummaryTest, EachRewardSaysWhatItMakesOfTheFirstRowThatCanBeUsed) {
  Rows("{\"prompt\": \"abcdefghijkl\", \"answer\": \"x\"}\n{\"prompt\": \"ab\", \"answer\": \"c\"}\n");
  config_.reward.functions = {{.name = "exact_answer"}, {.name = "contains:z"}, {.name = "countdown"}};
  const auto s = SummarizeData(config_);
  ASSERT_TRUE(s.ok()) << s.status().message();
  ASSERT_EQ(s->rewards.size(), 3);
  EXPECT_EQ(s->rewards[0].on, config_.data.path + ":2, answered by its own answer");
  EXPECT_EQ(s->rewards[0].verdict, "1");
  EXPECT_EQ(s->rewards[1].verdict, "0");
  EXPECT_THAT(s->rewards[2].verdict, testing::StartsWith("no score, the row is at fault: "));
  EXPECT_THAT(DataLines(*s),
              testing::Contains(HasSubstr("reward exact_answer says of " + s->rewards[0].on + ": 1")));
}

TEST_F(DataSummaryTest, ARewardThatThisMachineHasNoProcessForWasNotTriedAndIsNotAtFault) {
  Rows("{\"prompt\": \"ab\", \"answer\": \"c\"}\n");
  config_.reward.functions = {{.name = "exact_answer"}};
  ASSERT_TRUE(WriteInitFolder(*config_.model.init, DType::kFloat32, dir_ + "/model").ok());
  const auto rows = RowSource::Create(config_, dir_ + "/model");
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const int free = dup(STDERR_FILENO);
  close(free);
  const rlimit none{.rlim_cur = static_cast<rlim_t>(free), .rlim_max = files.rlim_max};
  setrlimit(RLIMIT_NOFILE, &none);
  const auto tried = TryRewards(config_, **rows);
  setrlimit(RLIMIT_NOFILE, &files);
  ASSERT_TRUE(tried.ok()) << tried.status().message();
  ASSERT_EQ(tried->size(), 1);
  EXPECT_THAT(tried->front().not_tried, HasSubstr("no child process: pipe2: "));
  EXPECT_THAT(
      DataLines({.rewards = *tried}),
      testing::Contains(HasSubstr("warning: reward exact_answer was not tried on " + config_.data.path +
                                  ":1, answered by its own answer: no child process: ")));
}

TEST_F(DataSummaryTest, SaysHowManyRowsTheLongestPromptAndWhatIsLeftOutByFileAndLine) {
  std::string text;
  for (int i = 0; i < 200; ++i)
    text += R"({"prompt": "ab", "answer": "c"})"
            "\n";
  Rows(text + "{\"prompt\": \"abcdefghijkl\"}\nbroken\n{\"prompt\": \"abcdef\", \"answer\": \"x\"}\n");
  const auto s = SummarizeData(config_);
  ASSERT_TRUE(s.ok()) << s.status().message();
  EXPECT_EQ(s->rows, 201) << "what is left out is not trained on";
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
  for (const char* words : {"201 rows to train on, 0 held out", "longest prompt: ", "too long: 1, left out",
                            "bad lines: 1, left out", "data.max_prompt_tokens is 8"})
    EXPECT_THAT(all, HasSubstr(words));
}

TEST_F(DataSummaryTest, RowsWithoutTheAnswerThatARewardComparesWithAreCountedAndTheFirstIsNamed) {
  Rows("{\"prompt\": \"a\", \"answer\": \"b\"}\n{\"prompt\": \"ab\"}\n{\"prompt\": \"c\"}\n");
  const std::string at = config_.data.path;
  const std::string warning =
      at + ":2: has no \"answer\", which reward exact_answer compares with; 2 of 3 rows";
  config_.reward.functions = {{.name = "contains:x"}, {.name = "exact_answer"}};
  const auto some = SummarizeData(config_);
  ASSERT_TRUE(some.ok()) << some.status().message();
  EXPECT_EQ(some->ungraded.count, 2);
  EXPECT_THAT(DataLines(*some), testing::Contains(HasSubstr("warning: " + warning)));
  config_.reward.functions = {{.name = "contains:x"}};
  EXPECT_EQ(SummarizeData(config_)->ungraded.count, 0) << "compares with no answer";
  config_.reward.functions = {{.name = "judge", .endpoint = "127.0.0.1:1"}};
  EXPECT_EQ(SummarizeData(config_)->ungraded.count, 0) << "a server is not asked";
  config_.reward.functions = {{.name = "contains"}};
  Rows("{\"prompt\": \"ab\"}\n{\"prompt\": \"c\", \"answer\": \"\"}\n");
  EXPECT_THAT(SummarizeData(config_).status().message(),
              HasSubstr(at + ":1: has no \"answer\", which reward contains compares with; 2 of 2 rows"));
  config_.reward.functions = {{.name = "exact_answer"}};
  Rows("{\"prompt\": \"ab\", \"answer_rule\": \"countdown\", \"numbers\": [1, 2], \"target\": 3}\n");
  EXPECT_TRUE(SummarizeData(config_).ok()) << "its rule compares with other fields";
}

TEST_F(DataSummaryTest, OfManyRowsTheLongestAreLookedAt) {
  std::string text;
  for (int i = 0; i < 30000; ++i)
    text += i == 17777 ? "{\"prompt\": \"abcdefghijkl\"}\n" : "{\"prompt\": \"ab\"}\n";
  Rows(text);
  const auto s = SummarizeData(config_);
  ASSERT_TRUE(s.ok()) << s.status().message();
  EXPECT_EQ(s->rows, 30000);
  EXPECT_LT(s->looked_at, 12000);
  EXPECT_EQ(s->longest_prompt.place, config_.data.path + ":17778");
  EXPECT_THAT(DataLines(*s), testing::Contains(HasSubstr("those with the longest lines")));
  EXPECT_THAT(DataLines(*s), testing::Contains(HasSubstr("rows that are too long: at least 1, left out")));
}

TEST_F(DataSummaryTest, CharactersThatTheModelDoesNotKnowAreNamedByFileAndLine) {
  Rows(
      "{\"prompt\": \"ab\"}\n{\"prompt\": \"ab!\"}\n{\"prompt\": \"a\u00e9\"}\n{\"prompt\": "
      "\"abcdefghijkl\"}\n");
  config_.data.shuffle = false;
  const auto folder = TextFolder::Of(config_.model);
  ASSERT_TRUE(folder.ok());
  const auto rows = RowSource::Create(config_, folder->path());
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  const std::string message = (*rows)->CheckCharacters().message(), at = "\n" + config_.data.path;
  EXPECT_THAT(message,
              testing::StartsWith("2 of 4 rows have characters without a token: '!' (U+0021), '\u00e9' "
                                  "(U+00E9); the model knows the characters of model.init.alphabet alone"));
  EXPECT_THAT(message, HasSubstr(at + ":2: '!' (U+0021)" + at + ":3: '\u00e9' (U+00E9)"));
  EXPECT_FALSE((*rows)->Row(1).ok());
  EXPECT_FALSE((*rows)->EncodePrompt("a?").ok());
  Rows("{\"prompt\": \"ab\"}\n");
  EXPECT_TRUE((*RowSource::Create(config_, folder->path()))->CheckCharacters().ok());
}

TEST_F(DataSummaryTest, ATokenOutsideTheModelsVocabularyIsNamedByFileAndLine) {
  ASSERT_TRUE(Chat().status().code() == StatusCode::kNotFound) << "there are no rows yet";
  std::ifstream in(dir_ + "/model/config.json");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  const std::string vocab = "\"vocab_size\": 32";
  ASSERT_THAT(text, HasSubstr(vocab));
  std::ofstream(dir_ + "/model/config.json")
      << text.replace(text.find(vocab), vocab.size(), "\"vocab_size\": 20");
  Rows("{\"prompt\": \"ab\"}\n{\"prompt\": \"xy\"}\n");
  config_.model.init.reset();
  config_.data.shuffle = false;
  config_.data.max_prompt_tokens = 64;
  const auto rows = RowSource::Create(config_, dir_ + "/model");
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  EXPECT_THAT((*rows)->Row(1).status().message(), HasSubstr(config_.data.path + ":2: token id "));
  EXPECT_THAT((*rows)->Row(1).status().message(), HasSubstr("outside the model's vocabulary of 20"));
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

TEST_F(DataSummaryTest, OfAPairOfSeveralTurnsThoseOfTheAssistantAreLearned) {
  config_.job = DpoJob{};
  config_.data.max_prompt_tokens = 200;
  config_.model.init->max_position = 400;
  config_.train.micro_batch_tokens = 400;
  const std::string user = R"([{"role": "user", "content": "hi"}, )",
                    again = R"({"role": "user", "content": "why"}, )";
  const auto said = [](const std::string& text) {
    return R"({"role": "assistant", "content": ")" + text + "\"}";
  };
  Rows(R"({"chosen": )" + user + said("yes") + "," + again + said("so") + R"(], "rejected": )" + user +
       said("no") + "," + again + said("oh") + "]}\n");
  const auto rows = Chat();
  ASSERT_TRUE(rows.ok()) << rows.status().message();
  const auto row = (*rows)->Row(0);
  ASSERT_TRUE(row.ok()) << row.status().message();
  EXPECT_EQ((*rows)->tokenizer().Decode(row->prompt, true), "user:hi.assistant:");
  const std::string between(std::string("user:why.assistant:").size(), '_');
  EXPECT_EQ(Learned(**rows, row->response, row->loss_mask), "yes." + between + "so.");
  EXPECT_EQ(Learned(**rows, row->rejected, row->rejected_mask), "no." + between + "oh.");
}

}  // namespace
}  // namespace tidepool::workers
