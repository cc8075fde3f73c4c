#include "core/base/boxed.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <variant>

namespace tidepool {
namespace {

TEST(BoxedTest, ACopyIsAnotherValueAndAMoveTakesIt) {
  Boxed<std::string> a = std::string("a");
  Boxed<std::string> b = a;
  *b = "b";
  EXPECT_EQ(*a, "a");
  a = b;
  EXPECT_EQ(*a, "b");
  const std::string* there = &*a;
  Boxed<std::string> c = std::move(a);
  EXPECT_EQ(&*c, there);
  EXPECT_EQ(c->size(), 1U);
  EXPECT_EQ(*Boxed<std::string>(), "");
}

TEST(BoxedTest, AVariantIsAsLargeAsWhatIsNotBoxed) {
  struct Large {
    char bytes[1000];
  };
  EXPECT_LE(sizeof(std::variant<int64_t, Boxed<Large>>), 16U);
}

}  // namespace
}  // namespace tidepool
