#include "core/observe/live_curves.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/core/observe/temp_folder.h"

namespace tidepool::observe {
namespace {

using nlohmann::json;

std::string Row(int64_t step, const json& metrics) {
  return json({{"step", step}, {"wall_s", 2.0 * static_cast<double>(step)}, {"metrics", metrics}}).dump() +
         "\n";
}
void Append(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::app) << text; }

// What a page has after it was told.
void Take(const json& points, std::vector<std::pair<int64_t, double>>& curve) {
  curve.resize(points["from"].get<size_t>());
  for (size_t i = 0; i < points["x"].size(); ++i) curve.emplace_back(points["x"][i], points["y"][i]);
}

TEST(LiveCurvesTest, ACursorGivesOnlyWhatIsNew) {
  const TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  LiveCurves curves(path);
  EXPECT_EQ(curves.Read().status().code(), StatusCode::kNotFound);
  Append(path, Row(1, {{"a", 1}, {"b", 5}}) + Row(2, {{"a", 2}}) + R"({"step":3,"wa)");
  EXPECT_FALSE(*curves.Read());
  const json first = curves.Since("");
  EXPECT_TRUE(first["whole"]);
  EXPECT_EQ(first["metrics"]["a"], json({{"from", 0}, {"x", {1, 2}}, {"y", {1.0, 2.0}}, {"max", 2.0}}));
  EXPECT_EQ(first["clock"]["y"], json({2.0, 4.0}));
  const std::string cursor = first["cursor"];
  EXPECT_EQ(curves.Since(cursor)["metrics"], json::object());

  Append(path, "ll_s\":6,\"metrics\":{\"a\":3,\"n\":null}}\nnonsense\n");
  EXPECT_FALSE(*curves.Read());
  const json second = curves.Since(cursor);
  EXPECT_FALSE(second["whole"]);
  EXPECT_EQ(second["bad"], 1);
  EXPECT_EQ(second["metrics"], json({{"a", {{"from", 2}, {"x", {3}}, {"y", {3.0}}, {"max", 3.0}}}}));
  EXPECT_TRUE(curves.Since("of another program")["whole"]);
}

TEST(LiveCurvesTest, ARunOfAHundredThousandStepsStaysSmallAndItsTailFollows) {
  const TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  {
    std::ofstream out(path);
    for (int64_t step = 1; step <= 100000; ++step) out << Row(step, {{"a", step % 2}, {"up", step}});
  }
  LiveCurves curves(path);
  int64_t reads = 1;
  while (*curves.Read(1 << 20)) ++reads;
  EXPECT_GT(reads, 1) << "a page is answered in between";
  const json all = curves.Since("");
  EXPECT_LT(all.dump().size(), 40000U);
  std::vector<std::pair<int64_t, double>> a;
  Take(all["metrics"]["a"], a);
  ASSERT_GT(a.size(), LiveCurves::kPointsMax / 2);
  EXPECT_LE(a.size(), LiveCurves::kPointsMax);
  EXPECT_EQ(a.back().first, 100000);
  EXPECT_NEAR(a[a.size() / 2].second, 0.5, 1e-6) << "a mean";
  EXPECT_EQ(all["clock"]["y"].back(), 200000) << "the clock is no mean";
  EXPECT_EQ(curves.Spans()["up"].most, 100000);
  Append(path, Row(100001, {{"a", 1}}));
  ASSERT_TRUE(curves.Read().ok());
  const json more = curves.Since(all["cursor"]);
  EXPECT_LE(more["metrics"]["a"]["x"].size(), 1U);
  Take(more["metrics"]["a"], a);
  EXPECT_EQ(a.back().first, 100001);
}

TEST(LiveCurvesTest, StepsThatAreTrainedAgainReplaceTheOldOnes) {
  const TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  for (int64_t step = 1; step <= 5; ++step) Append(path, Row(step, {{"a", step}, {"eval", step}}));
  LiveCurves curves(path);
  ASSERT_TRUE(curves.Read().ok());
  std::vector<std::pair<int64_t, double>> a, eval;
  const json before = curves.Since("");
  Take(before["metrics"]["a"], a);
  Take(before["metrics"]["eval"], eval);
  Append(path, Row(3, {{"a", 30}}));
  ASSERT_TRUE(curves.Read().ok());
  const json after = curves.Since(before["cursor"]);
  Take(after["metrics"]["a"], a);
  EXPECT_EQ(a, (std::vector<std::pair<int64_t, double>>{{1, 1}, {2, 2}, {3, 30}}));
  EXPECT_FALSE(after["metrics"].contains("eval")) << "nothing came for it yet";
}

TEST(LiveCurvesTest, AnotherFileOfTheNameIsReadAnew) {
  const TempFolder folder;
  const std::string path = folder / "metrics.jsonl";
  Append(path, Row(1, {{"a", 1}}) + Row(2, {{"a", 2}}));
  LiveCurves curves(path);
  ASSERT_TRUE(curves.Read().ok());
  const std::string cursor = curves.Since("")["cursor"];
  std::filesystem::remove(path);
  EXPECT_FALSE(curves.Read().ok());
  Append(path, Row(1, {{"b", 7}}));
  ASSERT_TRUE(curves.Read().ok());
  const json now = curves.Since(cursor);
  EXPECT_TRUE(now["whole"]);
  EXPECT_EQ(now["metrics"].size(), 1U);
  EXPECT_EQ(now["metrics"]["b"]["y"], json({7.0}));
}

}  // namespace
}  // namespace tidepool::observe
