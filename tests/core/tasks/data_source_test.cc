#include "core/tasks/data_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "core/tasks/jsonl_data.h"

namespace tidepool::tasks {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

StatusOr<JsonlData> Parse(const std::string& text, RowKind kind = RowKind::kRl, double max_bad = 0) {
  return JsonlData::Parse(text, "rows.jsonl", {.kind = kind, .max_bad_fraction = max_bad});
}

std::string Error(const std::string& text, RowKind kind = RowKind::kRl) {
  const auto data = Parse(text, kind);
  return data.ok() ? "none" : data.status().message();
}

class TempFile {
 public:
  explicit TempFile(const std::string& text)
      : path_((std::filesystem::path(testing::TempDir()) /
               ("data_" + std::to_string(::getpid()) + "_" + std::to_string(++count_) + ".jsonl"))
                  .string()) {
    std::ofstream(path_) << text;
  }
  ~TempFile() { std::filesystem::remove(path_); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  static inline int count_ = 0;
  std::string path_;
};

TEST(JsonlDataTest, ReadsRowsAndKeepsFurtherFields) {
  const auto data = Parse(
      "{\"prompt\": \"a\", \"answer\": 5, \"level\": 3, \"tags\": [\"x\"], \"note\": \"n\"}\n\n{\"prompt\": "
      "[{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"u\"}]}");
  ASSERT_TRUE(data.ok()) << data.status().message();
  ASSERT_EQ(data->size(), 2);
  const Question first = data->Row(0);
  EXPECT_EQ(first.answer, "5");
  EXPECT_EQ(first.fields.at("level"), "3");
  EXPECT_EQ(first.fields.at("tags"), "[\"x\"]");
  EXPECT_EQ(first.fields.at("note"), "n");
  const Question second = data->Row(1);
  EXPECT_EQ(second.messages.size(), 2U);
  EXPECT_EQ(second.prompt, "u");
  EXPECT_EQ(data->place(1), "rows.jsonl:3");
}

TEST(JsonlDataTest, RowsThatAskTheSameHaveOneKey) {
  const auto data =
      Parse(R"({"prompt": "a", "answer": 5})"
            "\n"
            R"({"answer": 6, "prompt": "a", "note": "n"})"
            "\n"
            R"({"prompt": "b", "answer": 5})"
            "\n"
            R"({"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]})");
  ASSERT_TRUE(data.ok()) << data.status().message();
  EXPECT_EQ(data->prompt_key(0), data->prompt_key(1));
  EXPECT_NE(data->prompt_key(0), data->prompt_key(2));
  EXPECT_NE(data->prompt_key(0), data->prompt_key(3)) << "a system prompt asks something else";
  const auto sft =
      Parse(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})"
            "\n"
            R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}]})",
            RowKind::kSft);
  ASSERT_TRUE(sft.ok()) << sft.status().message();
  EXPECT_EQ(sft->prompt_key(0), sft->prompt_key(1)) << "what is to be learned is not what is asked";
}

TEST(JsonlDataTest, SftRowsNeedSomethingToLearn) {
  EXPECT_EQ(Error("{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", "
                  "\"content\": \"a\"}]}",
                  RowKind::kSft),
            "none");
  EXPECT_EQ(Error("{\"prompt\": \"q\", \"answer\": \"a\"}", RowKind::kSft), "none");
  EXPECT_THAT(Error("{\"prompt\": \"q\"}", RowKind::kSft),
              HasSubstr("rows.jsonl:1: a prompt without an answer"));
  EXPECT_THAT(Error("{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}]}", RowKind::kSft),
              HasSubstr("no assistant turn"));
}

TEST(JsonlDataTest, PairsHaveTwoAnswersThatDiffer) {
  const auto data =
      Parse(R"({"prompt": "p", "chosen": "good", "rejected": "bad", "source": "x"})", RowKind::kPair);
  ASSERT_TRUE(data.ok()) << data.status().message();
  EXPECT_EQ(data->Row(0).answer, "good");
  EXPECT_EQ(data->Row(0).fields, (std::map<std::string, std::string>{{"rejected", "bad"}, {"source", "x"}}));
  EXPECT_THAT(
      Error(R"({"prompt": "p", "chosen": "good"})", RowKind::kPair),
      HasSubstr(
          "rows.jsonl:1: no rejected; found chosen, prompt; a row of pairs has prompt, chosen and rejected"));
  EXPECT_THAT(Error(R"({"prompt": "p", "chosen": 3, "rejected": "bad"})", RowKind::kPair),
              HasSubstr("chosen is neither text nor a list of {role, content}"));
  EXPECT_THAT(Error(R"({"prompt": "p", "chosen": "a", "rejected": "a"})", RowKind::kPair),
              HasSubstr("are the same"));
}

