#include "workers/device/pacer.h"

#include <gtest/gtest.h>

#include "core/base/config.h"

namespace tidepool::workers {
namespace {

using Clock = Pacer::Clock;

std::unique_ptr<Pacer> Small(double scale) {
  ClusterConfig cluster;
  cluster.pace = std::string(TIDEPOOL_SOURCE_DIR) + "/configs/pace/small_cpu.yaml";
  cluster.pace_scale = scale;
  auto pacer = Pacer::Create(cluster);
  EXPECT_TRUE(pacer.ok()) << pacer.status().message();
  return std::move(*pacer);
}

TEST(Pacer, NothingIsPacedByDefault) {
  const auto pacer = Pacer::Create(ClusterConfig{});
  ASSERT_TRUE(pacer.ok());
  EXPECT_EQ(*pacer, nullptr);
}

TEST(Pacer, AStepTakesAtLeastItsModelledTime) {
  const auto pacer = Small(1);
  const auto begin = Clock::now();
  pacer->Keep(begin, 0.02);
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(20));
  EXPECT_EQ(pacer->Count().steps, 1);
}

TEST(Pacer, TheScaleStretchesIt) {
  const auto pacer = Small(4);
  const auto begin = Clock::now();
  pacer->Keep(begin, 0.01);
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(40));
}

TEST(Pacer, AStepThatWasSlowerIsAMissAndTellsTheScaleItNeeds) {
  const auto pacer = Small(1);
  pacer->Keep(Clock::now() - std::chrono::milliseconds(300), 0.1);  // took three times its pace
  const PaceCount count = pacer->Count();
  EXPECT_EQ(count.missed, 1);
  EXPECT_GE(count.scale_needed, 3.0);
  EXPECT_LE(count.scale_needed, 3.0 * 1.1 * 1.1 + 1);  // bins, and a busy machine
}

TEST(Pacer, AWaitThatIsCalledOffEndsSoon) {
  const auto pacer = Small(1);
  int asked = 0;
  const auto begin = Clock::now();
  pacer->Keep(begin, 3600, [&] { return ++asked == 2; });
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(60));
  EXPECT_EQ(asked, 2);
}

// What the simulator computes for the same steps: both ask the one cost model.
TEST(Pacer, TimesAreThoseOfTheCostModel) {
  const auto pacer = Small(2);
  const auto model = config::LoadPace(std::string(TIDEPOOL_SOURCE_DIR) + "/configs/pace/qwen7b_h100.yaml");
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->token_factor, 64);
  ClusterConfig cluster;
  cluster.pace = std::string(TIDEPOOL_SOURCE_DIR) + "/configs/pace/qwen7b_h100.yaml";
  auto big = Pacer::Create(cluster);
  ASSERT_TRUE(big.ok());
  const scheduler::CostModel cost(model->hardware, model->model, model->devices_per_slot,
                                  model->engine_efficiency);
  EXPECT_DOUBLE_EQ((*big)->EngineStep(4, 100, 0), cost.DecodeSteps(4, 6400, 64));
  EXPECT_DOUBLE_EQ((*big)->EngineStep(0, 0, 10), cost.Prefill(640, 0));
  EXPECT_GT((*big)->TrainStep(1000, 1e5, 1), pacer->TrainStep(10, 100, 1));
  EXPECT_DOUBLE_EQ((*big)->TrainStep(1000, 1e5, 4), (*big)->TrainStep(1000, 1e5, 1) + cost.AllReduce(4));
}

TEST(Pacer, AMissingOrWrongProfileIsNamed) {
  ClusterConfig cluster;
  cluster.pace = "/nowhere/pace.yaml";
  const auto pacer = Pacer::Create(cluster);
  ASSERT_FALSE(pacer.ok());
  EXPECT_NE(pacer.status().message().find("/nowhere/pace.yaml"), std::string::npos);
}

}  // namespace
}  // namespace tidepool::workers
