#include "core/config/yaml_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tidepool::config {
namespace {

using ::testing::HasSubstr;

std::string FirstProblem(const std::string& text) {
  std::vector<Problem> problems;
  ParseYaml(text, {.source = "f"}, problems);
  return problems.empty() ? "none" : problems[0].place.ToString() + ": " + problems[0].text;
}

TEST(ParseYamlTest, ValuesKnowTheirLines) {
  std::vector<Problem> problems;
  const Node root = ParseYaml("a: 1\nb:\n  c: [x,\n   y]\n  d:\n", {.source = "f"}, problems);
  ASSERT_TRUE(problems.empty());
  EXPECT_EQ(root.Find("a")->place.line, 1);
  EXPECT_EQ(root.Find("b")->Find("c")->place.line, 3);
  EXPECT_EQ(root.Find("b")->Find("c")->items[1].place.line, 4);
  EXPECT_EQ(root.Find("b")->Find("d")->kind, Node::Kind::kNull);
}

TEST(ParseYamlTest, RefusesWhatAConfigDoesNotNeed) {
  EXPECT_EQ(FirstProblem("a: 1\na: 2\n"), "f:2: a: written twice, first at f:1; keep one of the two");
  EXPECT_THAT(FirstProblem("a: &x 1\n"), HasSubstr("f:1: anchors"));
  EXPECT_THAT(FirstProblem("a: &x 1\nb: *x\n"), HasSubstr("anchors"));
  EXPECT_THAT(FirstProblem("a: !!python/object:os.system 1\n"),
              HasSubstr("tags (tag:yaml.org,2002:python/object:os.system)"));
  EXPECT_THAT(FirstProblem("a: 1\n---\nb: 2\n"), HasSubstr("more than one YAML document"));
  EXPECT_THAT(FirstProblem("a: [1\n"), HasSubstr("not valid YAML"));
  EXPECT_THAT(FirstProblem("[a]: 1\n"), HasSubstr("a key is a list; expected a name"));
}

TEST(ParseYamlTest, ABracketThatIsNotClosedIsNamedWhereItWasOpened) {
  EXPECT_THAT(
      FirstProblem("a: 1\nb: {c: 2,\n  d: 3\ne: 4\nf: 5\n"),
      testing::StartsWith("f:2: not valid YAML: the { that is opened here is not closed (noticed in line "));
  EXPECT_THAT(FirstProblem("a:\n  b: [{c: 1}\nd: {e: 2}\n"),
              testing::StartsWith("f:2: not valid YAML: the [ that is opened here is not closed"));
  EXPECT_THAT(FirstProblem("a: {b: [1, 2}\nc: 1\n"), HasSubstr("closes the other kind of bracket"));
  EXPECT_THAT(FirstProblem("a:\n  b: 1\n c: 2\n"), HasSubstr("f:3: not valid YAML: this line is indented"));
}

TEST(ParseYamlTest, AMissingBlankOrColonIsNotPassedOver) {
  EXPECT_THAT(FirstProblem("a: {b:c.jsonl}\n"), HasSubstr("f:1: 'b:c.jsonl' is no key and value"));
  EXPECT_THAT(FirstProblem("a: {b: 1, held_out 50}\n"), HasSubstr("f:1: 'held_out 50' is no key and value"));
  EXPECT_EQ(FirstProblem("a: {b: }\n"), "none") << "takes a key of a base file back";
}

TEST(ParseYamlTest, AnEmptyOverrideIsNothingAndNoGroup) {
  std::vector<Problem> problems;
  EXPECT_EQ(ParseYaml("", {.source = "a.b=", .override = true}, problems).kind, Node::Kind::kNull);
  EXPECT_EQ(ParseYaml("", {.source = "f"}, problems).kind, Node::Kind::kMap);
}

TEST(ParseYamlTest, IsBounded) {
  EXPECT_THAT(FirstProblem("a: " + std::string(64, '[') + std::string(64, ']')), HasSubstr("deeper than 64"));
  EXPECT_EQ(FirstProblem("a: " + std::string(63, '[') + std::string(63, ']')), "none");
  EXPECT_FALSE(FirstProblem(std::string(100000, '[')).empty());  // no stack overflow
  EXPECT_FALSE(FirstProblem(std::string(100000, '{')).empty());
  std::string many = "a: [";
  for (int i = 0; i < 100001; ++i) many += "1,";
  EXPECT_THAT(FirstProblem(many + "]"), HasSubstr("more than 100000 values"));
  EXPECT_THAT(FirstProblem("a: " + std::string(kMaxYamlBytes, 'x')),
              HasSubstr("bytes; a config has at most"));
}

TEST(ParseYamlTest, ScalarsHaveTheTypesOfYaml12) {
  std::vector<Problem> problems;
  const Node root = ParseYaml("[1, -2, 1.5, 1e-5, true, \"1\", no, 007, 0x10, ~, 1_000, .5, +3]",
                              {.source = "f"}, problems);
  ASSERT_TRUE(problems.empty());
  EXPECT_EQ(ToJson(root).dump(), R"([1,-2,1.5,1e-05,true,"1","no",7,"0x10",null,"1_000",0.5,3])");
}

}  // namespace
}  // namespace tidepool::config
