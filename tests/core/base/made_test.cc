#include "core/base/made.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace tidepool {
namespace {

TEST(MadeTest, AFactoryThatThrowsIsAnErrorThatNamesIt) {
  const std::string label = "environment mine (mine.cc)";
  const auto made = [&](auto&& body) {
    return Made({.label = label}, [&]() -> StatusOr<int> { return body(); });
  };
  EXPECT_EQ(*made([] { return 3; }), 3);
  const auto threw = made([]() -> int { throw std::runtime_error("boom"); });
  EXPECT_EQ(threw.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(threw.status().message(), label + ": its .make threw an exception: boom");
  EXPECT_EQ(made([]() -> int { throw 42; }).status().message(),
            label + ": its .make threw something that is no std::exception");
}

}  // namespace
}  // namespace tidepool
