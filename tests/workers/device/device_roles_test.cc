#include "workers/device/device_roles.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "core/config/load.h"
#include "workers/data/model_folder.h"
#include "workers/device/memory_proof.h"

namespace tidepool::workers {
namespace {

// The real roles of a slot that may hold both, on a small model whose gradients and caches are megabytes.
class DeviceRolesTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() / ("tidepool-roles-" + std::to_string(getpid()));
    std::filesystem::create_directories(dir_);
    const auto loaded =
        config::LoadConfig(std::string(TIDEPOOL_SOURCE_DIR) + "/configs/test/rl_colocated.yaml");
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    config_ = loaded->config;
    config_.model.init->hidden_size = 256, config_.model.init->intermediate_size = 1024;
    config_.rollout.kv_cache_tokens = 16384;
    ASSERT_EQ(WriteInitFolder(*config_.model.init, config_.model.dtype, dir_), OkStatus());
    const auto plan = PlanMemory(config_);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    plan_ = plan->processes[0];
    needs_ = NeedsOfRoles(*plan);
    roles_ = std::make_unique<DeviceRoles>(config_, dir_, Folder());
  }
  void TearDown() override {
    SharedBlock::RemoveAll(Folder());
    std::filesystem::remove_all(dir_);
  }
  static std::string RunId() { return "roles-test-" + std::to_string(getpid()); }

  static std::string Folder() { return SharedBlock::FolderOf(RunId(), "a secret"); }

  // One step on rows whose rewards differ.
  void Train(int64_t step) {
    const auto outcome = TryTrain(step, [](const std::string&) { return true; });
    ASSERT_TRUE(outcome.ok()) << outcome.status().ToString();
  }
  StatusOr<TrainOutcome> TryTrain(int64_t step, const TrainProgress& progress) {
    std::vector<BatchRow> rows;
    for (int32_t k = 0; k < 4; ++k) {
      BatchRow row;
      row.trajectory.tid = {0, 0, k};
      row.trajectory.prompt = sample::PromptSegment({1, 2, 3});
      row.trajectory.segments = {
          {.ids = {4, 5, 6, 7}, .logprobs = std::vector<float>(4, -3.0F), .versions = {{Version{0, 0}, 4}}}};
      row.reward = k;
      row.components = {static_cast<double>(k), 0};
      rows.push_back(std::move(row));
    }
    return roles_->Train({step}, {0, step - 1}, rows, progress);
  }
  [[nodiscard]] int64_t Free(int64_t capacity) const {
    return ProvenFree(capacity, plan_,
                      {.roles = roles_->held(), .further = roles_->further_bytes(), .resident_private = 0});
  }

  std::string dir_;
  JobConfig config_;
  ProcessMemory plan_;
  RoleNeeds needs_;
  std::unique_ptr<DeviceRoles> roles_;
};

TEST_F(DeviceRolesTest, ARoleThatKeepsItsMemoryProvesTooLittle) {
  ASSERT_GT(needs_.rollout, 0);
  ASSERT_GT(needs_.actor, 0);
  ASSERT_EQ(roles_->InitState(), OkStatus());
  // Room for what stays and for the larger role, not for both.
  const int64_t capacity = plan_.process + plan_.resident() + std::max(needs_.rollout, needs_.actor);
  EXPECT_GE(Free(capacity), needs_.actor);
  Train(1);
  EXPECT_GT(roles_->held().passing(), 0);
  EXPECT_LE(roles_->held().total(), plan_.total());  // the plan is an upper bound
  EXPECT_LT(Free(capacity), std::max(needs_.rollout, needs_.actor)) << "the actor has kept its memory";
  roles_->Release(Role::kActor);
  EXPECT_EQ(roles_->held().passing(), 0);
  EXPECT_GE(Free(capacity), needs_.rollout);

  ASSERT_EQ(roles_->PrepareRollout(), OkStatus());
  EXPECT_GT(roles_->held().kv, 0);
  EXPECT_LT(Free(capacity), needs_.rollout) << "the rollout has kept its memory";
  roles_->Release(Role::kRollout);
  EXPECT_GE(Free(capacity), needs_.actor);
  Train(2);  // and all of it comes back when it is wanted
}

