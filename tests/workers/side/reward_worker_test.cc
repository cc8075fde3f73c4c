#include "workers/side/reward_worker.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/text/unicode.h"
#include "proto/reward.grpc.pb.h"
#include "tests/workers/side/http_double.h"
#include "workers/side/host_lookup.h"
#include "workers/side/reward_server.h"

namespace tidepool::workers {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// Answers what it is told to.
class Server final : public v1::Reward::Service {
 public:
  explicit Server(const std::string& listen = "127.0.0.1:0", bool batches = false) : batches_(batches) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address = port > 0 ? "127.0.0.1:" + std::to_string(port) : listen;
  }
  grpc::Status Score(grpc::ServerContext*, const v1::ScoreRequest* request, v1::ScoreReply* reply) override {
    asked.push_back(1);
    seen = *request;
    *reply = answer;
    return status;
  }
  grpc::Status ScoreBatch(grpc::ServerContext* context, const v1::ScoreBatchRequest* request,
                          v1::ScoreBatchReply* reply) override {
    if (!batches_) return v1::Reward::Service::ScoreBatch(context, request, reply);
    asked.push_back(request->samples_size());
    for (const auto& sample : request->samples()) {
      v1::ScoreReply* one = reply->add_replies();
      if (sample.text().empty()) {
        one->set_outcome(v1::ScoreReply::DATA);
      } else {
        one->set_score(static_cast<double>(sample.text().size()));
      }
    }
    return status;
  }
  std::string address;
  v1::ScoreReply answer;
  v1::ScoreRequest seen;
  grpc::Status status;
  std::vector<int> asked;  // samples of each call

 private:
  const bool batches_;
  std::unique_ptr<grpc::Server> server_;
};

std::unique_ptr<Graders> MakeGraders(const std::string& endpoint, double timeout_s = 15, int64_t batch = 1) {
  RewardConfig config;
  config.batch = batch;
  config.functions.push_back({.name = "remote", .endpoint = endpoint, .timeout_s = timeout_s});
  auto graders = Graders::Create({.reward = config});
  TP_CHECK(graders.ok()) << graders.status().ToString();
  return *std::move(graders);
}

down::Grade Sample(const std::string& text = "42") {
  return {
      {7, 0, 1},
      0,
      {.prompt = "And 6 * 7?",
       .answer = "42",
       .fields = {{"level", "3"}},
       .text = text,
       .response_tokens = 2,
       .ended = true,
       .max_new_tokens = 8,
       .messages = {{"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Hi."}, {"user", "And 6 * 7?"}},
       .rendered_prompt = "<s>Be brief. ... And 6 * 7?",
       .file = "rows.jsonl",
       .line = 12,
       .row = 10,
       .held_out = true,
       .sample = "7.0.1"}};
}

up::Graded ScoreOne(const Graders& graders, const down::Grade& sample = Sample()) {
  return graders.Score({&sample, 1}).front();
}

std::string WhyOf(const std::string& endpoint) {
  const up::Graded graded = ScoreOne(*MakeGraders(endpoint));
  EXPECT_NE(graded.outcome, GradeOutcome::kOk);
  return graded.why;
}

