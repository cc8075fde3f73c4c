// The controller's side of episodes: what is appended to a record, and what is refused.

#include "workers/controller/turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/environments/episode.h"
#include "core/sample/codec.h"
#include "workers/data/model_folder.h"

namespace tidepool::workers {
namespace {

using testing::HasSubstr;

constexpr char kPrintable[] =
    " !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~\n";

class TurnsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "turns-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
    config_.model.init = ModelInit{};
    config_.model.init->alphabet = "SFHGP#?ldru:asnt ";
    EnvironmentConfig lake{.name = "frozen_lake"};
    lake.options = {{"style", "\"terse\""}, {"view", "\"near\""}, {"frozen", "100"}, {"side", "3"}};
    config_.job = RlJob{.algorithm = {}, .environment = lake};
    ASSERT_TRUE(WriteInitFolder(*config_.model.init, DType::kFloat32, dir_).ok());
  }
  void TearDown() override {
    std::error_code error;
    std::filesystem::remove_all(dir_, error);
  }
  void Open() {
    auto rows = RowSource::Create(config_, dir_);
    ASSERT_TRUE(rows.ok()) << rows.status().ToString();
    rows_ = std::move(*rows);
    turns_ = std::make_unique<Turns>(*rows_, samples_, [](const char*) {});
  }
  std::string Text(const std::vector<int32_t>& ids) {
    return rows_->tokenizer().Decode(ids, /*skip_special=*/false);
  }
  // What the policy says: letters, perhaps closed by the end token.
  void Say(const std::string& letters, bool end) {
    auto ids = *rows_->tokenizer().Encode(letters, {.add_special = false});
    if (end) ids.push_back(rows_->end_token());
    sample::Segment said{.ids = ids, .logprobs = std::vector<float>(ids.size(), -1.0F)};
    sample::AddVersion(said.versions, {0, 3}, said.size());
    samples_.Get(tid_, 0).tokens.Append(std::move(said));
  }
  // A worker that knows nothing plays the command.
  up::EnvStepped Play(const down::EnvStep& c) {
    environments::EpisodeHost host(*environments::EpisodeSource::Create(config_));
    const auto played = host.Play(c.tid, c.att, c.actions);
    EXPECT_TRUE(played.ok());
    return {.tid = c.tid,
            .att = c.att,
            .turn = c.turn,
            .observation = played->observation,
            .reward = played->reward,
            .done = played->done,
            .history = played->history,
            .next_history = environments::ExtendHistory(played->history, played->observation, played->reward),
            .state = played->state};
  }
  scheduler::event::EnvStepped Turn(int64_t turn) {
    return turns_->Take(worker_, Play(turns_->Step({worker_, tid_, 0, turn, {}}, samples_.Change(tid_))));
  }

  std::string dir_;
  JobConfig config_;
  std::unique_ptr<RowSource> rows_;
  SampleStore samples_;
  std::unique_ptr<Turns> turns_;
  SampleId tid_{4, 0, 2}, row_{4, 0, SampleId::kRowSample};
  WorkerRef worker_{{1}, {1}};
};

