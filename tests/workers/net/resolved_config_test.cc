#include "workers/net/resolved_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tidepool::workers {
namespace {

// As where a loss was added and one of the two programs alone was built.
TEST(ResolvedConfigTest, AConfigThatTheControllerReadAndThisProgramCannotIsOfAnotherBuild) {
  const auto config = ParseResolved("job: rl\nalgorithm: {name: added_since}\n");
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(config.status().message(), testing::HasSubstr("of another build"));
  EXPECT_THAT(config.status().message(), testing::HasSubstr("added_since"));
}

}  // namespace
}  // namespace tidepool::workers