TEST_F(DeviceRolesTest, WhatTheSystemCountsIsHeldTooEvenIfTheRolesForgotIt) {
  ASSERT_EQ(roles_->InitState(), OkStatus());
  const int64_t capacity = int64_t{4} << 30;
  HeldMemory held{.roles = roles_->held(), .further = 0, .resident_private = 0};
  const int64_t counted = ProvenFree(capacity, plan_, held);
  held.resident_private = int64_t{3} << 30;
  EXPECT_LT(ProvenFree(capacity, plan_, held), int64_t{1} << 30);
  EXPECT_GT(counted, int64_t{3} << 30);
  EXPECT_GT(MachineMemory(), 0);
  EXPECT_GT(PrivateResidentBytes(), 0);
}

TEST_F(DeviceRolesTest, WeightsAreOfNoVersionUntilTheirDigestIsVerified) {
  ASSERT_EQ(roles_->InitState(), OkStatus());
  EXPECT_FALSE(roles_->loaded());
  ASSERT_TRUE(roles_->state());
  EXPECT_EQ(roles_->state()->step, StepNumber{0});
  const uint64_t digest = *roles_->WeightsDigest();
  roles_->UseVersion({0, 0});
  ASSERT_TRUE(roles_->loaded());
  EXPECT_EQ(roles_->loaded()->version, (Version{0, 0}));
  EXPECT_EQ(roles_->loaded()->digest, digest);

  // Another worker publishes other bytes than it says.
  ASSERT_EQ(roles_->PublishToSharedMemory({0, 1}, digest + 1), OkStatus());
  DeviceRoles engine(config_, dir_, Folder());
  EXPECT_EQ(engine.LoadFromSharedMemory({0, 1}).status().code(), StatusCode::kDataLoss);
  EXPECT_FALSE(engine.loaded());
  EXPECT_FALSE(engine.WeightsDigest().ok());
  ASSERT_EQ(roles_->PublishToSharedMemory({0, 2}, digest), OkStatus());
  ASSERT_TRUE(engine.LoadFromSharedMemory({0, 2}).ok());
  engine.UseVersion({0, 2});
  ASSERT_TRUE(engine.loaded());
  EXPECT_EQ(engine.loaded()->version, (Version{0, 2}));
  EXPECT_FALSE(engine.state());
  // A load that does not come about leaves nothing to serve.
  EXPECT_FALSE(engine.LoadFromSharedMemory({0, 9}).ok());
  EXPECT_FALSE(engine.loaded());

  // After a step the weights are those of the state, and of no version until they are published.
  Train(1);
  EXPECT_FALSE(roles_->loaded());
  ASSERT_TRUE(roles_->state());
  EXPECT_EQ(roles_->state()->step, StepNumber{1});
  EXPECT_EQ(roles_->state()->digest, *roles_->WeightsDigest());
}

TEST_F(DeviceRolesTest, AStepThatEndsBetweenItsUpdatesLeavesNoStateToTrainOnFrom) {
  config_.train.epochs = 2;
  roles_ = std::make_unique<DeviceRoles>(config_, dir_, Folder());
  ASSERT_EQ(roles_->InitState(), OkStatus());
  // Called off before the first update: nothing has changed.
  EXPECT_EQ(TryTrain(1, [](const std::string&) { return false; }).status().code(), StatusCode::kAborted);
  ASSERT_TRUE(roles_->state());
  EXPECT_EQ(roles_->state()->step, StepNumber{0});

  EXPECT_EQ(TryTrain(1, [&](const std::string&) { return roles_->updates() == 0; }).status().code(),
            StatusCode::kAborted);
  EXPECT_EQ(roles_->updates(), 1);
  EXPECT_FALSE(roles_->state());
  EXPECT_FALSE(roles_->StateParts().ok());
  const auto next = TryTrain(1, [](const std::string&) { return true; });
  EXPECT_EQ(next.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(roles_->updates(), 1);
}

}  // namespace
}  // namespace tidepool::workers