// The shapes of TRL's data sets.
Question Read(const std::string& line, RowKind kind) {
  const auto row = ParseRow(line, kind);
  EXPECT_TRUE(row.ok()) << row.status().message();
  return row.ok() ? *row : Question{};
}
std::string Refusal(const std::string& line, RowKind kind) {
  const auto row = ParseRow(line, kind);
  return row.ok() ? "none" : row.status().message();
}

TEST(RowShapesTest, WhatBothAnswersOfAPairBeginWithIsItsPrompt) {
  const std::string turns = R"({"role": "system", "content": "s"}, {"role": "user", "content": "u"}, )";
  const Question q =
      Read(R"({"chosen": [)" + turns + R"({"role": "assistant", "content": "good"}], "rejected": [)" + turns +
               R"({"role": "assistant", "content": "bad"}], "score": 3})",
           RowKind::kPair);
  EXPECT_EQ(q.messages, (std::vector<Message>{{"system", "s"}, {"user", "u"}}));
  EXPECT_EQ(q.answer, "good");
  EXPECT_EQ(q.fields, (std::map<std::string, std::string>{{"rejected", "bad"}, {"score", "3"}}));
  EXPECT_FALSE(q.raw);
  // As text: a space before the first difference goes with the answers, characters stay whole, and an answer
  // that is the beginning of the other one keeps its last character.
  const Question text =
      Read(R"({"chosen": "The sky is blue.", "rejected": "The sky is green."})", RowKind::kPair);
  EXPECT_TRUE(text.raw);
  EXPECT_EQ(text.prompt, "The sky is");
  EXPECT_EQ(text.answer, " blue.");
  EXPECT_EQ(text.fields.at("rejected"), " green.");
  const Question whole = Read("{\"chosen\": \"na\u00efve\", \"rejected\": \"na\u00e9\"}", RowKind::kPair);
  EXPECT_EQ(whole.prompt, "na");
  const Question longer = Read(R"({"chosen": "abc", "rejected": "ab"})", RowKind::kPair);
  EXPECT_EQ(longer.prompt, "a");
  EXPECT_EQ(longer.fields.at("rejected"), "b");
}

TEST(RowShapesTest, APairMayHaveItsPromptBesideIt) {
  const std::string answers =
      R"("chosen": [{"role": "assistant", "content": "g"}], "rejected": [{"role": "assistant", "content": "b"}]})";
  const Question turns =
      Read(R"({"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}, )"
           R"({"role": "assistant", "content": "a"}, {"role": "user", "content": "v"}], )" +
               answers,
           RowKind::kPair);
  EXPECT_EQ(turns.messages.size(), 4U);
  EXPECT_EQ(turns.prompt, "v");
  EXPECT_EQ(turns.answer, "g");
  EXPECT_EQ(Read(R"({"prompt": "u", )" + answers, RowKind::kPair).prompt, "u");
  // UltraFeedback: the prompt as text, and once more as the first turn of both.
  const std::string user = R"([{"role": "user", "content": "u"}, {"role": "assistant", "content": ")";
  const Question both = Read(
      R"({"prompt": "u", "chosen": )" + user + R"(g"}], "rejected": )" + user + R"(b"}]})", RowKind::kPair);
  EXPECT_EQ(both.messages, (std::vector<Message>{{"user", "u"}}));
  EXPECT_EQ(both.answer, "g");
}

