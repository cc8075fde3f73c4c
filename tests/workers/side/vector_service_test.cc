#include "workers/side/vector_service.h"

#include <gtest/gtest.h>

#include <chrono>

#include "core/base/rng.h"
#include "core/policy/fragment.h"

namespace tidepool::workers {
namespace {

using environments::InstanceState;
using environments::VectorEnvironment;
using policy::EnvironmentHost;

const std::string kToken(64, 'a');

std::vector<InstanceState> Starts(const environments::VectorOptions& options, int64_t n) {
  std::vector<uint64_t> indices;
  for (int64_t i = 0; i < n; ++i) indices.push_back(static_cast<uint64_t>(i));
  return (*VectorEnvironment::Create(options, indices))->states();
}

std::unique_ptr<VectorServer> Serve(const environments::VectorOptions& options, int64_t max_sessions = 16) {
  auto server = VectorServer::Start({.token = kToken, .max_sessions = max_sessions});
  EXPECT_TRUE(server.ok()) << server.status().message();
  EXPECT_TRUE((*server)->Serve(options).ok());
  return std::move(*server);
}

// Over the wire as in this process, for several sessions at a time.
TEST(VectorServiceTest, StepsAreThoseOfAHostInThisProcess) {
  for (const char* name : {"cartpole", "pendulum", "frozen_lake_grid"}) {
    const environments::VectorOptions options{.name = name, .max_episode_steps = 30, .seed = 6};
    const auto spec = *environments::FindVectorEnvironment(options);
    auto server = Serve(options);
    RemoteHost remote(server->address(), kToken, 30);
    policy::LocalHost local(options);
    for (int64_t s = 1; s <= 2; ++s) {
      const auto a = remote.Open(s, Starts(options, 3 * s));
      const auto b = local.Open(s, Starts(options, 3 * s));
      ASSERT_TRUE(a.ok()) << a.status().message();
      EXPECT_EQ(*a, *b);
    }
    Rng rng(2);
    for (int t = 0; t < 100; ++t) {
      std::vector<EnvironmentHost::Action> actions;
      for (int64_t s = 1; s <= 2; ++s) {
        auto& a = actions.emplace_back();
        a.session = s;
        for (int64_t i = 0; i < 3 * s; ++i)
          a.actions.push_back(spec.continuous ? static_cast<float>(rng.Normal())
                                              : static_cast<float>(rng.Below(spec.actions)));
      }
      const auto a = remote.Step(actions);
      const auto b = local.Step(actions);
      ASSERT_TRUE(a.ok()) << a.status().message();
      for (size_t s = 0; s < 2; ++s) {
        EXPECT_EQ((*a)[s].session, (*b)[s].session);
        EXPECT_EQ((*a)[s].step.observations, (*b)[s].step.observations);
        EXPECT_EQ((*a)[s].step.rewards, (*b)[s].step.rewards);
        EXPECT_EQ((*a)[s].step.flags, (*b)[s].step.flags);
        EXPECT_EQ((*a)[s].step.final_observations, (*b)[s].step.final_observations);
        EXPECT_EQ((*a)[s].step.scores, (*b)[s].step.scores);
      }
    }
    for (int64_t s = 1; s <= 2; ++s) EXPECT_EQ(*remote.Close(s), *local.Close(s));
    EXPECT_EQ(server->steps(), 100 * 9);
  }
}

TEST(VectorServiceTest, RefusesCallersWithoutTheToken) {
  auto server = Serve({.name = "cartpole"});
  for (const std::string& token : {std::string(), std::string(64, 'b')}) {
    RemoteHost remote(server->address(), token, 30);
    EXPECT_EQ(remote.Open(1, Starts({.name = "cartpole"}, 1)).status().code(), StatusCode::kUnauthenticated);
  }
}

TEST(VectorServiceTest, ABadRequestIsAnsweredAndTheStreamGoesOn) {
  const environments::VectorOptions options{.name = "cartpole"};
  auto server = Serve(options, 2);
  RemoteHost remote(server->address(), kToken, 30);
  std::vector<InstanceState> bad = Starts(options, 1);
  bad[0].steps = -1;
  EXPECT_EQ(remote.Open(1, bad).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(remote.Open(1, {}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(remote.Step({{.session = 5, .actions = {0}}}).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(remote.Open(1, Starts(options, 1)).ok());
  EXPECT_EQ(remote.Step({{.session = 1, .actions = {9}}})->front().status.code(),
            StatusCode::kInvalidArgument);
  EXPECT_TRUE(remote.Step({{.session = 1, .actions = {1}}}).ok());
  ASSERT_TRUE(remote.Open(2, Starts(options, 1)).ok());
  EXPECT_EQ(remote.Open(3, Starts(options, 1)).status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(remote.Close(1).ok());
  EXPECT_EQ(remote.Close(1).status().code(), StatusCode::kNotFound);
}

TEST(VectorServiceTest, AServerWithoutAJobSaysLater) {
  auto server = std::move(*VectorServer::Start({.token = kToken}));
  RemoteHost remote(server->address(), kToken, 30);
  EXPECT_EQ(remote.Open(1, Starts({.name = "cartpole"}, 1)).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(server->Serve({.name = "cartpol"}).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(server->Serve({.name = "cartpole"}).ok());
  EXPECT_TRUE(remote.Open(1, Starts({.name = "cartpole"}, 1)).ok());
}

TEST(VectorServiceTest, AServerThatGoesTakesItsSessionsAlong) {
  const environments::VectorOptions options{.name = "cartpole"};
  auto server = Serve(options);
  RemoteHost remote(server->address(), kToken, 30);
  ASSERT_TRUE(remote.Open(1, Starts(options, 1)).ok());
  server.reset();
  EXPECT_EQ(remote.Step({{.session = 1, .actions = {1}}}).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(remote.Close(1).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(remote.Open(1, Starts(options, 1)).status().code(), StatusCode::kUnavailable);
}

TEST(VectorServiceTest, StatesAreCheckedBeforeAnythingIsAllocated) {
  EXPECT_FALSE(policy::DecodeStates(std::string("\xff\xff\xff\x7f", 4)).ok());
  EXPECT_FALSE(policy::DecodeStates("ab").ok());
  EXPECT_TRUE(policy::DecodeStates(policy::EncodeStates({})).ok());
}

}  // namespace
}  // namespace tidepool::workers
