#include "workers/device/device_worker.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "core/config/load.h"
#include "core/config/render.h"
#include "workers/data/model_folder.h"
#include "workers/data/shared_arena.h"
#include "workers/device/memory_plan.h"
#include "workers/net/hub.h"
#include "workers/net/mailbox.h"

namespace tidepool::workers {
namespace {

// A whole device worker, as its process runs it, with a hub whose other side is this test.
class DeviceWorkerTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() / ("tidepool-device-worker-" + std::to_string(getpid()));
    std::filesystem::create_directories(dir_);
    const auto tokens = JobTokens::OpenOrCreate(dir_ / "security");
    ASSERT_TRUE(tokens.ok()) << tokens.status().ToString();
    auto loaded = config::LoadConfig(
        std::string(TIDEPOOL_SOURCE_DIR) + "/configs/test/rl_colocated.yaml",
        {"model.init.hidden_size=256", "model.init.intermediate_size=1024", "rollout.kv_cache_tokens=65536",
         "observe.trace=false", "train.offload_optimizer=" + offload_});
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    const JobConfig& config = loaded->config;
    ASSERT_EQ(WriteInitFolder(*config.model.init, config.model.dtype, dir_ / "model"), OkStatus());
    const auto plan = PlanMemory(config);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    kv_bytes_ = plan->processes[0].rollout.kv;
    optimizer_bytes_ = plan->processes[0].actor.optimizer;
    HubOptions options;
    options.run_id = "run";
    hub_ = std::move(*Hub::Start(
        options, *tokens, [this](HubEvent e) { inbox_.Put(std::move(e)); },
        [](int64_t, StepNumber, Incarnation,
           int64_t) -> StatusOr<std::shared_ptr<const std::vector<BatchRow>>> {
          return NotFound("no lease is open");
        }));
    worker_ = std::thread([this] {
      exit_code_ = RunDeviceWorker({hub_->address(), dir_ / "security/device.token", "run", "", 0}).exit_code;
    });
    const auto opened = Next<HubOpened>();
    ASSERT_TRUE(opened);
    connection_ = opened->connection;
    hub_->Send(connection_, {0, 0, down::Attached{1, 0}});
    down::Welcome welcome;
    welcome.inc = {0};
    welcome.slots = {{0}};
    welcome.permit_s = 600;
    welcome.config_yaml = config::ResolvedYaml(*loaded);
    welcome.run_dir = dir_;
    welcome.run_id = "run";
    welcome.model_dir = dir_ / "model";
    welcome.shared_memory = SharedBlock::FolderOf(dir_, "a secret");
    Say(welcome);
  }
  void TearDown() override {
    Say(down::Shutdown{"the test is over"});
    worker_.join();
    EXPECT_EQ(exit_code_, ends_with_);
    hub_.reset();
    std::filesystem::remove_all(dir_);
  }
  void Say(ToWorkerBody body) { hub_->Send(connection_, {++said_, heard_, std::move(body)}); }

  template <typename T>
  std::optional<T> Next() {
    for (int i = 0; i < 600; ++i) {
      for (HubEvent& e : inbox_.Take(std::chrono::milliseconds(100), 1)) {
        if constexpr (std::is_same_v<T, HubOpened>) {
          if (auto* opened = std::get_if<HubOpened>(&e)) return std::move(*opened);
        } else if (auto* m = std::get_if<HubMessage>(&e)) {
          heard_ = std::max(heard_, m->message.seq);
          if (auto* t = std::get_if<T>(&m->message.body)) return std::move(*t);
        }
      }
    }
    return std::nullopt;
  }

  std::filesystem::path dir_;
  std::string offload_ = "none";
  int64_t kv_bytes_ = 0, optimizer_bytes_ = 0;
  Mailbox<HubEvent> inbox_;
  std::unique_ptr<Hub> hub_;
  std::thread worker_;
  std::atomic<int> exit_code_ = -1;
  int ends_with_ = 0;
  ConnectionId connection_ = 0;
  int64_t said_ = 0, heard_ = 0;
};

// The arenas of a released role stay where the next one fits beside them, and go where it does not.
TEST_F(DeviceWorkerTest, AReleasedRoleGivesItsBytesBackWhenTheyAreNeeded) {
  ASSERT_GT(kv_bytes_, int64_t{8} << 20);
  const auto free_after = [&](int64_t epoch, int64_t need) -> int64_t {
    Say(down::Grant{.slot = {0}, .epoch = {epoch}, .role = Role::kRollout});
    EXPECT_TRUE(Next<up::Granted>());
    Say(down::Release{.slot = {0}, .epoch = {epoch + 1}, .need_bytes = need});
    const auto released = Next<up::Released>();
    EXPECT_TRUE(released);
    return released ? released->free_bytes : 0;
  };
  const int64_t kept = free_after(1, 1);
  const int64_t given_back = free_after(3, int64_t{1} << 50);
  EXPECT_GT(given_back - kept, kv_bytes_ * 9 / 10);
  EXPECT_LT(given_back, int64_t{1} << 50)
      << "no machine has so much: the controller has to quarantine the slot";
  EXPECT_LT(free_after(5, 1), given_back - kv_bytes_ * 9 / 10) << "the next grant makes them again";
}