TEST_F(TurnsTest, ARecordGrowsByWhatIsSaidAndHeard) {
  Open();
  const auto reset = turns_->Take(worker_, Play(turns_->Step({worker_, row_, 0, 0, {}}, nullptr)));
  EXPECT_EQ(reset.outcome, GradeOutcome::kOk);
  turns_->Append({row_, 0, 0});
  ASSERT_NE(samples_.FindRow(tid_), nullptr);
  EXPECT_EQ(samples_.FindRow(tid_)->question.prompt, "#FF#?");
  EXPECT_EQ(reset.observation_tokens, static_cast<int64_t>(samples_.FindRow(tid_)->prompt.size()));

  Say("d", true);
  auto step = Turn(1);
  EXPECT_EQ(step.outcome, GradeOutcome::kOk);
  EXPECT_EQ(step.observation_tokens, 5);
  EXPECT_EQ(samples_.Find(tid_)->tokens.size(), 2) << "nothing is appended before it is accepted";
  turns_->Append({tid_, 0, 1});
  Say("dd", false);  // cut: the turn is closed for it
  step = Turn(2);
  EXPECT_EQ(step.observation_tokens, 6);
  turns_->Append({tid_, 0, 2});
  const StoredSample& s = *samples_.Find(tid_);
  EXPECT_EQ(Text(s.tokens.Ids()), "d<eos>#FFS?dd<eos>##FF?") << "two steps down; left, down, right, up";
  const sample::Segment& cut = s.tokens.segments[3];
  EXPECT_EQ(Text(cut.ids), "<eos>##FF?");
  EXPECT_EQ(rows_->ObservationText(cut.ids), "##FF?") << "the end token is not the environment's";
  EXPECT_EQ(s.tokens.LossMask(), (std::vector<uint8_t>{1, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0}));
  EXPECT_TRUE(sample::Encode(samples_.Finished(tid_)).ok()) << "still one record";
  EXPECT_TRUE(turns_->CheckPrefix(s).ok());
}

// What is appended turn by turn is what the template makes of the whole conversation.
TEST_F(TurnsTest, MessagesAreWrittenByTheTemplateAndOnlyTheNewOnesAreAppended) {
  config_.model.init->alphabet = kPrintable;
  ASSERT_TRUE(WriteInitFolder(*config_.model.init, DType::kFloat32, dir_).ok());
  const std::string form =
      "{% if tools %}<bos>{{ tools | tojson }}<tool_call></tool_call><eos>{% endif %}"
      "{% for m in messages %}<bos>{{ m.role }}:{{ m.content }}<eos>{% endfor %}"
      "{% if add_generation_prompt %}<bos>assistant:{% endif %}";
  std::ofstream(dir_ + "/chat_template.jinja") << form;
  Open();
  EXPECT_EQ(rows_->tool_format(), text::ToolFormat::kTagged);
  const std::string first =
      R"({"messages":[{"role":"system","content":"short"},{"role":"user","content":"6*7="}],"tools":[{"type":"function","function":{"name":"mul"}}]})";
  const std::string then =
      R"({"messages":[{"role":"tool","content":"42","name":"mul"},{"role":"tool","content":"TIDEPOOL-REPLY"}],"tools":[{"type":"function","function":{"name":"mul"}}]})";
  const auto row = rows_->EncodeFirst({first, true});
  ASSERT_TRUE(row.ok()) << row.status().message();
  const auto heard = rows_->EncodeObservation({then, true}, /*ended=*/true);
  ASSERT_TRUE(heard.ok()) << heard.status().message();
  const std::string said = "<tool_call>{}</tool_call>";

  nlohmann::ordered_json all = nlohmann::ordered_json::parse(first)["messages"];
  all.push_back({{"role", "assistant"}, {"content", said}});
  const nlohmann::ordered_json more = nlohmann::ordered_json::parse(then)["messages"];
  all.insert(all.end(), more.begin(), more.end());
  text::ChatOptions options;
  options.add_generation_prompt = true;
  options.tools = nlohmann::ordered_json::parse(first)["tools"];
  const auto whole = (*text::ChatTemplate::Load(dir_))->Render(all, options);
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(Text(row->prompt) + said + "<eos>" + Text(*heard), *whole);
  EXPECT_EQ(row->question.prompt, first) << "what a replay is compared with";
  ASSERT_EQ(row->question.messages.size(), 2U);
  EXPECT_EQ(row->question.messages[1].content, "6*7=");
  EXPECT_EQ(rows_->EncodeObservation({then, true}, /*ended=*/false)->front(), rows_->end_token());
}

