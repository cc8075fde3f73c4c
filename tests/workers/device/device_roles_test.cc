#include "workers/device/device_roles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "core/base/process_memory.h"
#include "core/base/real_file_system.h"
#include "core/base/rng.h"
#include "core/config/load.h"
#include "core/storage/checkpoint.h"
#include "core/storage/manifest_file.h"
#include "tests/core/device/checked_device.h"
#include "tests/core/device/failing_device.h"
#include "tests/core/device/test_device.h"
#include "workers/data/model_folder.h"
#include "workers/data/weights_service.h"
#include "workers/device/memory_proof.h"

namespace tidepool::workers {
namespace {

std::string Bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

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
    roles_ = Make();
  }
  void TearDown() override {
    SharedBlock::RemoveAll(Folder());
    std::filesystem::remove_all(dir_);
  }
  static std::string RunId() { return "roles-test-" + std::to_string(getpid()); }

  static std::string Folder() { return SharedBlock::FolderOf(RunId(), "a secret"); }

  [[nodiscard]] std::unique_ptr<DeviceRoles> Make() const {
    return std::make_unique<DeviceRoles>(config_, dir_, Folder(), Parked(), device::TestDevice);
  }
  void WithCritic() {
    auto* rl = std::get_if<RlJob>(&config_.job);
    ASSERT_NE(rl, nullptr);
    rl->algorithm.name = "ppo";
    rl->algorithm.advantage = {.name = "gae"};
  }
  [[nodiscard]] std::string Parked() const { return dir_ + "/offload/device-0-inc0"; }

  // One step on random rows, of each step its own, whose rewards differ.
  void Train(int64_t step) {
    const auto outcome = TryTrain(step, [](const std::string&) { return true; });
    ASSERT_TRUE(outcome.ok()) << outcome.status().ToString();
  }
  StatusOr<TrainOutcome> TryTrain(int64_t step, const std::function<bool(const std::string&)>& progress) {
    std::vector<BatchRow> rows;
    Rng rng(static_cast<uint64_t>(step));
    for (int32_t k = 0; k < 4; ++k) {
      BatchRow row;
      row.trajectory.tid = {0, 0, k};
      row.trajectory.prompt = sample::PromptSegment({1, 2, 3});
      std::vector<int32_t> ids;
      for (int i = 0; i < 4; ++i) ids.push_back(static_cast<int32_t>(4 + rng.Below(20)));
      row.trajectory.segments = {
          {.ids = ids, .logprobs = std::vector<float>(4, logprob_), .versions = {{Version{0, 0}, 4}}}};
      row.reward = k;
      row.components = {static_cast<double>(k), 0};
      rows.push_back(std::move(row));
    }
    std::vector<BadRow> bad;
    return roles_->Train({step}, {0, step - 1}, rows, {.trains = progress, .evaluates = progress}, {}, bad);
  }
  // A checkpoint in a folder of this name, which the controller makes.
  StatusOr<std::vector<std::string>> Write(const std::string& name) {
    std::filesystem::create_directories(dir_ + "/" + name);
    return roles_->WriteCheckpoint(dir_ + "/" + name);
  }
  // The digest of the state after so many steps of a new run, parked before each but the first.
  uint64_t Trained(int64_t steps, bool parks) {
    roles_ = Make();
    EXPECT_EQ(roles_->InitState(), OkStatus());
    for (int64_t step = 1; step <= steps; ++step) {
      if (parks && step > 1) {
        EXPECT_EQ(roles_->Park(), OkStatus());
      }
      Train(step);
    }
    const auto parts = roles_->StateParts();
    EXPECT_TRUE(parts.ok()) << parts.status().ToString();
    return parts.ok() ? DeviceRoles::StateDigest(*parts) : 0;
  }
  [[nodiscard]] int64_t Free(int64_t capacity) const {
    return ProvenFree(capacity, plan_,
                      {.roles = roles_->held(), .further = roles_->further_bytes(), .resident_private = 0});
  }