TEST(RowShapesTest, PairsThatSayNothingAreNamedWithTheShapesThatAreExpected) {
  EXPECT_THAT(Refusal(R"({"chosen": "x", "rejected": "y"})", RowKind::kPair),
              HasSubstr("begin differently; a row of pairs has prompt, chosen and rejected"));
  EXPECT_THAT(
      Refusal(R"({"prompt": "p", "chosen": "x", "rejected": [{"role": "assistant", "content": "y"}]})",
              RowKind::kPair),
      HasSubstr("one is text and one a list"));
  const std::string a = R"({"role": "assistant", "content": "a"})",
                    b = R"({"role": "assistant", "content": "b"})";
  EXPECT_THAT(Refusal(R"({"chosen": [)" + a + R"(], "rejected": [)" + b + "]}", RowKind::kPair),
              HasSubstr("begin with different turns"));
  const std::string u = R"({"role": "user", "content": "u"})";
  EXPECT_THAT(Refusal(R"({"chosen": [)" + u + "," + a + "," + u + "," + a + R"(], "rejected": [)" + u + "," +
                          b + "]}",
                      RowKind::kPair),
              HasSubstr("none"));
  EXPECT_THAT(
      Refusal(R"({"chosen": [)" + u + "," + a + "," + u + R"(], "rejected": [)" + u + "," + b + "]}",
              RowKind::kPair),
      HasSubstr("what follows the prompt in chosen ends with a turn of the user; expected an answer"));
  EXPECT_THAT(
      Refusal(R"({"chosen": [)" + u + "," + a + R"(], "rejected": [)" + u + "," + u + "]}", RowKind::kPair),
      HasSubstr("what follows the prompt in rejected begins with a turn of the user"));
  EXPECT_THAT(
      Refusal(R"({"chosen": [)" + u + "," + a + R"(], "rejected": [)" + u + "," + a + "]}", RowKind::kPair),
      HasSubstr("are the same"));
}

TEST(RowShapesTest, RowsOfKnownDataSetsAreToldWhatToBecome) {
  const std::string gsm8k = R"({"question": "1+1?", "answer": "So 2. #### 2"})";
  EXPECT_THAT(Refusal(gsm8k, RowKind::kRl),
              HasSubstr("no prompt; found question and answer, as in GSM8K; write the question as prompt, "
                        "and as answer what a reward"));
  EXPECT_THAT(Refusal(gsm8k, RowKind::kSft), HasSubstr("as in GSM8K; write the question as prompt"));
  const std::string alpaca = R"({"instruction": "Sort", "input": "b a", "output": "a b"})";
  for (const RowKind kind : {RowKind::kRl, RowKind::kSft})
    EXPECT_THAT(Refusal(alpaca, kind),
                HasSubstr("found instruction and output, as in Alpaca; write the instruction"));
  const std::string turns = R"([{"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}])";
  for (const RowKind kind : {RowKind::kRl, RowKind::kSft})
    EXPECT_THAT(Refusal(R"({"conversations": )" + turns + "}", kind),
                HasSubstr("found conversations, as in ShareGPT; write "));
  EXPECT_THAT(Refusal(R"({"messages": )" + turns + "}", RowKind::kSft),
              HasSubstr("messages[0] has from and value, as in ShareGPT; write role"));
  const std::string said = R"({"messages": [{"role": "user", "content": "u"}]})";
  EXPECT_THAT(Refusal(said, RowKind::kRl), HasSubstr("found messages, which sft learns; of rl, prompt: "));
  EXPECT_THAT(Refusal(said, RowKind::kPair),
              HasSubstr("no chosen; found messages, which sft learns; of a pair"));
  EXPECT_THAT(Refusal(R"({"chosen": "x", "rejected": "y"})", RowKind::kRl),
              HasSubstr("found chosen and rejected, which dpo"));
  EXPECT_THAT(Refusal(R"({"Prompt": "x", "id": 1})", RowKind::kRl),
              HasSubstr("no prompt; found Prompt, id; a row of rl has"));
}

