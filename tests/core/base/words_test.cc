// Enums with words, and structs with lists of fields.

#include "core/base/words.h"

#include <gtest/gtest.h>

#include <string>

#include "core/base/fields.h"

namespace tidepool {
namespace {

enum class Colour { kRed, kBlue };
constexpr auto WordsOf(Colour) { return std::to_array<const char*>({"red", "blue"}); }

TEST(WordsTest, WordsAndValuesNameEachOther) {
  EXPECT_STREQ(Name(Colour::kBlue), "blue");
  EXPECT_EQ(FromWord<Colour>("red"), Colour::kRed);
  EXPECT_EQ(FromWord<Colour>("green"), std::nullopt);
  EXPECT_EQ(AllOf<Colour>(), (std::array{Colour::kRed, Colour::kBlue}));
}

TEST(WordsTest, NumberThatIsNoValueIsUnknown) { EXPECT_STREQ(Name(static_cast<Colour>(7)), "unknown"); }

TEST(WordsTest, RefusalNamesWhatThereIs) {
  EXPECT_EQ(*ParseWord<Colour>("colour", "blue"), Colour::kBlue);
  const Status status = ParseWord<Colour>("colour", "green").status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(), "colour is 'green'; there are red, blue");
}

struct Plain {
  int a = 1, b = 2, c = 3;
};
TP_FIELDS(Plain, a, b, c)
struct Empty {};
TP_FIELDS(Empty)
struct Mixed : Plain {
  int d = 4, e = 5;
};
TP_FIELDS_BY(Mixed, VisitFields(static_cast<const Plain&>(r), v); TP_EACH(d, e))

std::string Visited(const auto& x) {
  std::string out;
  VisitFields(x, [&](const char* name, int value) { out += name + std::to_string(value); });
  return out;
}

TEST(FieldsTest, AreVisitedInTheirOrder) {
  EXPECT_EQ(Visited(Plain{}), "a1b2c3");
  EXPECT_EQ(Visited(Empty{}), "");
  EXPECT_EQ(Visited(Mixed{}), "a1b2c3d4e5");
}

}  // namespace
}  // namespace tidepool
