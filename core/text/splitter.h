#pragma once
// Splitters that cut text into words before merging: the published patterns by hand, in linear time.
// Each is checked against the regular expression it stands for (tests, and against the reference
// library in tests/interop).

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tidepool::text {

enum class Pattern {
  kGpt2,    // '(s|t|re|ve|m|ll|d), " ?letters", " ?numbers", " ?others", white space
  kLlama3,  // contractions in either case, one character before letters, numbers by threes, line ends
  kQwen2,   // the same with single numbers
};

// The pattern of which this is the published regular expression, or none.
std::optional<Pattern> KnownPattern(std::string_view regex);
std::string_view RegexOf(Pattern pattern);

// End of the piece that starts at `at`. The pieces cover the text.
// requires valid UTF-8 and at < text.size()
size_t PieceEnd(Pattern pattern, std::string_view text, size_t at);

// Appends the pieces of `text`.
void SplitByPattern(Pattern pattern, std::string_view text, std::vector<std::string_view>* pieces);
// Numeric characters each for themselves, or in runs; what lies between stays together.
void SplitDigits(bool individual, std::string_view text, std::vector<std::string_view>* pieces);

}  // namespace tidepool::text