// Its slot is lost then, and its samples go elsewhere; else it would fail in every step, or end without a
// word.
TEST_F(DeviceWorkerTest, AFailureOfTheMachineEndsTheWorkerAtItsDoor) {
  ends_with_ = 3;
  Say(down::InitState{.slot = {0}, .request = 1});
  const auto made = Next<up::StateReady>();
  ASSERT_TRUE(made);
  ASSERT_EQ(made->error, "");
  std::filesystem::create_directories(dir_ / "checkpoint");
  // Threads with more stack than there are addresses cannot be made.
  pthread_attr_t before, huge;
  pthread_getattr_default_np(&before);
  pthread_attr_init(&huge);
  pthread_attr_setstacksize(&huge, size_t{1} << 48);
  pthread_setattr_default_np(&huge);
  Say(down::WriteCheckpoint{.slot = {0}, .ckpt = 1, .dir = dir_ / "checkpoint"});
  for (int i = 0; i < 600 && exit_code_ < 0; ++i) (void)inbox_.Take(std::chrono::milliseconds(100), 1);
  pthread_setattr_default_np(&before);
  pthread_attr_destroy(&before);
  pthread_attr_destroy(&huge);
  EXPECT_EQ(exit_code_, 3);
}

struct OffloadingWorkerTest : DeviceWorkerTest {
  OffloadingWorkerTest() { offload_ = "disk"; }
  int64_t Released(int64_t epoch, int64_t need) {
    Say(down::Release{.slot = {0}, .epoch = {epoch}, .need_bytes = need});
    const auto released = Next<up::Released>();
    EXPECT_TRUE(released);
    return released ? released->free_bytes : 0;
  }
  void Grant(int64_t epoch, Role role) {
    Say(down::Grant{.slot = {0}, .epoch = {epoch}, .role = role});
    EXPECT_TRUE(Next<up::Granted>());
  }
  [[nodiscard]] bool Parked() const { return std::filesystem::exists(dir_ / "offload/device-0-inc0"); }
};

TEST_F(OffloadingWorkerTest, AReleasedTrainerIsOnDiskUntilItsNextGrantWhereMemoryIsShort) {
  constexpr int64_t kAll = int64_t{1} << 50;  // more than any machine has
  Say(down::InitState{.slot = {0}, .request = 1});
  const auto made = Next<up::StateReady>();
  ASSERT_TRUE(made);
  EXPECT_EQ(made->error, "");
  Grant(1, Role::kActor);
  const int64_t kept = Released(2, 1);
  EXPECT_FALSE(Parked()) << "there is room for both";
  Grant(3, Role::kActor);
  const int64_t given_back = Released(4, kAll);
  EXPECT_TRUE(Parked());
  EXPECT_GT(given_back - kept, optimizer_bytes_ * 9 / 10);

  // A checkpoint of it is whole, and does not bring it back beside the engine.
  Grant(5, Role::kRollout);
  std::filesystem::create_directories(dir_ / "checkpoint");
  Say(down::WriteCheckpoint{.slot = {0}, .ckpt = 1, .dir = dir_ / "checkpoint"});
  const auto written = Next<up::CheckpointFiles>();
  ASSERT_TRUE(written);
  EXPECT_EQ(written->error, "");
  EXPECT_EQ(written->weights_digest, made->weights_digest);
  EXPECT_TRUE(Parked());
  Released(6, kAll);

  // Granted the role, it has the state in memory again. There are no rows here, which is no fault of the
  // state.
  Grant(7, Role::kActor);
  EXPECT_FALSE(Parked());
  Say(down::Train{.slot = {0}, .epoch = {7}, .lease = 1, .step = {1}});
  const auto failed = Next<up::TrainFailed>();
  ASSERT_TRUE(failed);
  EXPECT_FALSE(failed->torn) << failed->why;
  EXPECT_LT(Released(8, 1), given_back - optimizer_bytes_ * 9 / 10);

  // A state that was lost on the disk is not trained on.
  Grant(9, Role::kActor);
  Released(10, kAll);
  ASSERT_TRUE(Parked());
  std::filesystem::remove_all(dir_ / "offload");
  Grant(11, Role::kActor);
  Say(down::Train{.slot = {0}, .epoch = {11}, .lease = 2, .step = {1}});
  const auto torn = Next<up::TrainFailed>();
  ASSERT_TRUE(torn);
  EXPECT_TRUE(torn->torn) << "the run has to take the state from elsewhere";
}

}  // namespace
}  // namespace tidepool::workers