TEST(RowShapesTest, WhatIsLearnedOfASupervisedRow) {
  const std::string u = R"({"role": "user", "content": "u"})", a = R"({"role": "assistant", "content": "a"})";
  EXPECT_EQ(Read(R"({"messages": [)" + u + "," + a + "]}", RowKind::kSft).learned_from, 0);
  const Question completion =
      Read(R"({"prompt": [)" + u + "," + a + "," + u + R"(], "completion": [)" + a + "]}", RowKind::kSft);
  EXPECT_EQ(completion.messages.size(), 4U);
  EXPECT_EQ(completion.learned_from, 3);
  const Question asked = Read(R"({"prompt": "u", "completion": [)" + a + "]}", RowKind::kSft);
  EXPECT_EQ(asked.messages, (std::vector<Message>{{"user", "u"}, {"assistant", "a"}}));
  EXPECT_EQ(asked.learned_from, 1);
  // Text is an answer, also of a prompt in turns.
  const Question text = Read(R"({"prompt": [)" + u + R"(], "completion": "a"})", RowKind::kSft);
  EXPECT_EQ(text.answer, "a");
  EXPECT_EQ(text.learned_from, -1);
  EXPECT_EQ(
      Read(R"({"prompt": "u", "answer": "1", "completion": "a"})", RowKind::kSft).fields.at("completion"),
      "a");
  const Question language = Read(R"({"text": "all of it", "source": "x"})", RowKind::kSft);
  EXPECT_TRUE(language.raw);
  EXPECT_EQ(language.prompt, "all of it");
  EXPECT_EQ(language.fields.at("source"), "x");
  EXPECT_THAT(Refusal(R"({"question": "u"})", RowKind::kSft),
              HasSubstr("no prompt; found question; a row of sft has messages"));
  EXPECT_THAT(Refusal(R"({"prompt": "u", "completion": [)" + u + "]}", RowKind::kSft),
              HasSubstr("no assistant turn"));
}

TEST(DataSourceTest, ARowKnowsItsLine) {
  const TempFile file("{\"prompt\": \"a\"}\n\nbroken\n" + [] {
    std::string more;
    for (int i = 0; i < 120; ++i) more += "{\"prompt\": \"q" + std::to_string(i) + "\"}\n";
    return more;
  }());
  DataConfig config;
  config.path = file.path();
  config.held_out = 3;
  config.shuffle = false;
  const auto source = DataSource::Create(config, 1, JobKind::kRl);
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ(source->bad_lines(), 1);
  EXPECT_THAT(source->Problems().at(0), HasSubstr(file.path() + ":3: no valid JSON"));
  for (int64_t i = 0; i < source->size(); ++i) {
    const std::string prompt = source->Row(i).prompt;
    const int line = prompt == "a" ? 1 : std::atoi(prompt.c_str() + 1) + 4;
    EXPECT_EQ(source->Place(i), file.path() + ":" + std::to_string(line));
  }
  EXPECT_THAT(source->HeldOutPlace(0), HasSubstr(file.path() + ":"));
}

TEST(DataSourceTest, AGeneratedTaskMakesPairs) {
  DataConfig config;
  config.task = "reverse";
  config.options = {{"length", "[1, 4]"}, {"letters", "\"abc\""}};
  config.size = 60;
  config.held_out = 20;
  const auto answers = DataSource::Create(config, 7, JobKind::kSft),
             pairs = DataSource::Create(config, 7, JobKind::kDpo);
  ASSERT_TRUE(answers.ok() && pairs.ok()) << pairs.status().message();
  for (int64_t i = 0; i < 2 * pairs->size(); ++i) {
    const Question q = pairs->Row(i);
    EXPECT_EQ(q.answer, answers->Row(i).answer);
    EXPECT_NE(q.fields.at("rejected"), q.answer);
    EXPECT_EQ(q, pairs->Row(i));
  }
  for (int64_t i = 0; i < pairs->held_out_size(); ++i)
    EXPECT_NE(pairs->HeldOut(i).fields.at("rejected"), pairs->HeldOut(i).answer);
}

TEST(JsonlDataTest, BadLinesAreNamedAndCounted) {
  const std::string message = Error(
      "{\"prompt\": \"a\"}\nnot json\n[1]\n{\"prompt\": 5}\n{\"prompt\": [{\"role\": \"robot\", \"content\": "
      "\"\"}]}\n{\"answer\": 1}\n");
  EXPECT_THAT(message, HasSubstr("rows.jsonl: 5 of 6 lines cannot be used"));
  EXPECT_THAT(message, HasSubstr("rows.jsonl:2: no valid JSON"));
  EXPECT_THAT(message, HasSubstr("rows.jsonl:3: expected an object; found array"));
  EXPECT_THAT(message, HasSubstr("rows.jsonl:5: prompt[0].role is 'robot'"));
  EXPECT_THAT(message, HasSubstr("rows.jsonl:6: no prompt"));
  EXPECT_THAT(message, Not(HasSubstr("more")));
  std::string seven;
  for (int i = 0; i < 7; ++i) seven += "1\n";
  EXPECT_THAT(Error(seven + "{\"prompt\": \"a\"}\n"),
              AllOf(HasSubstr("7 of 8 lines"), HasSubstr("rows.jsonl:5: "), EndsWith("\nand 2 more")));
  std::string many = "broken\n";
  for (int i = 0; i < 200; ++i) many += "{\"prompt\": \"a\"}\n";
  const auto data = Parse(many, RowKind::kRl, 0.01);
  ASSERT_TRUE(data.ok()) << data.status().message();
  EXPECT_EQ(data->bad_lines(), 1);
  EXPECT_EQ(data->size(), 200);
}