TEST_F(TurnsTest, AModelWhoseTemplateShowsNoToolsReadsThemAsText) {
  config_.model.init->alphabet = kPrintable;
  ASSERT_TRUE(WriteInitFolder(*config_.model.init, DType::kFloat32, dir_).ok());
  Open();
  EXPECT_EQ(rows_->tool_format(), text::ToolFormat::kTagged);
  const std::string tools = R"("tools":[{"type":"function","function":{"name":"mul"}}]})";
  const std::string asks = R"({"messages":[{"role":"user","content":"6*7="}],)" + tools;
  const auto row = rows_->EncodeFirst({asks, true});
  ASSERT_TRUE(row.ok()) << row.status().message();
  EXPECT_EQ(Text(row->prompt),
            "<bos>You may call these tools, one JSON object a line:\n{\"name\":\"mul\"}\nTo call one, write\n"
            "<tool_call>{\"name\": NAME, \"arguments\": {...}}</tool_call>\n\n6*7=");
  const std::string says = R"({"messages":[{"role":"tool","content":"42"}],)" + tools;
  EXPECT_EQ(Text(*rows_->EncodeObservation({says, true}, /*ended=*/true)), "42");
  const std::string nothing = R"({"messages":[],"tools":null})";
  EXPECT_THAT(rows_->EncodeFirst({nothing, true}).status().message(), HasSubstr("there are no messages"));
}

// A template may refuse what does not alternate, and a system message (Gemma, Llama 2, Mistral).
TEST_F(TurnsTest, WhereTurnsHaveToAlternateNeighboursAreOneMessage) {
  config_.model.init->alphabet = kPrintable;
  ASSERT_TRUE(WriteInitFolder(*config_.model.init, DType::kFloat32, dir_).ok());
  std::ofstream(dir_ + "/chat_template.jinja")
      << "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
         "{% for m in messages %}"
         "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif "
         "%}"
         "<bos>{{ m['role'] }}:{{ m['content'] | trim }}<eos>{% endfor %}"
         "{% if add_generation_prompt %}<bos>assistant:{% endif %}";
  Open();
  const auto row = rows_->EncodeFirst(
      {R"({"messages":[{"role":"system","content":"short"},{"role":"user","content":"6*7="}],)"
       R"("tools":[{"type":"function","function":{"name":"mul"}}]})",
       true});
  ASSERT_TRUE(row.ok()) << row.status().message();
  EXPECT_THAT(Text(row->prompt),
              testing::AllOf(testing::StartsWith("<bos>user:You may call these tools"),
                             testing::EndsWith("</tool_call>\n\nshort\n\n6*7=<eos><bos>assistant:")));
  const auto heard = rows_->EncodeObservation(
      {R"({"messages":[{"role":"tool","content":"42","name":"mul"},{"role":"tool","content":"43"}],"tools":null})",
       true},
      /*ended=*/true);
  ASSERT_TRUE(heard.ok()) << heard.status().message();
  EXPECT_EQ(Text(*heard), "<bos>user:42\n\n43<eos><bos>assistant:");
}

// One that shows tools and takes no results of two calls is treated as one that shows none.
TEST_F(TurnsTest, ATemplateThatShowsToolsAndRefusesTheirResultsReadsThemAsText) {
  config_.model.init->alphabet = kPrintable;
  ASSERT_TRUE(WriteInitFolder(*config_.model.init, DType::kFloat32, dir_).ok());
  std::ofstream(dir_ + "/chat_template.jinja")
      << "{% if tools %}{{ tools | tojson }}<tool_call></tool_call>{% endif %}{% for m in messages %}"
         "{% if m['role'] == 'tool' %}{{ raise_exception('no results') }}{% endif %}"
         "<bos>{{ m['role'] }}:{{ m['content'] }}<eos>{% endfor %}"
         "{% if add_generation_prompt %}<bos>assistant:{% endif %}";
  Open();
  const auto heard = rows_->EncodeObservation(
      {R"({"messages":[{"role":"tool","content":"42"}],"tools":[{"type":"function","function":{"name":"mul"}}]})",
       true},
      /*ended=*/true);
  ASSERT_TRUE(heard.ok()) << heard.status().message();
  EXPECT_THAT(Text(*heard), testing::EndsWith("<bos>user:42<eos><bos>assistant:"));
}