  std::string dir_;
  float logprob_ = -3.0F;  // of the rows of TryTrain
  JobConfig config_;
  ProcessMemory plan_;
  RoleNeeds needs_;
  std::unique_ptr<DeviceRoles> roles_;
};

TEST_F(DeviceRolesTest, AFolderOfACheckpointThatCannotBeReadIsAnError) {
  roles_ = Make();
  ASSERT_EQ(roles_->InitState(), OkStatus());
  ASSERT_EQ(roles_->PrepareCheckpoint(), OkStatus());
  std::filesystem::create_directories(dir_ + "/broken/model");
  std::filesystem::create_symlink("loop", dir_ + "/broken/model/loop");
  const auto files = Write("broken");
  EXPECT_EQ(files.status().code(), StatusCode::kUnavailable) << files.status().ToString();
  EXPECT_THAT(files.status().message(), testing::HasSubstr("broken/model: cannot be read"));
}

// As on a GPU, whose memory has room for the weights once.
TEST_F(DeviceRolesTest, RolesOnOneDeviceShareItsWeights) {
  const auto device = std::make_shared<device::CheckedDevice>();
  roles_ = std::make_unique<DeviceRoles>(config_, dir_, Folder(), Parked(), [&] { return device; });
  ASSERT_EQ(roles_->InitState(), OkStatus());
  ASSERT_EQ(roles_->PrepareRollout(), OkStatus());
  const int64_t generates = device->held_bytes();
  Train(1);
  const int64_t strips = roles_->held().weights - roles_->weight_bytes();  // for both roles' products
  const int64_t adds = roles_->held(Role::kActor).total() + strips;
  EXPECT_LE(device->held_bytes() - generates, adds + roles_->weight_bytes() / 4)
      << "a second copy of the weights";
  // What the trainer wrote is what the engine computes with, also after the trainer has gone.
  const auto trained = roles_->WeightsDigest();
  ASSERT_TRUE(trained.ok());
  ASSERT_EQ(roles_->Park(), OkStatus());
  Train(2);
  EXPECT_NE(*roles_->WeightsDigest(), *trained);
}

// Counts copies of all weights: those with the place to which so many bytes go first.
class CountingDevice : public device::CheckedDevice {
 public:
  using CheckedDevice::Upload;
  void Upload(void* to, const void* from_host, int64_t bytes) override {
    if (weights == nullptr && bytes == size) weights = to;
    up += to == weights && bytes == size ? 1 : 0;
    CheckedDevice::Upload(to, from_host, bytes);
  }
  void Download(void* to_host, const void* from, int64_t bytes) override {
    down += from == weights && bytes == size ? 1 : 0;
    CheckedDevice::Download(to_host, from, bytes);
  }
  const void* weights = nullptr;
  int64_t size = 0, up = 0, down = 0;
};

TEST_F(DeviceRolesTest, WeightsComeDownOnceAVersionAndGoUpOnceARestore) {
  const auto device = std::make_shared<CountingDevice>();
  roles_ = std::make_unique<DeviceRoles>(config_, dir_, Folder(), Parked(), [&] { return device; });
  ASSERT_EQ(roles_->InitState(), OkStatus());
  device->size = roles_->weight_bytes();
  const auto publish = [&](int64_t step) {
    ASSERT_EQ(roles_->Publish({0, step}, *roles_->WeightsDigest(), /*shared=*/true), OkStatus());
    ASSERT_EQ(roles_->CopyRecovery({step}), OkStatus());
    ASSERT_EQ(roles_->PrepareRollout(), OkStatus());
    roles_->UseVersion({0, step});
  };
  publish(0);
  ASSERT_NE(device->weights, nullptr);
  device->up = device->down = 0;
  for (const int64_t step : {1, 2, 3}) {
    Train(step);
    publish(step);
    EXPECT_EQ(device->down, step);
    EXPECT_EQ(device->up, 0);
  }
  const uint64_t digest = *roles_->WeightsDigest();

  Train(4);
  ASSERT_EQ(roles_->RestoreFromRecovery({3}), OkStatus());
  EXPECT_EQ(*roles_->WeightsDigest(), digest);
  publish(3);
  EXPECT_EQ(device->up, 1);
  Train(4);
  publish(4);
  ASSERT_EQ(roles_->Park(), OkStatus());
  Train(5);
  publish(5);
  EXPECT_EQ(device->up, 1);

  ASSERT_TRUE(Write("5").ok());
  ASSERT_EQ(roles_->RestoreFromCheckpoint(dir_ + "/5", {5}), OkStatus());
  publish(5);
  EXPECT_EQ(device->up, 2);
}

