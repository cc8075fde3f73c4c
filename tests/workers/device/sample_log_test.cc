// What a worker writes of its samples, on a disk that fails.

#include "workers/device/sample_log.h"

#include <gtest/gtest.h>

#include <memory>

#include "tests/core/base/memory_file_system.h"

namespace tidepool::workers {
namespace {

// A sample whose words are lost would be judged by what is left of it.
TEST(SampleLogTest, TokensThatCouldNotBeWrittenAreStillThere) {
  auto fs = std::make_shared<MemoryFileSystem>();
  ASSERT_TRUE(fs->MakeDirectory("run").ok() && fs->MakeDirectory("run/tokens").ok() &&
              fs->MakeDirectory("run/payload").ok());
  auto log = SampleLog::Open(fs, {.run_dir = "run", .run_id = "r", .inc = Incarnation{1}, .sync = false},
                             [](const up::Stored&) {});
  ASSERT_TRUE(log.ok()) << log.status().message();
  up::ChunkDelta delta;
  delta.tid = {3, 0, 1};
  delta.att = 1;
  delta.tokens.ids = {5, 6, 7};
  delta.tokens.logprobs = {-1, -2, -3};
  delta.tokens.versions = {{Version{0, 0}, 3}};
  const sample::Segment before = delta.tokens;
  fs->SetFaults({.capacity_bytes = 0});
  EXPECT_FALSE((*log)->Log({{&delta, {}}}).ok());
  EXPECT_TRUE(delta.tokens == before);
  EXPECT_FALSE(delta.logged.valid());
}

}  // namespace
}  // namespace tidepool::workers