TEST(JsonlDataTest, OfALineThatIsNoJsonTheColumnAndWhatWasExpectedAreNamed) {
  const std::string end = "; each line is one object, in UTF-8";
  EXPECT_THAT(Error("{\"prompt\": \"a\", answer: 3}\n"),
              AllOf(HasSubstr("rows.jsonl:1: no valid JSON at column 17: "),
                    HasSubstr("in `{\"prompt\": \"a\", answer: 3}`" + end)));
  EXPECT_THAT(Error("{\"prompt\": \"\u00e9\" \"b\": 3}\n"),
              AllOf(HasSubstr("at column 16: unexpected string literal; expected '}', in `")));
  EXPECT_THAT(Error("{\"prompt\": \"a\"\n"), HasSubstr("unexpected end of input; expected '}', in `"));
  EXPECT_THAT(Error("{\"prompt\": \"a\xff\"}\n"),
              AllOf(HasSubstr("column 14: "), HasSubstr("ill-formed UTF-8"), HasSubstr("\"a\ufffd\"")));
  const std::string far = Error("{\"prompt\": \"" + std::string(500, 'x') + "\", }\n");
  EXPECT_THAT(far, AllOf(HasSubstr("in `...xxx"), HasSubstr("x\", }`")));
  EXPECT_LT(far.size(), 400U);
}

