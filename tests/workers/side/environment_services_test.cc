// Environments that are services: what they may do, and what is said of those that do it. Here they are
// servers in this process; those that are started are in tests/runs/environment_service_test.py.
#include "workers/side/environment_services.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <thread>

#include "core/environments/episode.h"
#include "proto/environment.grpc.pb.h"
#include "workers/net/messages.h"
#include "workers/side/environment_worker.h"

namespace tidepool::workers {
namespace {

using environments::EpisodeHost;
using environments::EpisodeSource;
using environments::PlayLimit;
using ::testing::HasSubstr;
using namespace std::chrono_literals;
using PlayStream = grpc::ServerReaderWriter<v1::Played, v1::PlayStep>;

// Counts what it is told; three steps are an episode.
class Counter : public v1::Environment::Service {
 public:
  using Say = std::function<void(const v1::PlayStep&, v1::Played&)>;
  using Stream = std::function<grpc::Status(PlayStream&)>;
  explicit Counter(std::string socket = {}) : socket_(std::move(socket)) {
    description.set_name("counter");
    description.set_kind(v1::Description::TEXT);
    description.set_loss(v1::Description::REPLAY);
    description.set_max_turns(8);
    static std::atomic<int> number = 0;
    if (socket_.empty())
      socket_ = "unix:/tmp/tidepool-test-" + std::to_string(getpid()) + "-" + std::to_string(number++);
    Begin();
  }
  ~Counter() override {
    End();
    ::unlink(socket_.c_str() + 5);
  }
  void Begin() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(socket_, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  void End() {
    frozen = false;
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  const std::string& address() const { return socket_; }

  v1::Description description;
  Say say;        // changes an answer
  Stream stream;  // in place of all that
  std::atomic<int64_t> resets = 0, steps = 0, open = 0;
  std::atomic<bool> frozen = false, other = false;  // it answers nothing; it is another server

 private:
  void Thaw() const {
    while (frozen) std::this_thread::sleep_for(1ms);
  }
  grpc::Status Describe(grpc::ServerContext*, const v1::DescribeRequest*, v1::Description* out) override {
    Thaw();
    if (other) return {grpc::StatusCode::UNIMPLEMENTED, ""};
    *out = description;
    return grpc::Status::OK;
  }
  grpc::Status Play(grpc::ServerContext*, PlayStream* play) override {
    if (other) return {grpc::StatusCode::UNIMPLEMENTED, ""};
    if (stream) return stream(*play);
    ++open;
    v1::PlayStep asked;
    std::string heard;
    while (play->Read(&asked)) {
      Thaw();
      ++(asked.step() == 0 ? resets : steps);
      if (asked.step() == 0) heard = std::to_string(asked.seed());
      if (asked.step() > 0) heard += asked.action();
      v1::Played out;
      out.set_step(asked.step());
      out.set_observation(heard);
      out.set_reward(asked.step() > 0 ? 0.25 : 0);
      out.set_terminated(asked.step() == 3);
      out.set_solved(asked.step() == 3);
      if (say) say(asked, out);
      if (!play->Write(out)) break;
    }
    --open;
    return grpc::Status::OK;
  }
  std::string socket_;
  std::unique_ptr<grpc::Server> server_;
};

JobConfig JobOf(std::vector<std::string> addresses, int64_t instances = 8) {
  JobConfig job;
  RlJob rl;
  rl.environment = {
      .name = "counter", .addresses = std::move(addresses), .start_timeout_s = 5, .instances = instances};
  job.job = rl;
  return job;
}

class EnvironmentServicesTest : public ::testing::Test {
 protected:
  // A host of the games of these services.
  std::unique_ptr<EpisodeHost> Host(std::vector<std::string> addresses, int64_t instances = 8) {
    const JobConfig job = JobOf(std::move(addresses), instances);
    services_ = EnvironmentServices::Start(*job.environment());
    (void)services_->unusable(Soon());  // all were asked: games are spread
    return std::make_unique<EpisodeHost>(*EpisodeSource::Create(job, services_),
                                         static_cast<size_t>(instances));
  }
  static PlayLimit Soon(std::chrono::milliseconds d = 5000ms) {
    return {.deadline = std::chrono::steady_clock::now() + d};
  }
  // Why the second turn of an episode fails.
  Status SecondTurn(Counter& counter, std::chrono::milliseconds limit = 5000ms) {
    const auto host = Host({counter.address()});
    const auto first = host->Play({1, 0, 0}, 0, {"a"}, Soon());
    if (!first.ok()) return Internal("the first turn: " + first.status().message());
    return host->Play({1, 0, 0}, 0, {"a", "b"}, Soon(limit)).status();
  }
  std::shared_ptr<EnvironmentServices> services_;
};

TEST_F(EnvironmentServicesTest, AnOpenInstanceGetsWhatIsNewAlone) {
  Counter counter;
  const auto host = Host({counter.address()});
  const SampleId row{1, 0, SampleId::kRowSample}, tid{1, 0, 0};
  const auto prompt = host->Play(row, 0, {}, Soon());
  ASSERT_TRUE(prompt.ok()) << prompt.status().message();
  std::vector<std::string> actions;
  for (const char* action : {"a", "b", "c"}) {
    actions.emplace_back(action);
    const auto played = host->Play(tid, 0, actions, Soon());
    ASSERT_TRUE(played.ok()) << played.status().message();
    EXPECT_EQ(played->observation.substr(prompt->observation.size()),
              std::string("abc").substr(0, actions.size()));
    EXPECT_EQ(played->reward, 0.25 * static_cast<double>(actions.size()));
    EXPECT_EQ(played->done, actions.size() == 3);
    EXPECT_EQ(played->solved, played->done);
    const auto again = host->Play(tid, 0, actions, Soon());  // asked twice
    if (!played->done) EXPECT_EQ(again->observation, played->observation);
  }
  EXPECT_EQ(counter.resets, 2)
      << "the prompt's instance plays on for a sample; the finished one was asked twice";
  EXPECT_EQ(host->replayed(), 2) << "of the finished one";
}

TEST_F(EnvironmentServicesTest, AConversationHearsCallsApartAndItsToolsStayWithIt) {
  Counter counter;
  counter.description.set_conversation(true);
  std::vector<v1::PlayStep> asked;
  counter.say = [&](const v1::PlayStep& step, v1::Played& out) {
    asked.push_back(step);
    out.clear_observation();
    v1::ChatMessage& m = *out.add_messages();
    m.set_role(step.step() == 0 ? "user" : "tool");
    m.set_content("content " + std::to_string(step.step()));
    if (step.step() == 0) out.set_tools(R"([{"type": "function"}])");
  };
  const auto host = Host({counter.address()});
  const std::string action =
      "so <tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1]}}</tool_call><tool_call>{\"a\"</tool_call>";
  const auto first = host->Play({1, 0, 0}, 0, {}, Soon());
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_TRUE(first->conversation);
  EXPECT_EQ(first->observation,
            R"({"messages":[{"role":"user","content":"content 0"}],"tools":[{"type":"function"}]})");
  const auto played = host->Play({1, 0, 0}, 0, {action}, Soon());
  ASSERT_TRUE(played.ok()) << played.status().message();
  EXPECT_TRUE(played->conversation);
  EXPECT_EQ(played->observation,
            R"({"messages":[{"role":"tool","content":"content 1"}],"tools":[{"type":"function"}]})");
  ASSERT_EQ(asked.size(), 2U);
  EXPECT_EQ(asked[1].action(), action);
  EXPECT_EQ(asked[1].words(), "so <tool_call>{\"a\"</tool_call>");
  EXPECT_EQ(asked[1].broken_call(), "<tool_call>{\"a\"</tool_call>");
  ASSERT_EQ(asked[1].calls_size(), 1);
  EXPECT_EQ(asked[1].calls(0).name() + asked[1].calls(0).arguments(), R"(f{"a":[1]})");
}

TEST_F(EnvironmentServicesTest, AConversationThatBreaksItsRulesIsBadData) {
  Counter counter;
  counter.description.set_conversation(true);
  const auto host = Host({counter.address()});
  int64_t ordinal = 0;
  const auto why = [&](const std::function<void(v1::Played&)>& change) {
    counter.say = [&](const v1::PlayStep&, v1::Played& out) {
      out.clear_observation();
      change(out);
    };
    const Status status = host->Play({ordinal++, 0, 0}, 0, {}, Soon()).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.message();
    return status.message();
  };
  EXPECT_THAT(why([](v1::Played& out) { out.set_observation("words"); }), HasSubstr("it has an observation"));
  EXPECT_THAT(why([](v1::Played& out) { out.add_messages()->set_role("assistant"); }),
              HasSubstr("a message has the role assistant; expected system, user or tool"));
  EXPECT_THAT(why([](v1::Played& out) { out.set_tools("{}"); }), HasSubstr("its tools are no JSON list"));
  EXPECT_THAT(why([](v1::Played&) {}), HasSubstr("Reset gave no text for the policy to read"));
}

TEST_F(EnvironmentServicesTest, SamplesOfAGroupBeginAlikeAndHeldOutSeedsAreNeverTrainedOn) {
  Counter counter;
  const auto host = Host({counter.address()}, 64);
  std::set<std::string> training, held_out;
  for (int64_t i = 0; i < 8; ++i) {
    const std::string first = host->Play({i, 0, SampleId::kRowSample}, 0, {}, Soon())->observation;
    EXPECT_EQ(host->Play({i, 0, 5}, 0, {}, Soon())->observation, first);
    EXPECT_EQ(host->Play({i, 3, 1}, 0, {}, Soon())->observation, first);
    training.insert(first);
    held_out.insert(host->Play({i, 0, SampleId::kEvalSample}, 0, {}, Soon())->observation);
  }
  EXPECT_EQ(training.size(), 8U);
  for (const std::string& seed : training) EXPECT_EQ(std::stoll(seed) % 2, 0);
  for (const std::string& seed : held_out) EXPECT_EQ(std::stoll(seed) % 2, 1);
}

TEST_F(EnvironmentServicesTest, ALostInstanceIsPlayedAgainElsewhere) {
  auto one = std::make_unique<Counter>();
  Counter other;
  const auto host = Host({one->address(), other.address()});
  std::map<int64_t, std::string> said;
  for (int64_t i = 0; i < 6; ++i) said[i] = host->Play({i, 0, 0}, 0, {"a", "b"}, Soon())->observation;
  EXPECT_EQ(one->open, 3) << "instances are spread";
  EXPECT_EQ(other.open, 3);
  one.reset();
  for (int64_t i = 0; i < 6; ++i) {
    const auto played = host->Play({i, 0, 0}, 0, {"a", "b", "c"}, Soon());
    ASSERT_TRUE(played.ok()) << played.status().message();
    EXPECT_EQ(played->observation, said[i] + "c");
  }
  EXPECT_EQ(other.resets, 6);
}

TEST_F(EnvironmentServicesTest, AServiceThatComesBackIsUsedAgain) {
  Counter counter;
  const auto host = Host({counter.address()});
  const auto first = host->Play({1, 0, 0}, 0, {"a"}, Soon());
  counter.End();
  EXPECT_EQ(host->Play({1, 0, 0}, 0, {"a", "b"}, Soon(300ms)).status().code(), StatusCode::kUnavailable);
  counter.Begin();
  const auto played = host->Play({1, 0, 0}, 0, {"a", "b"}, Soon());
  ASSERT_TRUE(played.ok()) << played.status().message();
  EXPECT_EQ(played->observation, first->observation + "b");
}

TEST_F(EnvironmentServicesTest, WhatDoesNotAnswerGetsNoNewGames) {
  Counter one, other;
  const auto host = Host({one.address(), other.address()}, 128);
  int64_t games = 0;
  for (; one.steps == 0 || other.steps == 0; ++games) {
    ASSERT_LT(games, 100);
    ASSERT_TRUE(host->Play({games, 0, 0}, 0, {"a"}, Soon()).ok());
  }
  one.frozen = true;
  int64_t late = 0;
  for (int64_t i = 0; i < games; ++i)
    late +=
        host->Play({i, 0, 0}, 0, {"a", "b"}, Soon(200ms)).status().code() == StatusCode::kDeadlineExceeded;
  EXPECT_GT(late, 0);
  for (int64_t i = 0; i < games + 5; ++i) {
    const auto played = host->Play({i, 0, 0}, 0, {"a", "b"}, Soon(1000ms));
    EXPECT_TRUE(played.ok()) << i << ": " << played.status().message();
  }
}

TEST_F(EnvironmentServicesTest, AnotherServerAtAnAddressIsDoneWithoutWhileOneIsLeft) {
  Counter one, other;
  const auto host = Host({one.address(), other.address()}, 128);
  int64_t games = 0;
  for (; one.steps == 0 || other.steps == 0; ++games) {
    ASSERT_LT(games, 100);
    ASSERT_TRUE(host->Play({games, 0, 0}, 0, {"a"}, Soon()).ok());
  }
  one.End();
  one.other = true;
  one.Begin();
  for (int64_t i = 0; i < games; ++i) {
    const auto played = host->Play({i, 0, 0}, 0, {"a", "b"}, Soon());
    EXPECT_TRUE(played.ok()) << played.status().message();
  }
  for (int wait = 0; services_->unusable(Soon()).empty() && wait < 2000; ++wait)
    std::this_thread::sleep_for(1ms);
  EXPECT_THAT(services_->unusable(Soon()),
              HasSubstr(one.address() + ": a server that has no tidepool.v1.Environment answers there"));
  EXPECT_EQ(services_->failed(), "");
  one.other = false;
  for (int wait = 0; !services_->unusable(Soon()).empty() && wait < 5000; ++wait)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(services_->unusable(Soon()), "") << "it is asked again";
  one.other = other.other = true;
  one.End(), other.End();
  one.Begin(), other.Begin();
  EXPECT_FALSE(host->Play({50, 0, 0}, 0, {"a", "b"}, Soon(10000ms)).ok());
  EXPECT_FALSE(host->Play({0, 0, 0}, 0, {"a", "b", "c"}, Soon(10000ms)).ok());
  for (int wait = 0; services_->failed().empty() && wait < 5000; ++wait) std::this_thread::sleep_for(1ms);
  EXPECT_THAT(services_->failed(), HasSubstr("a server that has no tidepool.v1.Environment answers there"));
}

TEST_F(EnvironmentServicesTest, AReplayHasToGiveTheSameRewards) {
  Counter counter;
  const auto turn = [](EpisodeHost& host, std::vector<std::string> actions) {
    const auto number = static_cast<int64_t>(actions.size());
    return PlayTurn(host, "counter",
                    {.tid = {1, 0, 0}, .turn = number, .actions = std::move(actions), .timeout_s = 5});
  };
  const auto host = Host({counter.address()});
  const up::EnvStepped first = turn(*host, {"a"});
  ASSERT_EQ(first.outcome, GradeOutcome::kOk) << first.why;
  EXPECT_EQ(turn(*Host({counter.address()}), {"a", "b"}).history, first.next_history);
  counter.say = [](const v1::PlayStep& asked, v1::Played& out) {
    if (asked.step() == 1) out.set_reward(0.5);
  };
  const up::EnvStepped other = turn(*Host({counter.address()}), {"a", "b"});
  ASSERT_EQ(other.outcome, GradeOutcome::kOk) << other.why;
  EXPECT_NE(other.history, first.next_history);
}

TEST_F(EnvironmentServicesTest, APinnedInstanceThatIsLostIsNotPlayedAgain) {
  Counter counter;
  counter.description.set_loss(v1::Description::PINNED);
  const auto host = Host({counter.address()});
  ASSERT_TRUE(host->Play({1, 0, 0}, 0, {"a"}, Soon()).ok());
  counter.End();
  counter.Begin();
  const Status lost = host->Play({1, 0, 0}, 0, {"a", "b"}, Soon()).status();
  EXPECT_EQ(lost.code(), StatusCode::kAborted);
  EXPECT_THAT(lost.message(), HasSubstr("(pinned)"));
  EXPECT_TRUE(host->Play({2, 0, 0}, 0, {"a"}, Soon()).ok()) << "others begin";
  // What is lost says nothing of the policy: it is no reward, and no fault of the data.
  up::EnvStepped stepped =
      PlayTurn(*host, "counter", {.tid = {1, 0, 0}, .turn = 2, .actions = {"a", "b"}, .timeout_s = 5});
  EXPECT_EQ(stepped.outcome, GradeOutcome::kInfra);
}

TEST_F(EnvironmentServicesTest, NoMoreInstancesAreOpenThanMayBe) {
  Counter counter;
  const auto host = Host({counter.address()}, /*instances=*/2);
  for (int64_t i = 0; i < 5; ++i) ASSERT_TRUE(host->Play({i, 0, 0}, 0, {"a"}, Soon()).ok());
  for (int wait = 0; counter.open > 2 && wait < 2000; ++wait) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(counter.open, 2);
  EXPECT_TRUE(host->Play({0, 0, 0}, 0, {"a", "b"}, Soon()).ok()) << "played again";

  Counter pinned;
  pinned.description.set_loss(v1::Description::PINNED);
  const auto few = Host({pinned.address()}, /*instances=*/2);
  for (int64_t i = 0; i < 2; ++i) ASSERT_TRUE(few->Play({i, 0, 0}, 0, {"a"}, Soon()).ok());
  const Status full = few->Play({2, 0, 0}, 0, {"a"}, Soon(100ms)).status();
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(full.message(), HasSubstr("raise environment.instances"));
  ASSERT_TRUE(few->Play({1, 0, 0}, 0, {"a", "b", "c"}, Soon()).ok()) << "which is its end";
  EXPECT_TRUE(few->Play({2, 0, 0}, 0, {"a"}, Soon()).ok());
}

TEST_F(EnvironmentServicesTest, WhatBreaksTheRulesIsDataAndWhatFailsIsNot) {
  Counter counter;
  const auto on_second = [&](std::function<void(v1::Played&)> change) {
    counter.say = [change](const v1::PlayStep& asked, v1::Played& out) {
      if (asked.step() == 2) change(out);
    };
    return SecondTurn(counter);
  };
  const auto is_data = [](const Status& status, const std::string& words) {
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.message();
    EXPECT_THAT(status.message(), HasSubstr(words));
  };
  is_data(on_second([](v1::Played& p) { p.set_reward(std::numeric_limits<double>::quiet_NaN()); }),
          "reward nan");
  is_data(on_second([](v1::Played& p) { p.set_observation("\xff\xfe"); }), "is no UTF-8 (byte 0)");
  is_data(on_second([](v1::Played& p) { p.set_observation(""); }),
          "no text for the policy to read in turn 2");
  is_data(on_second([](v1::Played& p) { p.set_observation(std::string(100 << 20, 'x')); }),
          "more than the 4 MiB");
  is_data(on_second([](v1::Played& p) { p.set_step(1); }), "answered step 1 where step 2 was asked");
  const auto on_reset = [&](std::function<void(v1::Played&)> change) {
    counter.say = [change](const v1::PlayStep& asked, v1::Played& out) {
      if (asked.step() == 0) change(out);
    };
    return Host({counter.address()})->Play({1, 0, 0}, 0, {}, Soon()).status();
  };
  is_data(on_reset([](v1::Played& p) { p.set_reward(0.5); }), "Reset gave the reward 0.5");
  is_data(on_reset([](v1::Played& p) { p.set_truncated(true); }), "Reset ended the episode");
  counter.say = nullptr;
  const auto stream = [&](std::function<grpc::Status(PlayStream&, v1::PlayStep&)> second,
                          std::chrono::milliseconds limit = 5000ms) {
    counter.stream = [second](PlayStream& play) {
      v1::PlayStep asked;
      for (int64_t i = 0; i < 2 && play.Read(&asked); ++i) {
        v1::Played out;
        out.set_step(asked.step());
        out.set_observation("x");
        play.Write(out);
      }
      return second(play, asked);
    };
    return SecondTurn(counter, limit);
  };
  is_data(stream([](PlayStream& play, v1::PlayStep& asked) {
            v1::Played out;
            out.set_step(1);
            out.set_observation("x");
            play.Write(out);
            play.Read(&asked);
            return grpc::Status::OK;
          }),
          "it answered ");
  is_data(stream([](PlayStream& play, v1::PlayStep& asked) {
            play.Read(&asked);
            return grpc::Status(grpc::StatusCode::DATA_LOSS, "this maze has no exit");
          }),
          "this maze has no exit");
  const Status failed = stream([](PlayStream& play, v1::PlayStep& asked) {
    play.Read(&asked);
    return grpc::Status(grpc::StatusCode::INTERNAL, "KeyError: 'x'");
  });
  EXPECT_EQ(failed.code(), StatusCode::kInternal);
  EXPECT_THAT(failed.message(), HasSubstr("step 2: KeyError: 'x'"));
  const Status ended = stream([](PlayStream& play, v1::PlayStep& asked) {
    play.Read(&asked);
    return grpc::Status::OK;
  });
  EXPECT_EQ(ended.code(), StatusCode::kInternal);
  EXPECT_THAT(ended.message(), HasSubstr("ended the stream without an answer"));
  const Status silent = stream(
      [](PlayStream& play, v1::PlayStep& asked) {
        play.Read(&asked);
        play.Read(&asked);  // until it is cancelled
        return grpc::Status::OK;
      },
      100ms);
  EXPECT_EQ(silent.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(silent.message(), HasSubstr("step 2: no answer within 0.1 s"));
}

TEST_F(EnvironmentServicesTest, ADescriptionThatCannotBeIsNamed) {
  Counter counter;
  const auto told = [&](const std::function<void(v1::Description&)>& change) {
    const v1::Description before = counter.description;
    change(counter.description);
    const JobConfig job = JobOf({counter.address()});
    const auto services = EnvironmentServices::Start(*job.environment());
    const Status status = services->Describe(Soon()).status();
    EXPECT_EQ(services->failed(), status.message());
    counter.description = before;
    return status.message();
  };
  using D = v1::Description;
  EXPECT_THAT(told([](D& d) { d.set_kind(D::VECTOR); }),
              HasSubstr("of kind VECTOR; a language model plays environments of kind TEXT"));
  EXPECT_THAT(told([](D& d) { d.clear_loss(); }), HasSubstr("without a loss; expected REPLAY or PINNED"));
  EXPECT_THAT(told([](D& d) { d.set_max_turns(0); }), HasSubstr("with max_turns 0; expected 1 or more"));
  Counter other;
  other.description.set_max_turns(9);
  const JobConfig job = JobOf({counter.address(), other.address()});
  const auto services = EnvironmentServices::Start(*job.environment());
  EXPECT_THAT(services->unusable(Soon()),
              HasSubstr("describes itself otherwise than before: counter, replay, max_turns "));
}

TEST_F(EnvironmentServicesTest, NobodyWaitsLongerThanHeMay) {
  const auto host = Host({"unix:/tmp/tidepool-test-nobody-is-here"});
  const auto begun = std::chrono::steady_clock::now();
  const Status none = host->Play({1, 0, 0}, 0, {}, Soon(300ms)).status();
  EXPECT_EQ(none.code(), StatusCode::kUnavailable);
  EXPECT_THAT(none.message(), HasSubstr("no service to play in for 0.3 s: "));
  std::stop_source stop;
  std::jthread asks([&] { std::this_thread::sleep_for(50ms), stop.request_stop(); });
  EXPECT_FALSE(host->Play({1, 0, 0}, 0, {}, {.stop = stop.get_token()}).ok());
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 5s);
}

}  // namespace
}  // namespace tidepool::workers