TEST_F(TurnsTest, AFormOfCallsThatIsNotReadIsAskedForInJson) {
  config_.model.init->alphabet = kPrintable;
  ASSERT_TRUE(WriteInitFolder(*config_.model.init, DType::kFloat32, dir_).ok());
  std::ofstream(dir_ + "/chat_template.jinja")
      << "{% if tools %}{{ tools | tojson }}<tool_call><function=f></function></tool_call>{% endif %}"
         "{% for m in messages %}<bos>{{ m['role'] }}:{{ m['content'] }}<eos>{% endfor %}"
         "{% if add_generation_prompt %}<bos>assistant:{% endif %}";
  Open();
  EXPECT_EQ(rows_->tool_format(), text::ToolFormat::kTagged);
  const auto row = rows_->EncodeFirst(
      {R"({"messages":[{"role":"user","content":"6*7="}],"tools":[{"type":"function","function":{"name":"mul"}}]})",
       true});
  ASSERT_TRUE(row.ok()) << row.status().message();
  EXPECT_THAT(Text(row->prompt), testing::StartsWith("<bos>user:You may call these tools"));
}

// Where tokens are in the workers' logs, the record has outlines and places.
TEST_F(TurnsTest, ALoggedRecordGrowsByPlaces) {
  Open();
  (void)turns_->Take(worker_, Play(turns_->Step({worker_, row_, 0, 0, {}}, nullptr)));
  turns_->Append({row_, 0, 0});
  Say("d", true);
  StoredSample& s = *samples_.Change(tid_);
  s.tokens.segments[0] = s.tokens.segments[0].Outline();
  s.logged = {storage::FirstFileOf(Incarnation{0}), 70};
  const down::EnvStep step = turns_->Step({worker_, tid_, 0, 1, {}}, &s);
  EXPECT_EQ(step.said, s.logged);
  EXPECT_TRUE(step.actions.empty());
  up::EnvStepped reply = Play({.tid = tid_, .turn = 1, .actions = {"d"}});
  reply.observation = "";
  reply.logged_tokens = 5;
  for (const int64_t file : {storage::FirstFileOf(Incarnation{0}), int64_t{-1}}) {
    reply.logged = {file, 80};
    EXPECT_THAT(turns_->Take(worker_, reply).why, HasSubstr("where its worker writes none"));
  }
  reply.logged = {storage::FirstFileOf(worker_.inc), 80};
  const auto taken = turns_->Take(worker_, reply);
  EXPECT_EQ(taken.outcome, GradeOutcome::kOk) << taken.why;
  EXPECT_EQ(taken.observation_tokens, 5);
  turns_->Append({tid_, 0, 1});
  EXPECT_EQ(s.tokens.size(), 7);
  EXPECT_EQ(s.logged, reply.logged);
  EXPECT_TRUE(s.files.contains(reply.logged.file));
  EXPECT_TRUE(turns_->CheckPrefix(s).ok());
  ASSERT_EQ(s.tokens.segments.size(), 3u);
  EXPECT_EQ(s.tokens.segments[2].turn->state, reply.state);

  // Its tokens were brought here for another worker while this one played: what it says is not text.
  (void)turns_->Step({worker_, tid_, 0, 2, {}}, &s);
  s.logged = {};
  reply.turn = 2;
  EXPECT_EQ(turns_->Take(worker_, reply).outcome, GradeOutcome::kInfra);
}

