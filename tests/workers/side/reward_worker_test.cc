#include "workers/side/reward_worker.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "core/text/unicode.h"
#include "proto/reward.grpc.pb.h"

namespace tidepool::workers {
namespace {

// Answers what it is told to.
class Server final : public v1::Reward::Service {
 public:
  Server() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address = "127.0.0.1:" + std::to_string(port);
  }
  grpc::Status Score(grpc::ServerContext*, const v1::ScoreRequest*, v1::ScoreReply* reply) override {
    *reply = answer;
    return status;
  }
  std::string address;
  v1::ScoreReply answer;
  grpc::Status status;

 private:
  std::unique_ptr<grpc::Server> server_;
};

std::string WhyOf(Server& server) {
  RewardConfig config;
  config.functions.push_back({.name = "remote", .endpoint = server.address});
  const auto graders = Graders::Create(config);
  TP_CHECK(graders.ok()) << graders.status().ToString();
  const up::Graded graded = (*graders)->Score({});
  EXPECT_NE(graded.outcome, GradeOutcome::kOk);
  return graded.why;
}

TEST(GradersTest, WordsOfARewardServerAreBounded) {
  Server server;
  server.answer.set_outcome(v1::ScoreReply::DATA);
  std::string words = "a";
  while (words.size() < 3 << 20) words += "\xe4\xbd\xa0";
  server.answer.set_detail(words);
  const std::string why = WhyOf(server);
  EXPECT_LT(why.size(), 1100U);
  EXPECT_THAT(why, testing::StartsWith("remote: a"));
  EXPECT_THAT(why, testing::HasSubstr("more bytes"));
  EXPECT_EQ(text::FindInvalidUtf8(why), std::string::npos) << "cut inside a character";

  server.status = grpc::Status(grpc::StatusCode::INTERNAL, std::string(5000, 'x'));
  EXPECT_LT(WhyOf(server).size(), 1200U);
}

}  // namespace
}  // namespace tidepool::workers