TEST(JsonlDataTest, EmptyAndMissingFilesAreErrors) {
  EXPECT_THAT(Error("\n \n"), HasSubstr("no rows"));
  EXPECT_EQ(JsonlData::Open("no/such.jsonl", {}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(JsonlData::Open("no/such.jsonl", {}).status().message(),
            "no/such.jsonl: no such file; expected rows as JSON lines");
  EXPECT_THAT(JsonlData::Open("openai/gsm8k", {}).status().message(),
              HasSubstr("names on a hub are not downloaded"));
  EXPECT_THAT(JsonlData::Open("core", {}).status().message(), HasSubstr("core is no file"));
}

TEST(JsonlDataTest, FilesOfOtherFormatsAreToldFromLinesOfJson) {
  EXPECT_THAT(Error("\n [\n {\"prompt\": \"a\"},\n {\"prompt\": \"b\"}\n]\n"),
              HasSubstr("is one JSON array; expected one object a line"));
  EXPECT_THAT(Error("PAR1\x15\x04"), HasSubstr("is a Parquet file"));
  EXPECT_THAT(Error("\x1f\x8b\x08"), HasSubstr("is compressed"));
}

TEST(DataSourceTest, EachEpochHasEveryRowOnceInAnotherOrder) {
  DataConfig config;
  config.task = "products";
  config.held_out = 9;
  const auto source = DataSource::Create(config, 1, JobKind::kRl);
  ASSERT_TRUE(source.ok()) << source.status().message();
  std::vector<std::vector<std::string>> epochs(2);
  for (int64_t i = 0; i < 2 * source->size(); ++i)
    epochs[static_cast<size_t>(i / source->size())].push_back(source->Row(i).prompt);
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_EQ(std::set<std::string>(epochs[0].begin(), epochs[0].end()).size(), epochs[0].size());
  EXPECT_THAT(epochs[0], testing::UnorderedElementsAreArray(epochs[1]));
}

TEST(DataSourceTest, HeldOutRowsOfAFileAreNotTrainedOn) {
  std::string text;
  for (int i = 0; i < 100; ++i)
    text += "{\"prompt\": \"q" + std::to_string(i % 90) + "\", \"answer\": \"a\"}\n";  // 10 prompts twice
  const TempFile file(text);
  DataConfig config;
  config.path = file.path();
  config.held_out = 30;
  const auto source = DataSource::Create(config, 5, JobKind::kRl);
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ(source->held_out_size(), 30);
  std::set<std::string> held_out;
  for (int64_t i = 0; i < 30; ++i) held_out.insert(source->HeldOut(i).prompt);
  for (int64_t i = 0; i < source->size(); ++i) EXPECT_FALSE(held_out.contains(source->Row(i).prompt));
  config.held_out = 60;
  EXPECT_THAT(DataSource::Create(config, 5, JobKind::kRl).status().message(),
              HasSubstr("data.held_out: 60 of the 100 rows"));
}

TEST(DataSourceTest, EvalFileIsTheHeldOutPart) {
  const TempFile train("{\"prompt\": \"a\", \"answer\": \"1\"}\n{\"prompt\": \"b\", \"answer\": \"1\"}\n");
  const TempFile eval("{\"prompt\": \"b\", \"answer\": \"1\"}\n");
  DataConfig config;
  config.path = train.path();
  config.eval_path = eval.path();
  config.held_out = 0;
  const auto source = DataSource::Create(config, 1, JobKind::kRl);
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ(source->size(), 1);
  EXPECT_EQ(source->Row(3).prompt, "a");
  EXPECT_EQ(source->HeldOut(0).prompt, "b");
  ASSERT_EQ(source->warnings().size(), 1U);
  EXPECT_THAT(source->warnings()[0], HasSubstr("1 rows have the prompt of a held-out row"));
}

TEST(DataSourceTest, ARowSaysWhichLineOfWhichFileItIs) {
  const TempFile train("{\"prompt\": \"a\"}\n\n{\"prompt\": \"b\"}\n{\"prompt\": \"c\"}\n");
  const TempFile eval("\n{\"prompt\": \"b\"}\n");
  DataConfig config;
  config.path = train.path();
  config.eval_path = eval.path();
  config.held_out = 0;
  const auto source = DataSource::Create(config, 1, JobKind::kRl);
  ASSERT_TRUE(source.ok()) << source.status().message();
  for (int64_t ordinal = 0; ordinal < 6; ++ordinal) {
    const RowOrigin origin = source->Origin(ordinal);
    const bool first = source->Row(ordinal).prompt == "a";
    EXPECT_EQ(origin.file, train.path());
    EXPECT_EQ(origin.line, first ? 1 : 4);
    EXPECT_EQ(origin.row, first ? 0 : 2);
  }
  EXPECT_EQ(source->HeldOutOrigin(0).file, eval.path());
  EXPECT_EQ(source->HeldOutOrigin(0).line, 2);
  EXPECT_EQ(source->HeldOutOrigin(0).row, 0);
}

TEST(DataSourceTest, AnEvalFileAloneIsToBeAskedAndNotToBeTrainedOn) {
  const TempFile eval("{\"prompt\": \"b\", \"answer\": \"1\"}\n");
  DataConfig config;
  config.eval_path = eval.path();
  const auto source = DataSource::Create(config, 1, JobKind::kRl);
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ(source->size(), 0);
  EXPECT_EQ(source->held_out_size(), 1);
  EXPECT_EQ(source->HeldOut(0).prompt, "b");
}

TEST(DataSourceTest, IdentityFollowsTheData) {
  DataConfig config;
  config.task = "reverse";
  const auto identity = [&](uint64_t seed) {
    return DataSource::Create(config, seed, JobKind::kRl).value().identity();
  };
  const std::string first = identity(1);
  EXPECT_EQ(first, identity(1));
  EXPECT_NE(first, identity(2));
  config.size = 5;
  EXPECT_NE(first, identity(1));
  const TempFile a("{\"prompt\": \"a\"}\n");
  const TempFile b("{\"prompt\": \"a\"}\n");
  const TempFile c("{\"prompt\": \"c\"}\n");
  DataConfig files;
  files.held_out = 0;
  const auto of = [&](const TempFile& file) {
    files.path = file.path();
    return DataSource::Create(files, 1, JobKind::kRl).value().identity();
  };
  EXPECT_EQ(of(a), of(b));  // the bytes count, not the name
  EXPECT_NE(of(a), of(c));
}

}  // namespace
}  // namespace tidepool::tasks