// The scheduler refuses such a reply; until then it changes nothing of what others have said.
TEST_F(TurnsTest, OfAReplyThatWasNotAskedOfItsWorkerNothingIsKept) {
  Open();
  const WorkerRef other{{worker_.worker.value + 1}, {worker_.inc.value + 1}};
  up::EnvStepped reset = Play(turns_->Step({worker_, row_, 0, 0, {}}, nullptr));
  (void)turns_->Take(worker_, reset);
  reset.observation = "other words";
  (void)turns_->Take(other, reset);
  reset.tid.ordinal = int64_t{1} << 40;
  (void)turns_->Take(worker_, reset);
  turns_->Append({reset.tid, 0, 0});
  EXPECT_EQ(samples_.FindRow(reset.tid), nullptr);
  turns_->Append({row_, 0, 0});
  ASSERT_NE(samples_.FindRow(row_), nullptr);
  EXPECT_EQ(samples_.FindRow(row_)->prompt, rows_->Row(4)->prompt);
}

// Actions for a worker that is gone may be read after the turn was given to another one. What that one says
// is not kept, so it must not be taken for said either: the scheduler asks again.
TEST_F(TurnsTest, AReplyThatIsNotKeptIsAnInfrastructureFailure) {
  Open();
  const WorkerRef gone{{worker_.worker.value + 1}, {worker_.inc.value + 1}};
  (void)turns_->Step({gone, row_, 0, 0, {}}, nullptr);
  const up::EnvStepped reset = Play(turns_->Step({worker_, row_, 0, 0, {}}, nullptr));
  (void)turns_->Step({gone, row_, 0, 0, {}}, nullptr);
  EXPECT_EQ(turns_->Take(worker_, reset).outcome, GradeOutcome::kInfra);
  (void)turns_->Step({worker_, row_, 0, 0, {}}, nullptr);
  EXPECT_EQ(turns_->Take(worker_, reset).outcome, GradeOutcome::kOk);
}

TEST_F(TurnsTest, EveryTurnIsMarkedWithTheStateItActsIn) {
  Open();
  turns_->Append({row_, 0, 0});  // out of turn: nothing comes of it
  (void)turns_->Take(worker_, Play(turns_->Step({worker_, row_, 0, 0, {}}, nullptr)));
  turns_->Append({row_, 0, 0});
  EXPECT_EQ(samples_.FindRow(tid_)->state, rows_->Row(4)->state)
      << "the same for one that is read again after a crash";
  for (const auto& [letter, turn] :
       {std::pair{"u", 1}, {"s", 2}, {"d", 3}}) {  // against the edge, no move, a step down
    Say(letter, true);
    (void)Turn(turn);
    turns_->Append({tid_, 0, turn});
  }
  const std::vector<TurnMark> marks = samples_.Find(tid_)->tokens.Turns();
  ASSERT_EQ(marks.size(), 4U);
  EXPECT_EQ(marks[0], (TurnMark{0, samples_.FindRow(tid_)->state, 0}));
  EXPECT_EQ(marks[1], (TurnMark{7, marks[0].state, 0}));
  EXPECT_EQ(marks[2], (TurnMark{14, marks[0].state, -0.02})) << "what was no move cost something";
  EXPECT_EQ(marks[3].begin, 21);
  EXPECT_NE(marks[3].state, marks[0].state);
  EXPECT_EQ(sample::Decode(*sample::Encode(samples_.Finished(tid_)))->Turns(), marks);
}

TEST_F(TurnsTest, ActionsComeFromTheRecordAlone) {
  Open();
  samples_.PutRow(4, false, *rows_->Row(4));
  Say("d", true);
  (void)Turn(1);
  turns_->Append({tid_, 0, 1});
  Say("rr", false);
  // As it comes back from disk after a crash: segments tell turns apart.
  StoredSample other{.tokens = *sample::Decode(*sample::Encode(samples_.Finished(tid_)))};
  const down::EnvStep again = turns_->Step({worker_, tid_, 0, scheduler::command::kWholeEpisode, {}}, &other);
  EXPECT_EQ(again.actions, (std::vector<std::string>{"d", "rr"}));
}