// An address of the loopback where nobody listens, for as long as this lives.
class NobodyThere {
 public:
  NobodyThere() {
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* at = reinterpret_cast<sockaddr*>(&address);
    TP_CHECK(::bind(socket_, at, size) == 0 && ::getsockname(socket_, at, &size) == 0) << "a port";
    address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  ~NobodyThere() { ::close(socket_); }
  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  int socket_ = -1;
  std::string address_;
};

TEST(GradersTest, WordsOfARewardServerAreBounded) {
  Server server;
  server.answer.set_outcome(v1::ScoreReply::DATA);
  std::string words = "a";
  while (words.size() < 3 << 20) words += "\xe4\xbd\xa0";
  server.answer.set_detail(words);
  const std::string why = WhyOf(server.address);
  EXPECT_LT(why.size(), 1100U);
  EXPECT_THAT(why, StartsWith("remote: a"));
  EXPECT_THAT(why, HasSubstr("more bytes"));
  EXPECT_EQ(text::FindInvalidUtf8(why), std::string::npos) << "cut inside a character";

  server.status = grpc::Status(grpc::StatusCode::INTERNAL, std::string(5000, 'x'));
  EXPECT_LT(WhyOf(server.address).size(), 1200U);
  server.status = grpc::Status(grpc::StatusCode::INTERNAL, "no model");
  EXPECT_THAT(WhyOf(server.address), HasSubstr(": it answered with the gRPC error INTERNAL: no model"));
}

TEST(GradersTest, WhatAServerSaysBesidesTheScoreComesWithIt) {
  Server server;
  server.answer.set_score(0.5);
  server.answer.set_detail("half of it is right");
  const up::Graded graded = ScoreOne(*MakeGraders(server.address));
  EXPECT_EQ(graded.reward, 0.5);
  EXPECT_EQ(graded.details, (std::map<std::string, std::string>{{"remote", "half of it is right"}}));
}

TEST(GradersTest, AServerSeesTheConversationTheRowAndWhatTheModelRead) {
  Server server;
  server.answer.set_score(0.5);
  EXPECT_EQ(ScoreOne(*MakeGraders(server.address)).reward, 0.5);
  const v1::ScoreRequest& seen = server.seen;
  ASSERT_EQ(seen.messages_size(), 4);
  EXPECT_EQ(seen.messages(0).role(), "system");
  EXPECT_EQ(seen.messages(2).content(), "Hi.");
  EXPECT_EQ(seen.rendered_prompt(), "<s>Be brief. ... And 6 * 7?");
  EXPECT_EQ(seen.fields().at("level"), "3");
  EXPECT_EQ(seen.file() + ":" + std::to_string(seen.line()), "rows.jsonl:12");
  EXPECT_EQ(seen.row(), 10);
  EXPECT_TRUE(seen.held_out());
  EXPECT_EQ(seen.sample(), "7.0.1");
}

TEST(GradersTest, AServerThatIsAwayForAMomentCostsNoSample) {
  const std::string path = testing::TempDir() + "/reward-" + std::to_string(::getpid());
  std::filesystem::remove(path);
  const auto graders = MakeGraders("unix:" + path, /*timeout_s=*/60);
  std::unique_ptr<Server> server;
  const std::jthread restart([&] {
    while (graders->waits_for().empty()) std::this_thread::yield();
    server = std::make_unique<Server>("unix:" + path);
    server->answer.set_score(1);
  });
  const up::Graded graded = ScoreOne(*graders);
  EXPECT_EQ(graded.outcome, GradeOutcome::kOk) << graded.why;
  EXPECT_GE(graded.retries, 1);
  EXPECT_TRUE(graders->waits_for().empty());
}

TEST(GradersTest, AServerThatStaysAwayIsNamedWithTheCauseAndTheNextSampleDoesNotWaitAgain) {
  const NobodyThere nobody;
  for (const std::string scheme : {"", "http://"}) {
    const auto graders = MakeGraders(scheme + nobody.address(), /*timeout_s=*/0.2);
    const up::Graded first = ScoreOne(*graders);
    EXPECT_EQ(first.outcome, GradeOutcome::kInfra);
    EXPECT_THAT(first.why, StartsWith("remote at " + scheme + nobody.address() + ": unreachable for 0."));
    EXPECT_THAT(first.why, HasSubstr("Connection refused"));
    EXPECT_GE(first.retries, 1);
    ASSERT_EQ(graders->waits_for().size(), 1u);
    EXPECT_EQ(graders->waits_for()[0].reward, 0);
    EXPECT_THAT(graders->waits_for()[0].cause, HasSubstr("Connection refused"));
    const up::Graded second = ScoreOne(*graders);
    EXPECT_EQ(second.retries, 0);
    EXPECT_THAT(second.why, HasSubstr("(1 try of this grading): Connection refused"));
  }
}

TEST(GradersTest, AWaitForAServerEndsWhenItIsStopped) {
  const NobodyThere nobody;
  const auto graders = MakeGraders(nobody.address(), /*timeout_s=*/3600);
  std::stop_source stop;
  const std::jthread stopper([&] {
    while (graders->waits_for().empty()) std::this_thread::yield();
    stop.request_stop();
  });
  const down::Grade sample = Sample();
  EXPECT_EQ(graders->Score({&sample, 1}, stop.get_token()).front().outcome, GradeOutcome::kInfra);
}

TEST(GradersTest, SamplesThatAreTakenTogetherGoInOneCallAndFailEachForItself) {
  Server server("127.0.0.1:0", /*batches=*/true);
  const auto graders = MakeGraders(server.address, 15, /*batch=*/3);
  EXPECT_EQ(graders->most(), 3);
  const std::vector<down::Grade> samples = {Sample("a"), Sample(""), Sample("abc")};
  const auto graded = graders->Score(samples);
  EXPECT_THAT(server.asked, ElementsAre(3));
  EXPECT_EQ(graded[0].reward, 1);
  EXPECT_EQ(graded[1].outcome, GradeOutcome::kData);
  EXPECT_EQ(graded[2].reward, 3);
}

TEST(GradersTest, AServerWithoutBatchesIsAskedForOneSampleAtATime) {
  Server server;
  server.answer.set_score(0.25);
  const auto graders = MakeGraders(server.address, 15, /*batch=*/3);
  const std::vector<down::Grade> samples(3, Sample());
  for (const up::Graded& graded : graders->Score(samples)) EXPECT_EQ(graded.reward, 0.25);
  EXPECT_THAT(server.asked, ElementsAre(1, 1, 1));
  EXPECT_EQ(graders->most(), 1);
}

TEST(HttpRewardTest, PostsTheSampleAsJsonAndReadsTheScore) {
  json got;
  HttpDouble server([&](const std::string& body) {
    got = json::parse(body);
    return HttpText(200, R"({"score": 0.75, "detail": "close"})");
  });
  const up::Graded graded = ScoreOne(*MakeGraders(server.url));
  EXPECT_EQ(graded.outcome, GradeOutcome::kOk) << graded.why;
  EXPECT_EQ(graded.reward, 0.75);
  EXPECT_THAT(server.head, StartsWith("POST /grade?model=x HTTP/1.1\r\n"));
  EXPECT_THAT(server.head, HasSubstr("Content-Type: application/json"));
  EXPECT_EQ(got["messages"][1], json({{"role", "user"}, {"content", "Hi"}}));
  EXPECT_EQ(got["rendered_prompt"], "<s>Be brief. ... And 6 * 7?");
  EXPECT_EQ(got["fields"]["level"], "3");
  EXPECT_EQ(got["line"], 12);
  EXPECT_EQ(got["held_out"], true);
  EXPECT_EQ(got["ended"], true);
  EXPECT_EQ(got["sample"], "7.0.1");
}

TEST(HttpRewardTest, WhatIsNoNumberIsNeverARewardOfZero) {
  std::string answer;
  HttpDouble server([&](const std::string&) { return answer; });
  const auto graders = MakeGraders(server.url);
  const auto outcome = [&](const std::string& text) {
    answer = text;
    return ScoreOne(*graders);
  };
  EXPECT_EQ(outcome(HttpText(200, R"({"data_error": "no answer"})")).outcome, GradeOutcome::kData);
  EXPECT_THAT(outcome(HttpText(200, R"({"data_error": "no answer"})")).why, HasSubstr("no answer"));
  for (const char* body : {R"({"score": null})", R"({"score": NaN})", R"({"score": "1"})", "{}", "[1]", "1",
                           "", R"({"score": 1e999})"}) {
    const up::Graded graded = outcome(HttpText(200, body));
    EXPECT_EQ(graded.outcome, GradeOutcome::kInfra) << body;
    EXPECT_THAT(graded.why, HasSubstr("remote at http://127.0.0.1:")) << body;
  }
  const up::Graded broken = outcome(HttpText(500, "ZeroDivisionError: division by zero"));
  EXPECT_EQ(broken.outcome, GradeOutcome::kInfra);
  EXPECT_THAT(broken.why, HasSubstr(": HTTP 500 ZeroDivisionError")) << "no code of gRPC before it";
  EXPECT_THAT(outcome("220 mail.example ESMTP\r\n").why, HasSubstr("no HTTP answer"));
  EXPECT_EQ(outcome(HttpText(200, std::string(70 << 10, ' '))).outcome, GradeOutcome::kInfra) << "too long";
  EXPECT_EQ(outcome(HttpText(200, R"({"score": -2})")).reward, -2) << "and it goes on";
}

TEST(HttpRewardTest, AServerThatSaysLaterOrClosesIsAskedAgain) {
  int asked = 0;
  HttpDouble server([&](const std::string&) {
    ++asked;
    return asked == 1   ? HttpText(503, "the model is being loaded")
           : asked == 2 ? ""
                        : HttpText(200, R"({"score": 1})");
  });
  const up::Graded graded = ScoreOne(*MakeGraders(server.url));
  EXPECT_EQ(graded.reward, 1) << graded.why;
  EXPECT_EQ(graded.retries, 2);
}

TEST(HttpRewardTest, AKeptConnectionThatTheServerClosedIsNoRetry) {
  HttpDouble server([](const std::string&) { return HttpText(200, R"({"score": 1})"); },
                    {.keeps = true, .requests_max = 3});
  const auto graders = MakeGraders(server.url);
  for (int i = 0; i < 30; ++i) {
    const up::Graded graded = ScoreOne(*graders);
    EXPECT_EQ(graded.reward, 1) << graded.why;
    EXPECT_EQ(graded.retries, 0);
  }
  EXPECT_TRUE(graders->waits_for().empty());
  EXPECT_GE(server.accepted, 10);
  EXPECT_LT(server.accepted, 30) << "a connection is used more than once";
}

TEST(HttpRewardTest, AServerOfTheOtherKindIsNamedAndNotWaitedFor) {
  const Server grpc;
  EXPECT_THAT(WhyOf("http://" + grpc.address + "/"), HasSubstr("speaks gRPC (HTTP/2), not HTTP/1"));
  HttpDouble server([](const std::string&) { return HttpText(400, "what is PRI?"); });
  const std::string address = server.url.substr(7, server.url.find("/grade") - 7);
  EXPECT_THAT(WhyOf(address), HasSubstr("write endpoint: \"http://" + address + "/\""));
}

TEST(HttpRewardTest, AServerThatIsTooSlowIsGivenUpAtItsTimeOut) {
  std::stop_source over;
  HttpDouble server([&](const std::string&) {
    while (!over.stop_requested()) std::this_thread::yield();
    return std::string();
  });
  const up::Graded graded = ScoreOne(*MakeGraders(server.url, /*timeout_s=*/0.1));
  EXPECT_EQ(graded.outcome, GradeOutcome::kInfra);
  EXPECT_THAT(graded.why, HasSubstr("no answer within 0.1 s; if it needs longer, raise timeout_s"));
  over.request_stop();
}

TEST(HttpRewardTest, ABatchIsAListAndSoIsItsAnswer) {
  HttpDouble server([&](const std::string& body) {
    json answers = json::array();
    for (const json& sample : json::parse(body))
      answers.push_back({{"score", sample["text"].get<std::string>().size()}});
    return HttpText(200, answers.dump());
  });
  const auto graders = MakeGraders(server.url, 15, /*batch=*/2);
  const std::vector<down::Grade> samples = {Sample("a"), Sample("abc")};
  const auto graded = graders->Score(samples);
  EXPECT_EQ(graded[0].reward, 1);
  EXPECT_EQ(graded[1].reward, 3);
  const down::Grade one = Sample("ab");  // a list, too
  EXPECT_EQ(graders->Score({&one, 1}).front().reward, 2);
}

std::vector<down::Grade> Samples(int count, const std::string& text) {
  std::vector<down::Grade> samples;
  for (int i = 0; i < count; ++i) samples.push_back(Sample(i == 5 ? text : std::to_string(i)));
  return samples;
}

TEST(HttpRewardTest, ASampleThatTheServerCannotTakeFailsAlone) {
  std::vector<size_t> asked;
  HttpDouble server([&](const std::string& body) {
    const json samples = json::parse(body);
    asked.push_back(samples.size());
    json answers = json::array();
    for (const json& sample : samples) {
      if (sample["text"] == "poison") return HttpText(500, "cannot grade this");
      answers.push_back({{"score", 1}});
    }
    return HttpText(200, answers.dump());
  });
  const auto graders = MakeGraders(server.url, 15, /*batch=*/16);
  std::vector<down::Grade> samples = Samples(16, "poison");
  auto graded = graders->Score(samples);
  for (size_t i = 0; i < graded.size(); ++i)
    EXPECT_EQ(graded[i].outcome, i == 5 ? GradeOutcome::kInfra : GradeOutcome::kOk) << i;
  EXPECT_THAT(graded[5].why, HasSubstr("HTTP 500 cannot grade this"));
  EXPECT_EQ(asked.size(), 9U) << "in halves";

  asked.clear();
  samples[5].attempt = 1;
  graded = graders->Score(samples);
  EXPECT_EQ(graded[5].outcome, GradeOutcome::kInfra);
  EXPECT_THAT(asked, ElementsAre(15U, 1U)) << "one that failed before goes alone";
}

TEST(GradersTest, AFunctionOfThisProcessThatDoesNotReturnIsNamedWithItsFileAndTheSample) {
  RewardConfig config;
  config.functions.push_back({.name = "exact_answer", .timeout_s = 2});
  const auto graders = std::move(*Graders::Create({.reward = config}));
  // Its end is looked for in all of it, so that most of the time it is in there.
  const down::Grade sample = Sample(std::string(4 << 20, ' '));
  std::jthread grader([&](const std::stop_token& stop) {  // waits: asked to stop at the end of this test
    while (!stop.stop_requested()) (void)graders->Score({&sample, 1});
  });
  std::optional<PluginCall> overdue;
  const auto begun = std::chrono::steady_clock::now();
  while (!overdue && std::chrono::steady_clock::now() < begun + std::chrono::seconds(60))
    overdue = graders->watch().Overdue(std::chrono::steady_clock::now() + std::chrono::seconds(2));
  ASSERT_TRUE(overdue);
  EXPECT_EQ(overdue->what, "reward exact_answer (core/tasks/rewards/exact_answer.cc)");
  EXPECT_THAT(overdue->Late(),
              StartsWith("reward exact_answer (core/tasks/rewards/exact_answer.cc) did not return "
                         "within 2 s (its timeout_s) on sample 7.0.1 ("));
  grader.request_stop();
  grader.join();  // waits: it was asked to stop
  EXPECT_FALSE(graders->watch().Overdue(std::chrono::steady_clock::now() + std::chrono::hours(1)));
}

TEST(GradersTest, ACallThatIsTooLongForTheServerGoesInHalves) {
  Server server("127.0.0.1:0", /*batches=*/true);
  const auto graders = MakeGraders(server.address, 15, /*batch=*/16);
  // gRPC refuses messages above 4 MiB.
  for (const up::Graded& graded : graders->Score(std::vector(16, Sample(std::string(400 << 10, 'x')))))
    EXPECT_EQ(graded.outcome, GradeOutcome::kOk) << graded.why;
  EXPECT_THAT(server.asked, ElementsAre(8, 8));
}

TEST(HttpRewardTest, AnAnswerThatIsNestedDeeplyIsRefused) {
  const std::string deep = std::string(500000, '[') + std::string(500000, ']');
  HttpDouble server([&](const std::string&) { return HttpText(200, deep); });
  for (const int64_t batch : {1, 16}) {
    const auto graders = MakeGraders(server.url, 15, batch);
    const auto graded = graders->Score(std::vector(static_cast<size_t>(batch), Sample()));
    EXPECT_EQ(graded.front().outcome, GradeOutcome::kInfra);
    EXPECT_LT(graded.front().why.size(), 1300U);
  }
  const std::string shallow = std::string(129, '[') + std::string(129, ']');
  HttpDouble other([&](const std::string&) { return HttpText(200, shallow); });
  EXPECT_THAT(WhyOf(other.url), HasSubstr("its answer is nested deeper than 128"));
}

TEST(HttpRewardTest, AnAnswerThatComesBeforeTheBodyWasReadCounts) {
  HttpDouble server([](const std::string&) { return HttpText(413, "client intended to send 6 MB"); },
                    {.reads_bodies = false});
  const up::Graded graded = ScoreOne(*MakeGraders(server.url), Sample(std::string(32 << 20, 'x')));
  EXPECT_EQ(graded.outcome, GradeOutcome::kInfra);
  EXPECT_THAT(graded.why, HasSubstr("HTTP 413 client intended to send 6 MB"));
  EXPECT_EQ(graded.retries, 0);
}

TEST(OutageTest, OneInWhichNobodyAskedIsNotKnownToGoOn) {
  using std::chrono::milliseconds;
  using std::chrono::seconds;
  const SteadyTime start{};
  Outage outage;
  EXPECT_EQ(outage.Begin(start, start, "refused"), start);
  for (int i = 1; i <= 6; ++i)
    EXPECT_EQ(outage.Begin(start + seconds(i), start + seconds(i), "refused"), start);
  EXPECT_TRUE(outage.HasLasted(seconds(6), start + milliseconds(6100)));
  EXPECT_FALSE(outage.HasLasted(seconds(7), start + milliseconds(6100)));
  EXPECT_FALSE(outage.HasLasted(seconds(6), start + seconds(12))) << "nobody asked for six seconds";
  EXPECT_EQ(outage.Begin(start + seconds(12), start + seconds(12), "refused"), start + seconds(12));
  EXPECT_EQ(outage.End(), start + seconds(12));
  EXPECT_FALSE(outage.HasLasted(seconds(0), start + seconds(12)));
}

TEST(OutageTest, AServerThatHangsIsAwaySinceItWasAsked) {
  using std::chrono::seconds;
  const SteadyTime start{};
  Outage outage;
  // Each try fails after 15 seconds; the next one follows at once.
  EXPECT_EQ(outage.Begin(start, start + seconds(15), "no connection in time"), start);
  EXPECT_TRUE(outage.HasLasted(seconds(15), start + seconds(15)));
  EXPECT_EQ(outage.Begin(start + seconds(15), start + seconds(30), "no connection in time"), start);
  EXPECT_EQ(outage.Begin(start + seconds(40), start + seconds(55), "no connection in time"),
            start + seconds(40))
      << "nobody asked for ten seconds";
}

TEST(HostLookupTest, ALookupThatHangsIsLeftAndSharedByWhoComesMeanwhile) {
  using Clock = std::chrono::steady_clock;
  struct Asked {
    std::atomic<int> times = 0;
    std::stop_source over;
  };
  const auto asked = std::make_shared<Asked>();
  {
    HostLookup lookup("judge", [asked]() -> StatusOr<std::vector<std::string>> {
      ++asked->times;
      while (!asked->over.stop_requested()) std::this_thread::yield();
      return std::vector<std::string>{"127.0.0.1"};
    });
    for (int i = 0; i < 2; ++i) {
      const auto late = lookup.Addresses(Clock::now() + std::chrono::milliseconds(20), {});
      EXPECT_EQ(late.status().code(), StatusCode::kUnavailable);
      EXPECT_THAT(late.status().message(), HasSubstr("lookup of the name judge"));
    }
    std::stop_source stop;
    stop.request_stop();
    EXPECT_EQ(lookup.Addresses(Clock::now() + std::chrono::hours(1), stop.get_token()).status().code(),
              StatusCode::kCancelled);
    const std::jthread answer([&] { asked->over.request_stop(); });
    EXPECT_THAT(lookup.Addresses(Clock::now() + std::chrono::hours(1), {}).value(), ElementsAre("127.0.0.1"));
  }
  EXPECT_GE(asked->times, 1);
  EXPECT_LE(asked->times, 2) << "the second only if the first was answered before the last question";
}

}  // namespace
}  // namespace tidepool::workers
