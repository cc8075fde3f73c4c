#include "core/text/splitter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/rng.h"
#include "core/text/pre_tokenizer.h"
#include "core/text/unicode.h"

namespace tidepool::text {
namespace {

using testing::ElementsAre;

std::vector<std::string> Split(Pattern pattern, std::string_view text) {
  std::vector<std::string_view> pieces;
  SplitByPattern(pattern, text, &pieces);
  return {pieces.begin(), pieces.end()};
}
std::vector<std::string> Digits(bool individual, std::string_view text) {
  std::vector<std::string_view> pieces;
  SplitDigits(individual, text, &pieces);
  return {pieces.begin(), pieces.end()};
}

TEST(SplitterTest, Gpt2) {
  EXPECT_THAT(Split(Pattern::kGpt2, "I'm here, 12 times.  Don'T"),
              ElementsAre("I", "'m", " here", ",", " 12", " times", ".", " ", " Don", "'", "T"));
  EXPECT_THAT(Split(Pattern::kGpt2, "a \n\n b  "), ElementsAre("a", " \n\n", " b", "  "));
  EXPECT_THAT(Split(Pattern::kGpt2, "'re'x"), ElementsAre("'re", "'", "x"));
}

TEST(SplitterTest, Llama3AndQwen2) {
  EXPECT_THAT(Split(Pattern::kLlama3, "I'M (here) 12345\n\n x"),
              ElementsAre("I", "'M", " (", "here", ")", " ", "123", "45", "\n\n", " x"));
  EXPECT_THAT(Split(Pattern::kQwen2, "a 123"), ElementsAre("a", " ", "1", "2", "3"));
  EXPECT_THAT(Split(Pattern::kLlama3, "end.\r\n  next"), ElementsAre("end", ".\r\n", " ", " next"));
  EXPECT_THAT(Split(Pattern::kLlama3, " \n \t"), ElementsAre(" \n", " \t"));
}

TEST(SplitterTest, Digits) {
  EXPECT_THAT(Digits(true, "  12a3"), ElementsAre("  ", "1", "2", "a", "3"));
  EXPECT_THAT(Digits(false, "  12a3"), ElementsAre("  ", "12", "a", "3"));
  EXPECT_THAT(Digits(true, "\u00bdx"), ElementsAre("\u00bd", "x"));
}

std::string RandomText(Rng& rng) {
  static constexpr std::string_view kParts[] = {
      "a",      "B",      "'s",      "'LL",        "'",      "1",       "23", "\u0663", " ",
      "  ",     "\t",     "\n",      "\r\n",       ".",      "?!",      "-",  "\u00e9", "\u4e16",
      "\u3000", "\u00a0", "e\u0301", "\U0001f600", "\u00bd", "'\u017f", "_",  "\u200b"};
  std::string text;
  for (int64_t i = rng.InRange(0, 12); i > 0; --i) {
    text += kParts[static_cast<size_t>(rng.Below(std::size(kParts)))];
  }
  return text;
}

// The hand-written splitters against the expressions they stand for, run by PCRE2. (Of the characters
// used, both know the same Unicode.)
TEST(SplitterTest, EachEqualsItsRegularExpression) {
  Rng rng(11);
  for (const Pattern pattern : {Pattern::kGpt2, Pattern::kLlama3, Pattern::kQwen2}) {
    const auto step = MakeRegexStep(std::string(RegexOf(pattern)), SplitBehavior::kIsolated, false);
    ASSERT_TRUE(step.ok()) << step.status().message();
    EXPECT_EQ(KnownPattern(RegexOf(pattern)), pattern);
    for (int i = 0; i < 3000; ++i) {
      const std::string text = RandomText(rng);
      Pieces expected;
      ASSERT_TRUE((*step)(text, &expected).ok());
      ASSERT_EQ(Split(pattern, text), std::vector<std::string>(expected.views.begin(), expected.views.end()))
          << text;
    }
  }
}

TEST(SplitterTest, LongRunsTakeLinearTime) {
  // Seconds if any of these were quadratic.
  for (const std::string unit : {" ", "\n", " \n", "a", "1", "'", ".", "\u3000"}) {
    std::string text;
    for (int i = 0; i < 1'000'000; ++i) text += unit;
    for (const Pattern pattern : {Pattern::kGpt2, Pattern::kLlama3, Pattern::kQwen2}) {
      size_t total = 0;
      for (size_t at = 0; at < text.size();) {
        const size_t end = PieceEnd(pattern, text, at);
        total += end - at;
        at = end;
      }
      EXPECT_EQ(total, text.size());
    }
  }
}

TEST(RegexStepTest, ARunawayExpressionIsStopped) {
  const auto step = MakeRegexStep("(a+)+$", SplitBehavior::kIsolated, false);
  ASSERT_TRUE(step.ok());
  Pieces pieces;
  const Status status = (*step)(std::string(60, 'a') + "b", &pieces);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
}

TEST(RegexStepTest, SyntaxThatDiffersBetweenEnginesIsRefused) {
  EXPECT_EQ(MakeRegexStep(R"(\h+)", SplitBehavior::kIsolated, false).status().code(),
            StatusCode::kUnimplemented);
  EXPECT_EQ(MakeRegexStep("a{1,2}+", SplitBehavior::kIsolated, false).status().code(),
            StatusCode::kUnimplemented);
  EXPECT_TRUE(MakeRegexStep(R"(\p{L}+)", SplitBehavior::kIsolated, false).ok());
  EXPECT_EQ(MakeRegexStep("(", SplitBehavior::kIsolated, false).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(SplitBehaviorTest, AsTheReferenceDocumentsThem) {
  // "the-final--countdown" split at '-', from the documentation of Hugging Face tokenizers.
  const std::string text = "the-final--countdown";
  const std::vector<Match> matches = {{0, 3, false}, {3, 4, true},   {4, 9, false},
                                      {9, 10, true}, {10, 11, true}, {11, 20, false}};
  const auto apply = [&](SplitBehavior behavior) {
    Pieces pieces;
    ApplyBehavior(behavior, text, matches, &pieces);
    return std::vector<std::string>(pieces.views.begin(), pieces.views.end());
  };
  EXPECT_THAT(apply(SplitBehavior::kRemoved), ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(apply(SplitBehavior::kIsolated), ElementsAre("the", "-", "final", "-", "-", "countdown"));
  EXPECT_THAT(apply(SplitBehavior::kMergedWithPrevious), ElementsAre("the-", "final-", "-", "countdown"));
  EXPECT_THAT(apply(SplitBehavior::kMergedWithNext), ElementsAre("the", "-final", "-", "-countdown"));
  EXPECT_THAT(apply(SplitBehavior::kContiguous), ElementsAre("the", "-", "final", "--", "countdown"));
}

// A letter of Unicode 15, which Debian's PCRE2 does not know; U+180E, white space to PCRE2 alone.
TEST(RegexStepTest, CodePointsHaveTheReferencesCategories) {
  const auto step = MakeRegexStep("\\p{L}+|[^\\p{L}\\s]+|\\s+", SplitBehavior::kIsolated, false);
  ASSERT_TRUE(step.ok()) << step.status().ToString();
  const std::string text = "a\xF0\xB1\x8D\x90z.\xE1\xA0\x8E";
  Pieces pieces;
  ASSERT_TRUE((*step)(text, &pieces).ok());
  EXPECT_EQ(pieces.views, (std::vector<std::string_view>{std::string_view(text).substr(0, 6),
                                                         std::string_view(text).substr(6)}));
}

}  // namespace
}  // namespace tidepool::text