// No batch is to blame: the exception ends the worker at its door, whose slot is lost.
TEST_F(DeviceRolesTest, ADeviceThatFailsUnderATrainerIsNoErrorOfTheStep) {
  const auto device = std::make_shared<device::FailingDevice<device::CheckedDevice>>();
  roles_ = std::make_unique<DeviceRoles>(config_, dir_, Folder(), Parked(), [&] { return device; });
  ASSERT_EQ(roles_->InitState(), OkStatus());
  device->fail = device::ThrowAsLibTorchDoes;
  EXPECT_THROW(Train(1), device::DeviceFailed) << "as it is made";
  device->fail = nullptr;
  Train(1);
  device->fail = device::ThrowAsLibTorchDoes;
  try {
    Train(2);
    FAIL() << "nothing was thrown";
  } catch (const device::DeviceFailed& e) {
    EXPECT_STREQ(e.what(), "CUDA error: an illegal memory access was encountered");
  }
  device->fail = nullptr;  // or what goes could not say that its weights are lost
}

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
  ASSERT_EQ(roles_->Publish({0, 1}, digest + 1, /*shared=*/true), OkStatus());
  DeviceRoles engine(config_, dir_, Folder(), dir_ + "/offload/engine");
  EXPECT_EQ(engine.LoadFromSharedMemory({0, 1}).status().code(), StatusCode::kDataLoss);
  EXPECT_FALSE(engine.loaded());
  EXPECT_FALSE(engine.WeightsDigest().ok());
  ASSERT_EQ(roles_->Publish({0, 2}, digest, /*shared=*/true), OkStatus());
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

