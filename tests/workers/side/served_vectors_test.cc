// Control tasks that are services, played by a host. The services are servers in this process; whole runs
// with programs are in tests/runs/control_service_test.py.
#include "workers/side/served_vectors.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <map>

#include "core/policy/spec.h"
#include "proto/environment.grpc.pb.h"

namespace tidepool::workers {
namespace {

using environments::InstanceState;
using policy::EnvironmentHost;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using RowsStream = grpc::ServerReaderWriter<v1::VectorPlayed, v1::VectorStep>;

template <typename T>
std::vector<T> ReadNumbers(const std::string& bytes) {
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}
template <typename T>
void Append(std::string* bytes, T number) {
  bytes->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

// An instance says its seed modulo 100, and the sum of what was done since. An episode terminates when the
// sum is 5.
class Sums : public v1::Environment::Service {
 public:
  Sums() {
    static std::atomic<int> number = 0;
    socket_ = "unix:/tmp/tidepool-sums-" + std::to_string(getpid()) + "-" + std::to_string(number++);
    description.set_name("sums");
    description.set_kind(v1::Description::VECTOR);
    description.set_loss(v1::Description::REPLAY);
    description.set_max_turns(8);
    description.set_observation_size(2);
    description.set_actions(3);
    grpc::ServerBuilder builder;
    builder.AddListeningPort(socket_, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Sums() override {
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
    ::unlink(socket_.c_str() + 5);
  }
  [[nodiscard]] const std::string& address() const { return socket_; }

  v1::Description description;
  std::function<grpc::Status(const v1::VectorStep&, v1::VectorPlayed&)> say;  // changes an answer
  std::atomic<int64_t> resets = 0, moved = 0;                                 // instances

 private:
  grpc::Status Describe(grpc::ServerContext*, const v1::DescribeRequest*, v1::Description* out) override {
    *out = description;
    return grpc::Status::OK;
  }
  grpc::Status PlayVector(grpc::ServerContext*, RowsStream* play) override {
    std::vector<std::pair<float, float>> states;
    v1::VectorStep asked;
    while (play->Read(&asked)) {
      if (asked.step() == 0) states.resize(static_cast<size_t>(asked.instances()));
      auto which = ReadNumbers<uint32_t>(asked.which());
      if (which.empty()) {
        for (uint32_t i = 0; i < states.size(); ++i) which.push_back(i);
      }
      const auto seeds = ReadNumbers<int32_t>(asked.seeds());
      const auto actions = ReadNumbers<int32_t>(asked.actions());
      v1::VectorPlayed out;
      out.set_step(asked.step());
      for (size_t k = 0; k < which.size(); ++k) {
        auto& [seed, sum] = states[which[k]];
        const auto begin = [&, &seed = seed, &sum = sum] {
          seed = static_cast<float>(seeds[k] % 100), sum = 0;
        };
        if (asked.reset()) {
          ++resets;
          begin();
        } else {
          ++moved;
          sum += static_cast<float>(actions[k]);
          Append(out.mutable_rewards(), 0.5 * actions[k]);
          const bool over = sum >= 5;
          Append(out.mutable_flags(), static_cast<uint8_t>(over ? 1 : 0));
          if (over) {
            Append(out.mutable_final_observations(), seed);
            Append(out.mutable_final_observations(), sum);
            begin();
          }
        }
        Append(out.mutable_observations(), seed);
        Append(out.mutable_observations(), sum);
      }
      if (say) {
        if (const grpc::Status wrong = say(asked, out); !wrong.ok()) return wrong;
      }
      if (!play->Write(out)) break;
    }
    return grpc::Status::OK;
  }
  std::string socket_;
  std::unique_ptr<grpc::Server> server_;
};

class ServedVectorsTest : public ::testing::Test {
 protected:
  // A host of the instances of these services, as a worker has one.
  std::unique_ptr<ServedHost> Host(const std::vector<const Sums*>& services) {
    job_ = JobConfig();
    RlJob rl;
    rl.environment = {.name = "sums", .start_timeout_s = 5, .max_retries = 1, .reset_timeout_s = 5};
    rl.environment.observation_size = 2;
    rl.environment.actions = 3;
    rl.environment.max_episode_steps = 4;
    rl.environment.step_timeout_s = 5;
    for (const Sums* s : services) rl.environment.addresses.push_back(s->address());
    job_.job = rl;
    services_ = EnvironmentServices::Start(*job_.environment(), {.vector = true});
    kept_ = std::make_shared<KeptInstances>(PartsToKeep(job_));
    return Another();
  }
  std::unique_ptr<ServedHost> Another() { return std::make_unique<ServedHost>(job_, services_, kept_); }
  std::vector<InstanceState> Starts(size_t n) const {
    std::vector<uint64_t> indices(n);
    for (size_t i = 0; i < n; ++i) indices[i] = i;
    return *environments::StartStates(policy::EnvironmentOfJob(job_), indices);
  }
  float SeedOf(uint64_t index, int64_t episode) const {
    return static_cast<float>(environments::SeedOfEpisode(job_.seed, index, episode) % 100);
  }
  static EnvironmentHost::Moved Step(ServedHost& host, std::vector<float> actions) {
    auto moved = host.Step({{.session = 1, .actions = std::move(actions)}});
    EXPECT_TRUE(moved.ok()) << moved.status().message();
    return std::move(moved->front());
  }

  JobConfig job_;
  std::shared_ptr<EnvironmentServices> services_;
  std::shared_ptr<KeptInstances> kept_;
};

TEST_F(ServedVectorsTest, EpisodesTerminateAtTheServicesWordAndAreTruncatedAtTheLimit) {
  const Sums a, b;
  const auto host = Host({&a, &b});
  (void)services_->unusable(
      {.deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20)});  // until both were asked
  const auto first = host->Open(1, Starts(3));
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_THAT(*first, ElementsAre(SeedOf(0, 0), 0, SeedOf(1, 0), 0, SeedOf(2, 0), 0));
  EXPECT_EQ(a.resets + b.resets, 3);
  EXPECT_GT(a.resets * b.resets, 0) << "the instances are spread over both";
  EXPECT_THAT(Step(*host, {0, 2, 1}).step.observations,
              ElementsAre(SeedOf(0, 0), 0, SeedOf(1, 0), 2, SeedOf(2, 0), 1));
  Step(*host, {0, 2, 1});
  const auto third = Step(*host, {0, 2, 1});  // the second one is over
  EXPECT_THAT(third.step.flags, ElementsAre(0, environments::kTerminated, 0));
  EXPECT_THAT(third.step.rewards, ElementsAre(0, 1, 0.5));
  EXPECT_THAT(third.step.final_observations, ElementsAre(SeedOf(1, 0), 6));
  EXPECT_THAT(third.step.scores, ElementsAre(3));
  EXPECT_THAT(third.step.observations, ElementsAre(SeedOf(0, 0), 0, SeedOf(1, 1), 0, SeedOf(2, 0), 3));
  const auto fourth = Step(*host, {0, 2, 1});
  EXPECT_THAT(fourth.step.flags, ElementsAre(environments::kTruncated, 0, environments::kTruncated));
  EXPECT_THAT(fourth.step.final_observations, ElementsAre(SeedOf(0, 0), 0, SeedOf(2, 0), 4));
  EXPECT_THAT(fourth.step.scores, ElementsAre(0, 2));
  EXPECT_THAT(fourth.step.observations, ElementsAre(SeedOf(0, 1), 0, SeedOf(1, 1), 2, SeedOf(2, 1), 0));
  const auto ends = host->Close(1);
  ASSERT_TRUE(ends.ok());
  EXPECT_EQ((*ends)[1].steps, 1);
  EXPECT_THAT((*ends)[1].actions, ElementsAre(2));
  EXPECT_EQ((*ends)[0].episode, 1);
}

TEST_F(ServedVectorsTest, TheNextFragmentGoesOnAndAnotherWorkerPlaysAgain) {
  const Sums service;
  const auto host = Host({&service});
  ASSERT_TRUE(host->Open(1, Starts(2)).ok());
  const auto seen = Step(*host, {1, 2}).step.observations;
  const auto ends = *host->Close(1);
  EXPECT_EQ(service.moved, 2);
  EXPECT_EQ(*Another()->Open(1, ends), seen);
  EXPECT_EQ(service.moved, 2) << "it was kept";
  const auto again = Another()->Open(1, ends);  // it was taken, and is gone
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(*again, seen);
  EXPECT_EQ(service.moved, 4);
  auto other = ends;
  other[1].actions = {1};
  const auto wrong = Another()->Open(1, other);
  EXPECT_EQ(wrong.status().code(), StatusCode::kDataLoss);
  EXPECT_THAT(wrong.status().message(),
              HasSubstr("said other observations or rewards; correct it, or declare"));
  other[1].actions = {1, 2};
  EXPECT_EQ(Another()->Open(1, other).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(ServedVectorsTest, ALostInstanceIsBroughtBackAndAPinnedOneIsNot) {
  for (const bool replays : {true, false}) {
    SCOPED_TRACE(replays);
    Sums service;
    if (!replays) service.description.set_loss(v1::Description::PINNED);
    std::atomic<int> fails = 0;
    service.say = [&](const v1::VectorStep& asked, v1::VectorPlayed&) {
      if (asked.reset() || fails-- <= 0) return grpc::Status::OK;
      return grpc::Status(grpc::StatusCode::INTERNAL, "KeyError");
    };
    const auto host = Host({&service});
    ASSERT_TRUE(host->Open(1, Starts(2)).ok());
    Step(*host, {1, 1});
    fails = 1;
    const auto moved = Step(*host, {1, 2});
    if (replays) {
      EXPECT_THAT(moved.step.observations, ElementsAre(SeedOf(0, 0), 2, SeedOf(1, 0), 3));
      fails = 100;
      const auto lost = Step(*host, {1, 1});
      EXPECT_EQ(lost.status.code(), StatusCode::kAborted);
      EXPECT_THAT(lost.status.message(), HasSubstr("environment sums at unix:"));
      EXPECT_THAT(lost.status.message(), HasSubstr("KeyError"));
    } else {
      EXPECT_EQ(moved.status.code(), StatusCode::kAborted);
      fails = 0;
      auto states = Starts(2);
      states[1].steps = 2;  // what it was is not to be had again: its next episode begins
      EXPECT_EQ(*Another()->Open(1, states), (std::vector<float>{SeedOf(0, 0), 0, SeedOf(1, 1), 0}));
    }
  }
}

TEST_F(ServedVectorsTest, WhatBreaksTheRulesIsNamed) {
  const std::map<std::string, std::function<void(v1::VectorPlayed&)>> wrong = {
      {"its observations have 8 bytes; expected 16, 8 for each of 2",
       [](v1::VectorPlayed& p) { p.mutable_observations()->resize(8); }},
      {"its rewards have 8 bytes; expected 16", [](v1::VectorPlayed& p) { p.mutable_rewards()->resize(8); }},
      {"its flags have 3 bytes; expected 2", [](v1::VectorPlayed& p) { p.mutable_flags()->push_back(0); }},
      {"a flag is 7; expected 0, 1 (terminated) or 2",
       [](v1::VectorPlayed& p) { (*p.mutable_flags())[0] = 7; }},
      {"its final_observations have 0 bytes; expected 8",
       [](v1::VectorPlayed& p) { (*p.mutable_flags())[1] = 2; }},
      {"its observation is nan, but a policy takes finite numbers of 32 bits alone; instance 1, step 0",
       [](v1::VectorPlayed& p) {
         p.mutable_observations()->resize(12);
         Append(p.mutable_observations(), std::numeric_limits<float>::quiet_NaN());
       }},
      {"its reward is", [](v1::VectorPlayed& p) {
         p.mutable_rewards()->resize(8);
         Append(p.mutable_rewards(), 1e300);
       }}};
  for (const auto& [words, break_it] : wrong) {
    SCOPED_TRACE(words);
    Sums service;
    service.say = [&](const v1::VectorStep& asked, v1::VectorPlayed& played) {
      if (!asked.reset()) break_it(played);
      return grpc::Status::OK;
    };
    const auto host = Host({&service});
    ASSERT_TRUE(host->Open(1, Starts(2)).ok());
    const auto moved = Step(*host, {0, 1});
    EXPECT_EQ(moved.status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(moved.status.message(), HasSubstr(words));
  }
  const Sums service;
  const auto host = Host({&service});
  ASSERT_TRUE(host->Open(1, Starts(2)).ok());
  EXPECT_EQ(Step(*host, {0}).status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Step(*host, {0, 3}).status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Step(*host, {0, 0.5F}).status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Step(*host, {0, 1}).status.ok());
}

TEST_F(ServedVectorsTest, AServiceThatIsAnotherOneIsNotPlayed) {
  Sums service;
  service.description.set_observation_size(3);
  const auto host = Host({&service});
  const auto opened = host->Open(1, Starts(2));
  EXPECT_EQ(opened.status().code(), StatusCode::kUnavailable);
  EXPECT_THAT(opened.status().message(),
              HasSubstr("describes itself with observations of 3 numbers and actions of 3 "
                        "choices; the job's policy is for observations of 2 numbers"));
}

}  // namespace
}  // namespace tidepool::workers
