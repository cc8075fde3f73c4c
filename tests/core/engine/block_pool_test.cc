#include "core/engine/block_pool.h"

#include <gtest/gtest.h>

#include <vector>

namespace tidepool::engine {
namespace {

TEST(BlockPoolTest, PromisesBoundWhatIsAvailable) {
  BlockPool pool(4, [](int32_t) {});
  pool.Promise(3);
  EXPECT_EQ(pool.Available(), 1);
  const int32_t a = pool.AllocatePromised();
  EXPECT_EQ(pool.Available(), 1);
  const int32_t b = pool.Allocate();
  EXPECT_NE(a, b);
  EXPECT_EQ(pool.Available(), 0);
  pool.Withdraw(2);
  EXPECT_EQ(pool.Available(), 2);
  pool.Unref(a);
  EXPECT_EQ(pool.free(), 3);
}

TEST(BlockPoolTest, EvictsWhatWasReleasedFirstAndDeeperBlocksFirst) {
  std::vector<int32_t> evicted;
  BlockPool pool(3, [&](int32_t b) { evicted.push_back(b); });
  const int32_t root = pool.Allocate();
  const int32_t leaf = pool.Allocate();
  const int32_t later = pool.Allocate();
  pool.SetCached(root, true, 0);
  pool.SetCached(leaf, true, 1);
  pool.SetCached(later, true, 5);
  pool.Unref(root);
  pool.Unref(leaf);
  pool.Tick();
  pool.Unref(later);
  EXPECT_EQ(pool.cached(), 3);
  EXPECT_EQ(pool.Available(), 3);
  EXPECT_EQ(pool.Allocate(), leaf);
  EXPECT_EQ(pool.Allocate(), root);
  EXPECT_EQ(pool.Allocate(), later);
  EXPECT_EQ(evicted, (std::vector<int32_t>{leaf, root, later}));
}

TEST(BlockPoolTest, ACachedBlockThatIsHeldAgainIsNotEvicted) {
  BlockPool pool(2, [](int32_t) {});
  const int32_t a = pool.Allocate();
  pool.SetCached(a, true);
  pool.Unref(a);
  pool.Ref(a);
  EXPECT_EQ(pool.Available(), 1);
  EXPECT_NE(pool.Allocate(), a);
  EXPECT_EQ(pool.Available(), 0);
  pool.SetCached(a, false);
  pool.Unref(a);
  EXPECT_EQ(pool.free(), 1);
}

}  // namespace
}  // namespace tidepool::engine