TEST_F(DeviceRolesTest, ASlotThatOnlyGeneratesHoldsItsWeightsOnceAndDoesNotTrain) {
  ASSERT_EQ(roles_->InitState(), OkStatus());
  const uint64_t digest = *roles_->WeightsDigest();
  const auto publish = [&](int64_t version) {
    ASSERT_EQ(roles_->Publish({0, version}, digest, /*shared=*/true), OkStatus());
  };
  publish(1);
  DeviceRoles engine(config_, dir_, Folder(), dir_ + "/offload/engine", MakeCpuDevice, /*trains=*/false);
  const auto held = [&] { return engine.held().weights; };
  ASSERT_EQ(engine.PrepareRollout(), OkStatus());
  EXPECT_EQ(held(), engine.weight_bytes()) << "before any have come";
  for (const int64_t version : {1, 2}) {
    if (version == 2) publish(2);
    const auto loaded = engine.LoadFromSharedMemory({0, version});
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    EXPECT_EQ(*loaded, digest);
    engine.UseVersion({0, version});
    EXPECT_EQ(held(), engine.weight_bytes());
    EXPECT_EQ(engine.loaded()->digest, digest);
    EXPECT_FALSE(engine.LoadFromSharedMemory({0, 9}).ok());  // a load that fails between two that do not
    EXPECT_FALSE(engine.loaded());
  }
  EXPECT_EQ(engine.RestoreFromCheckpoint(dir_, {1}).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(engine.FetchState("127.0.0.1:1", {}, {1}).code(), StatusCode::kFailedPrecondition);
}

TEST_F(DeviceRolesTest, AStepThatEndsBetweenItsUpdatesLeavesNoStateToTrainOnFrom) {
  config_.train.epochs = 2;
  roles_ = Make();
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

// The run goes on from the state that it had.
TEST_F(DeviceRolesTest, AStepThatIsNotFiniteLeavesTheStateBeforeIt) {
  std::get<RlJob>(config_.job).algorithm.correction = "raw";  // weighs by what was recorded
  roles_ = Make();
  ASSERT_EQ(roles_->InitState(), OkStatus());
  Train(1);
  const uint64_t before = *roles_->WeightsDigest();
  logprob_ = -1e30F;
  const auto done = TryTrain(2, [](const std::string&) { return true; });
  ASSERT_TRUE(done.ok()) << done.status().ToString();
  EXPECT_FALSE(done->finite);
  ASSERT_TRUE(roles_->state());
  EXPECT_EQ(roles_->state()->step, StepNumber{1});
  EXPECT_EQ(*roles_->WeightsDigest(), before);
  logprob_ = -3.0F;
  Train(2);
  EXPECT_EQ(roles_->state()->step, StepNumber{2});
}

// --- train.offload_optimizer

TEST_F(DeviceRolesTest, AParkedTrainerHoldsNothingAndTrainsOnBitForBit) {
  const uint64_t want = Trained(3, /*parks=*/false);
  EXPECT_EQ(Trained(3, /*parks=*/true), want);
  const uint64_t weights = *roles_->WeightsDigest();
  EXPECT_FALSE(std::filesystem::exists(Parked())) << "what came back is still on disk";
  EXPECT_GT(roles_->held().optimizer, 0);
  const int64_t updates = roles_->updates();

  ASSERT_EQ(roles_->Park(), OkStatus());
  EXPECT_TRUE(roles_->parked());
  EXPECT_EQ(roles_->held().total(), roles_->held().weights);
  EXPECT_EQ(roles_->further_bytes(), 0);
  EXPECT_FALSE(std::filesystem::is_empty(Parked()));
  ASSERT_TRUE(roles_->state()) << "it is elsewhere, but not lost";
  EXPECT_EQ(roles_->state()->step, StepNumber{3});
  EXPECT_EQ(*roles_->WeightsDigest(), weights);
  ASSERT_EQ(roles_->PrepareRollout(), OkStatus()) << "the weights are there to generate with";

  const auto parts = roles_->StateParts();  // who asks for the state gets it
  ASSERT_TRUE(parts.ok()) << parts.status().ToString();
  EXPECT_EQ(DeviceRoles::StateDigest(*parts), want);
  EXPECT_EQ(roles_->updates(), updates);
  EXPECT_FALSE(roles_->parked());

  ASSERT_EQ(roles_->Park(), OkStatus());
  roles_.reset();
  EXPECT_FALSE(std::filesystem::exists(Parked())) << "nobody comes back for it";
}

TEST_F(DeviceRolesTest, ACriticIsParkedWithItsOptimizer) {
  WithCritic();
  const uint64_t want = Trained(2, /*parks=*/false);
  EXPECT_GT(roles_->further_bytes(), 0);
  EXPECT_EQ(Trained(2, /*parks=*/true), want);
}

// The trainer computes with what came, wherever its device keeps it, and not with what was there before.
TEST_F(DeviceRolesTest, AStateThatComesFromAnywhereTrainsOnBitForBit) {
  WithCritic();
  const uint64_t want = Trained(3, /*parks=*/false);
  Trained(2, /*parks=*/false);
  ASSERT_EQ(roles_->PrepareCheckpoint(), OkStatus());
  ASSERT_TRUE(Write("checkpoint").ok());
  ASSERT_EQ(roles_->CopyRecovery({2}), OkStatus());
  auto server = WeightsServer::Start("127.0.0.1", {"token"}, 1 << 20,
                                     [donor = roles_.get()](const WantedBytes&) -> StatusOr<PublishedBytes> {
                                       TP_ASSIGN_OR_RETURN(auto parts, donor->StateParts());
                                       const uint64_t digest = DeviceRoles::StateDigest(parts);
                                       return PublishedBytes{.parts = std::move(parts), .digest = digest};
                                     });
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  const std::unique_ptr<DeviceRoles> donor = std::exchange(roles_, Make());

  const auto trains_on = [&](const char* from) {
    Train(3);
    EXPECT_EQ(DeviceRoles::StateDigest(*roles_->StateParts()), want) << from;
  };
  ASSERT_EQ(roles_->FetchState((*server)->address(), {"token"}, {2}), OkStatus());
  trains_on("another worker");
  ASSERT_EQ(roles_->RestoreFromCheckpoint(dir_ + "/checkpoint", {2}), OkStatus());
  trains_on("a checkpoint");
  ASSERT_EQ(roles_->RestoreFromRecovery({2}), OkStatus());
  trains_on("a recovery copy");
}

TEST_F(DeviceRolesTest, ACheckpointOfAParkedStateIsTheSameAndLeavesItParked) {
  Trained(2, /*parks=*/false);
  ASSERT_EQ(roles_->PrepareCheckpoint(), OkStatus());
  const auto files = Write("held");
  ASSERT_TRUE(files.ok()) << files.status().ToString();
  ASSERT_EQ(roles_->Park(), OkStatus());
  ASSERT_EQ(roles_->PrepareCheckpoint(), OkStatus());
  const auto parked = Write("parked");
  ASSERT_TRUE(parked.ok()) << parked.status().ToString();
  EXPECT_EQ(*parked, *files);
  for (const std::string& file : *files)
    EXPECT_EQ(Bytes(dir_ + "/parked/" + file), Bytes(dir_ + "/held/" + file)) << file;
  EXPECT_EQ(roles_->held().total(), roles_->held().weights) << "it took the memory of another role";
  Train(3);
}

// From one rank to three, to two, back to one: the state is the same to the bit, and what several ranks write
// together has each byte once. A critic's is shared as well.
TEST_F(DeviceRolesTest, ACheckpointIsReadByAnyNumberOfRanks) {
  WithCritic();
  const uint64_t want = Trained(2, /*parks=*/false);
  ASSERT_EQ(roles_->PrepareCheckpoint(), OkStatus());
  ASSERT_TRUE(Write("1").ok());
  std::string from = dir_ + "/1";
  for (const int64_t world : {3, 2, 1}) {
    const std::string to = dir_ + "/again-" + std::to_string(world);
    std::filesystem::create_directories(to);
    std::set<std::string> files;
    for (int64_t rank = 0; rank < world; ++rank) {
      roles_ = Make();
      ASSERT_EQ(roles_->RestoreFromCheckpoint(from, {2}, {rank, world}), OkStatus());
      EXPECT_EQ(roles_->shard(), (Shard{rank, world}));
      if (rank == 1) {  // from files, as from memory
        ASSERT_EQ(roles_->Park(), OkStatus());
      }
      ASSERT_EQ(roles_->PrepareCheckpoint(), OkStatus());
      const auto written = roles_->WriteCheckpoint(to, /*part=*/rank > 0);
      ASSERT_TRUE(written.ok()) << written.status().ToString();
      for (const std::string& file : *written) EXPECT_TRUE(files.insert(file).second) << file << " was there";
    }
    std::uintmax_t bytes = 0;
    for (const auto& entry : std::filesystem::directory_iterator(to + "/trainer")) {
      EXPECT_TRUE(files.contains("trainer/" + entry.path().filename().string()));
      if (entry.path().filename().string().starts_with("m.")) bytes += entry.file_size();
    }
    EXPECT_EQ(bytes, std::filesystem::file_size(dir_ + "/1/trainer/m.bin"));
    from = to;
  }
  roles_ = Make();
  ASSERT_EQ(roles_->RestoreFromCheckpoint(from, {2}), OkStatus());
  const auto parts = roles_->StateParts();
  ASSERT_TRUE(parts.ok());
  EXPECT_EQ(DeviceRoles::StateDigest(*parts), want);
  Train(3);
}

TEST_F(DeviceRolesTest, ACheckpointWithoutSomePartIsNamedAndNotRead) {
  Trained(1, /*parks=*/false);
  ASSERT_EQ(roles_->PrepareCheckpoint(), OkStatus());
  ASSERT_TRUE(Write("1").ok());
  const std::string to = dir_ + "/two";
  std::filesystem::create_directories(to);
  std::string lost;
  for (int64_t rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(roles_->RestoreFromCheckpoint(dir_ + "/1", {1}, {rank, 2}), OkStatus());
    ASSERT_EQ(roles_->PrepareCheckpoint(), OkStatus());
    const auto written = roles_->WriteCheckpoint(to, /*part=*/rank > 0);
    ASSERT_TRUE(written.ok());
    for (const std::string& file : *written)
      if (rank == 0 && file.starts_with("trainer/v.")) lost = to + "/" + file;
  }
  const auto refused = [&] {
    const Status restored = roles_->RestoreFromCheckpoint(to, {1});
    EXPECT_EQ(restored.code(), StatusCode::kDataLoss) << restored.ToString();
    return restored.message();
  };
  const std::string v = to + "/trainer/v";
  std::filesystem::copy_file(lost, v + ".0-4.bin");
  EXPECT_NE(refused().find(v + ".0-4.bin: has "), std::string::npos);
  std::filesystem::resize_file(v + ".0-4.bin", 4);
  EXPECT_NE(refused().find("elements [0, 4) of"), std::string::npos);
  EXPECT_NE(refused().find("are in several parts"), std::string::npos);
  std::filesystem::remove(v + ".0-4.bin");
  std::filesystem::remove(lost);
  EXPECT_NE(refused().find("are in no part"), std::string::npos);
}

TEST_F(DeviceRolesTest, WhatIsNotTheManifestsIsNotRead) {
  Trained(1, /*parks=*/false);
  ASSERT_EQ(roles_->PrepareCheckpoint(), OkStatus());
  const auto written = Write("1");
  ASSERT_TRUE(written.ok());
  const std::string dir = dir_ + "/1";
  RealFileSystem disk;
  storage::Manifest manifest;
  for (const std::string& file : *written) {
    const std::string path = dir + "/" + file;
    manifest.files.push_back({file, static_cast<int64_t>(std::filesystem::file_size(path)),
                              storage::DigestFile(disk, path).value()});
  }
  std::ofstream(dir + "/manifest.json") << storage::ManifestToJson(manifest);
  // Of nobody: without the manifest it would have these bytes twice.
  std::ofstream(dir + "/trainer/v.0-4.bin") << "abcd";
  ASSERT_EQ(roles_->RestoreFromCheckpoint(dir, {1}), OkStatus());
  // A byte that this rank does not need.
  const std::string v = dir + "/trainer/v.bin";
  std::fstream file(v, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-1, std::ios::end).put('\x5a').flush();
  const Status restored = roles_->RestoreFromCheckpoint(dir, {1}, {0, 2});
  EXPECT_EQ(restored.code(), StatusCode::kDataLoss);
  EXPECT_NE(restored.message().find(v + ": is not what the checkpoint's manifest says"), std::string::npos)
      << restored.message();
}

// The files of a state that lies where the host may not touch it are those of one in the host's memory.
TEST_F(DeviceRolesTest, AStateOnAnotherDeviceIsWrittenAndReadInPieces) {
  constexpr int64_t kBytes = (int64_t{9} << 20) + 12;
  std::vector<std::byte> bytes(kBytes);
  for (size_t i = bytes.size() / 2; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7919 >> 7);
  device::CheckedDevice device;
  const auto memory = device.Put(std::span<const std::byte>(bytes));
  const auto back = *device.Allocate(kBytes);
  const std::vector<train::NamedBytes> there = {{"m", {device, memory->data(), kBytes}}},
                                       read = {{"m", {device, back->data(), kBytes}}};
  EXPECT_EQ(DigestOf(there[0].bytes), DigestOf(bytes));

  const std::string path = dir_ + "/part.bin";
  ASSERT_EQ(WritePart(path, there[0].bytes), OkStatus());
  std::vector<std::byte> of_file(bytes.size());
  ASSERT_EQ(ReadPart(path, of_file), OkStatus());
  EXPECT_TRUE(of_file == bytes);
  ASSERT_EQ(ReadPart(path, read[0].bytes), OkStatus());
  EXPECT_EQ(DigestOf(read[0].bytes), DigestOf(bytes));

  ParkedState parked(dir_ + "/parked");
  ASSERT_EQ(parked.Write(there), OkStatus());
  device.Zero(back->data(), kBytes);
  ASSERT_EQ(parked.Read(read), OkStatus());
  EXPECT_EQ(DigestOf(read[0].bytes), DigestOf(bytes));

  SharedBlock block(Folder(), "recovery");
  ASSERT_EQ(block.Write({.number = 1}, {there[0].bytes}), OkStatus());
  device.Zero(back->data(), kBytes);
  ASSERT_TRUE(block.Read(1, -1, {read[0].bytes}).ok());
  EXPECT_EQ(DigestOf(read[0].bytes), DigestOf(bytes));
}

TEST_F(DeviceRolesTest, WhatIsZeroTakesNoRoomAndComesBack) {
  std::vector<std::byte> bytes(size_t{4} << 20, std::byte{0});
  const auto on_disk = [](const std::string& path) {
    struct stat info {};
    EXPECT_EQ(::stat(path.c_str(), &info), 0);
    return info.st_blocks * 512;
  };
  const std::string zeros = dir_ + "/zeros.bin", mixed = dir_ + "/mixed.bin";
  ASSERT_EQ(WritePart(zeros, bytes), OkStatus());
  EXPECT_EQ(std::filesystem::file_size(zeros), bytes.size());
  EXPECT_LT(on_disk(zeros), 64 << 10);
  for (const size_t at : {size_t{0}, size_t{1} << 20, (size_t{2} << 20) + 77, bytes.size() - 1}) {
    bytes[at] = std::byte{7};
    ASSERT_EQ(WritePart(mixed, bytes), OkStatus());
    std::vector<std::byte> back(bytes.size(), std::byte{9});
    ASSERT_EQ(ReadPart(mixed, back), OkStatus());
    EXPECT_EQ(back, bytes);
  }
  EXPECT_LT(on_disk(mixed), 1 << 20);
  // Before the first step all of the optimizer's state is zero; parked and written from there it is, too.
  Trained(0, /*parks=*/true);
  ASSERT_EQ(roles_->PrepareCheckpoint(), OkStatus());
  ASSERT_TRUE(Write("first").ok());
  for (const char* part : {"m", "v"})
    EXPECT_LT(on_disk(dir_ + "/first/trainer/" + part + ".bin"), 64 << 10) << part;
}

TEST_F(DeviceRolesTest, AModelThatIsThereIsNotWritten) {
  Trained(0, /*parks=*/false);
  std::filesystem::create_directories(dir_ + "/first/model");
  std::ofstream(dir_ + "/first/model/model.safetensors") << "of the base model";
  ASSERT_EQ(roles_->PrepareCheckpoint(), OkStatus());
  const auto files = Write("first");
  ASSERT_TRUE(files.ok()) << files.status().ToString();
  EXPECT_EQ(Bytes(dir_ + "/first/model/model.safetensors"), "of the base model");
  EXPECT_EQ((*files)[0], "model/model.safetensors");
}

TEST_F(DeviceRolesTest, AParkedFileThatChangedIsNamedAndLeavesNoState) {
  for (const bool shorter : {false, true}) {
    Trained(2, /*parks=*/false);
    ASSERT_EQ(roles_->Park(), OkStatus());
    std::string largest;
    for (const auto& entry : std::filesystem::directory_iterator(Parked()))
      if (largest.empty() || entry.file_size() > std::filesystem::file_size(largest)) largest = entry.path();
    std::string bytes = Bytes(largest);
    if (shorter) {
      bytes.pop_back();
    } else {
      bytes[bytes.size() / 2] ^= 1;
    }
    std::ofstream(largest, std::ios::binary) << bytes;

    // A checkpoint does not take it for a state either.
    ASSERT_EQ(roles_->PrepareCheckpoint(), OkStatus());
    EXPECT_EQ(Write("checkpoint").status().code(), StatusCode::kDataLoss);
    const auto outcome = TryTrain(3, [](const std::string&) { return true; });
    EXPECT_EQ(outcome.status().code(), StatusCode::kDataLoss);
    EXPECT_NE(outcome.status().message().find(largest), std::string::npos) << outcome.status().message();
    EXPECT_FALSE(roles_->state());
    EXPECT_FALSE(roles_->PrepareCheckpoint().ok()) << "a fresh optimizer would be saved for the lost one";
    ASSERT_EQ(roles_->InitState(), OkStatus());
    Train(1);  // the worker is as good as before
  }
}

TEST_F(DeviceRolesTest, AStateThatIsReplacedDoesNotReadWhatWasParked) {
  Trained(2, /*parks=*/false);
  ASSERT_EQ(roles_->PrepareCheckpoint(), OkStatus());
  ASSERT_TRUE(Write("checkpoint").ok());
  ASSERT_EQ(roles_->CopyRecovery({2}), OkStatus());
  const auto digest = [&] { return DeviceRoles::StateDigest(*roles_->StateParts()); };
  const uint64_t want = digest();
  Train(3);
  ASSERT_EQ(roles_->Park(), OkStatus());
  ASSERT_EQ(roles_->RestoreFromCheckpoint(dir_ + "/checkpoint", {2}), OkStatus());
  EXPECT_EQ(digest(), want);
  Train(3);
  ASSERT_EQ(roles_->Park(), OkStatus());
  ASSERT_EQ(roles_->RestoreFromRecovery({2}), OkStatus());
  EXPECT_EQ(digest(), want);
  ASSERT_EQ(roles_->Park(), OkStatus());
  ASSERT_EQ(roles_->InitState(), OkStatus());
  EXPECT_NE(digest(), want);

  // Weights of others are the end of the state: what was parked with the old ones goes.
  const uint64_t weights = *roles_->WeightsDigest();
  ASSERT_EQ(roles_->Publish({0, 1}, weights, /*shared=*/true), OkStatus());
  ASSERT_EQ(roles_->Park(), OkStatus());
  ASSERT_TRUE(roles_->LoadFromSharedMemory({0, 1}).ok());
  EXPECT_FALSE(roles_->parked());
  EXPECT_FALSE(std::filesystem::exists(Parked()));
}

TEST_F(DeviceRolesTest, ATrainerThatCannotBeWrittenStays) {
  std::ofstream(dir_ + "/offload") << "a file where the folder should be";
  const uint64_t want = Trained(2, /*parks=*/false);
  EXPECT_EQ(roles_->Park().code(), StatusCode::kUnavailable);
  EXPECT_FALSE(roles_->parked());
  EXPECT_EQ(DeviceRoles::StateDigest(*roles_->StateParts()), want);
  std::filesystem::remove(dir_ + "/offload");

  // It takes some of it, then no more.
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{.rlim_cur = 1000, .rlim_max = old.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &small);
  const Status parked = roles_->Park();
  setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_EQ(parked.code(), StatusCode::kResourceExhausted) << parked.ToString();
  EXPECT_FALSE(roles_->parked());
  EXPECT_FALSE(std::filesystem::exists(Parked()));
  Train(3);
}

TEST_F(DeviceRolesTest, WithOffloadOneRoleAtATimeProvesEnough) {
  config_.train.offload_optimizer = Offload::kDisk;
  const auto plan = PlanMemory(config_);
  plan_ = plan->processes[0];
  needs_ = NeedsOfRoles(*plan);
  roles_ = Make();
  ASSERT_EQ(roles_->InitState(), OkStatus());
  Train(1);
  // Room for the weights and the larger role.
  const int64_t capacity = plan_.total();
  EXPECT_LT(Free(capacity), needs_.rollout) << "the trainer holds its optimizer";
  ASSERT_EQ(roles_->Park(), OkStatus());
  EXPECT_GE(Free(capacity), needs_.rollout);
  ASSERT_EQ(roles_->PrepareRollout(), OkStatus());
  EXPECT_LT(Free(capacity), needs_.actor);
  roles_->Release(Role::kRollout);
  EXPECT_GE(Free(capacity), needs_.actor);
  Train(2);
  EXPECT_LE(roles_->held().total(), plan_.total());
}

}  // namespace
}  // namespace tidepool::workers
