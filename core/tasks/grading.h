#pragma once
// The rules by which answers are judged: pure functions from texts to scores. Rewards
// (core/tasks/reward.h) and the conformance program call these very functions.
//
// Texts are untrusted model output: any bytes, any length up to the token limit. All functions
// finish in time linear in the text (expressions: bounded depth) and throw nothing.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool::tasks {

// Without leading and trailing white space (space, \t, \n, \v, \f, \r).
std::string_view Trim(std::string_view text);

// Text of the last complete `<answer>...</answer>`, trimmed; empty optional without one.
std::optional<std::string> ExtractAnswer(std::string_view text);

// The last number of a text: digits with optional groups ",ddd" and an optional fraction; a minus
// counts as a sign unless a letter, digit or closing bracket stands before it ("10-56" ends in 56).
// Commas are dropped: "it is 1,024." -> "1024".
std::optional<std::string> LastNumber(std::string_view text);

// Equality as decimals, exact at any length: sign, leading zeros, trailing ".0" and exponents do
// not matter. False if either is no number.
bool DecimalsEqual(std::string_view a, std::string_view b);

// Chain sums (reasoning-gym's rule): commas go first; 1 if equal as decimals; else
// len(truth) / len(answer) in characters if truth is a part of answer; else 0. 0 for an empty answer.
double DecimalScore(std::string_view answer, std::string_view truth);

// GSM8K (verl's rule) on the last 300 characters; 1 if the texts are equal, else 0.
// strict: the number of the last "#### number" (one blank), commas dropped.
// flexible: the last number as it stands. A number is -? then digits, commas and points.
enum class Gsm8kMethod { kStrict, kFlexible };
double Gsm8kScore(std::string_view response, std::string_view truth, Gsm8kMethod method);

// Value of an expression of numbers, + - * /, brackets and signs; empty if it does not parse
// (`**`, `//`, other characters, integers with leading zeros), divides by zero, or nests deeper
// than 200.
std::optional<double> EvaluateExpression(std::string_view expression);

// Countdown, TinyZero's rule on the last line of the response (what follows the last newline):
// 0 without an answer tag; `score` if the expression uses exactly `numbers` (as digit runs) and is
// within 1e-5 of target; else `format_score`.
double CountdownScore(std::string_view response, const std::vector<int64_t>& numbers, int64_t target,
                      double score, double format_score);

// Countdown, reasoning-gym's rule on an extracted answer: 0.01 if absent, blank or without a value;
// 1 if its integers are `numbers`, each once, and |value - target| <= 1e-6 + 1e-5 |target|; else 0.05.
double CountdownExpressionScore(const std::optional<std::string>& answer, const std::vector<int64_t>& numbers,
                                double target);

// Number sorting: `answer` is a JSON list of numbers, which may be in quotes (single ones too).
// 1 if it has the right length, is sorted, and each is within `tolerance` of `expected`; else 0.
enum class SortDirection { kAscending, kDescending };
double SortingScore(std::string_view answer, const std::vector<double>& expected, SortDirection direction,
                    double tolerance);

}  // namespace tidepool::tasks