TEST_F(TurnsTest, AReplayThatTellsAnotherStoryIsBadData) {
  Open();
  samples_.PutRow(4, false, *rows_->Row(4));
  Say("d", true);
  (void)Turn(1);
  turns_->Append({tid_, 0, 1});
  Say("r", true);
  up::EnvStepped reply = Play(turns_->Step({worker_, tid_, 0, 2, {}}, samples_.Change(tid_)));
  ++reply.history;
  const auto taken = turns_->Take(worker_, reply);
  EXPECT_EQ(taken.outcome, GradeOutcome::kData);
  EXPECT_THAT(taken.why, HasSubstr("did not say what it had said before"));
}

TEST_F(TurnsTest, ARecordThatWasChangedIsNotGoneOnWith) {
  Open();
  samples_.PutRow(4, false, *rows_->Row(4));
  Say("d", true);
  (void)Turn(1);
  turns_->Append({tid_, 0, 1});
  StoredSample* s = samples_.Change(tid_);
  EXPECT_TRUE(turns_->CheckPrefix(*s).ok());
  s->tokens.segments[0].ids[0] ^= 1;
  EXPECT_EQ(turns_->CheckPrefix(*s).code(), StatusCode::kDataLoss);
}

TEST_F(TurnsTest, LateWordsOfAnotherAttemptAppendNothing) {
  Open();
  samples_.PutRow(4, false, *rows_->Row(4));
  Say("d", true);
  const up::EnvStepped late = Play(turns_->Step({worker_, tid_, 0, 1, {}}, samples_.Change(tid_)));
  (void)samples_.Get(tid_, 1);  // generated anew
  (void)turns_->Take(worker_, late);
  turns_->Append({tid_, 1, 1});
  EXPECT_EQ(samples_.Find(tid_)->tokens.size(), 0);
}

TEST_F(TurnsTest, AChatModelHearsTheEnvironmentAsItsUser) {
  std::ofstream(dir_ + "/chat_template.jinja")
      << "{% for m in messages %}{{ 'u: ' if m.role == 'user' else 'a: ' }}{{ m.content }}{% if m.role == "
         "'assistant' %}<eos>{% endif %} {% endfor %}"
         "{% if add_generation_prompt %}a: {% endif %}";
  Open();
  samples_.PutRow(4, false, *rows_->Row(4));
  EXPECT_EQ(Text(samples_.FindRow(tid_)->prompt), "u: #FF#? a: ");
  Say("d", true);
  ASSERT_EQ(Turn(1).outcome, GradeOutcome::kOk);
  turns_->Append({tid_, 0, 1});
  Say("d", false);
  ASSERT_EQ(Turn(2).outcome, GradeOutcome::kOk);
  turns_->Append({tid_, 0, 2});
  EXPECT_EQ(Text(samples_.Find(tid_)->tokens.Ids()), "d<eos> u: #FFS? a: d<eos> u: ##FF? a: ");
  std::vector<std::string> heard;  // without what the template writes around it
  for (const sample::Segment& s : samples_.Find(tid_)->tokens.segments)
    if (s.kind == sample::SegmentKind::kObservation) heard.push_back(rows_->ObservationText(s.ids));
  EXPECT_THAT(heard, testing::ElementsAre("#FFS?", "##FF?"));
}

TEST_F(TurnsTest, ATemplateThatCannotBeCutBetweenTurnsIsRefused) {
  std::ofstream(dir_ + "/chat_template.jinja") << "{% for m in messages %}{{ m.content }} {% endfor %}";
  const auto rows = RowSource::Create(config_, dir_);
  EXPECT_FALSE(rows.ok());
  EXPECT_THAT(rows.status().message(), HasSubstr("end token"));
}

}  // namespace
}  // namespace tidepool::workers
