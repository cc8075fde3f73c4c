#include "core/engine/stop_strings.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/rng.h"

namespace tidepool::engine {
namespace {

const std::vector<std::string> kPieces = {"a", "b", "ab", "\n", "\xE2\x82", "\xAC", "", "ba\n"};
std::string Piece(int32_t id) { return kPieces[static_cast<size_t>(id)]; }

TEST(StopStringsTest, FindsAStringAcrossTokenBorders) {
  StopStrings stop({"\xE2\x82\xAC", "abba"});
  EXPECT_FALSE(stop.Append(4, Piece));
  EXPECT_FALSE(stop.Append(6, Piece));
  EXPECT_TRUE(stop.Append(5, Piece));
}

TEST(StopStringsTest, NothingStopsWithoutStrings) {
  StopStrings stop;
  EXPECT_TRUE(stop.empty());
  EXPECT_FALSE(stop.Append(0, {}));
}

TEST(StopStringsTest, AgreesWithASearchOfTheWholeTextAndResumesAnywhere) {
  Rng rng(4);
  for (int trial = 0; trial < 500; ++trial) {
    std::vector<std::string> strings;
    for (int64_t i = rng.InRange(1, 3); i > 0; --i) {
      std::string s;
      for (int64_t j = rng.InRange(1, 5); j > 0; --j) s += "ab\n"[rng.Below(3)];
      strings.push_back(s);
    }
    StopStrings straight(strings);
    std::string text;
    std::vector<int32_t> ids;
    for (int step = 0; step < 30; ++step) {
      const auto id = static_cast<int32_t>(rng.Below(static_cast<int64_t>(kPieces.size())));
      StopStrings resumed(strings);
      resumed.Resume(ids, Piece);
      text += Piece(id);
      ids.push_back(id);
      bool want = false;
      for (const std::string& s : strings) want = want || text.find(s) != std::string::npos;
      ASSERT_EQ(straight.Append(id, Piece), want);
      ASSERT_EQ(resumed.Append(id, Piece), want);
      if (want) break;
    }
  }
}

}  // namespace
}  // namespace tidepool::engine
