// reverse, sort_digits, sort_letters: random strings of given letters, small enough for models with one token
// a character.
#include <algorithm>
#include <utility>

#include "core/base/utf8.h"
#include "core/tasks/tasks/task_plugin.h"

namespace tidepool::tasks {
namespace {

// A random string of `length` characters of `letters`, and what becomes of it. One stratum a length.
StatusOr<std::vector<int64_t>> LetterStrata(const OptionValues& options) {
  std::vector<std::string> letters = Characters(options.Text("letters"));
  const auto count = static_cast<int64_t>(letters.size());
  std::ranges::sort(letters);
  const auto twice = std::ranges::adjacent_find(letters);
  if (twice != letters.end())
    return InvalidArgument("letters: expected each character once; found '" + *twice + "' twice");
  const auto [lo, hi] = options.Range("length");
  std::vector<int64_t> strata;
  for (int64_t n = lo; n <= hi; ++n) strata.push_back(SaturatingPower(count, n));
  return strata;
}

template <bool sort>
Question Rearranged(const QuestionSpace::Pick& pick, const OptionValues& options, uint64_t seed) {
  const std::vector<std::string> letters = Characters(options.Text("letters"));
  const bool terse = IsTerse(options);
  CodeReader code(pick, seed);
  std::vector<int64_t> places;  // of the letters, in the order of `letters`
  for (int64_t i = 0; i < options.Range("length").first + pick.stratum; ++i)
    places.push_back(code.Take(static_cast<int64_t>(letters.size())));
  const auto spell = [&] {
    std::string text;
    for (const int64_t place : places) text += letters[static_cast<size_t>(place)];
    return text;
  };
  Question q;
  const std::string text = spell();
  if constexpr (sort) {
    std::ranges::sort(places);
    q.prompt =
        terse ? "sort " + text + "=" : "Sort these characters: " + text + ". Reply with only the result.";
  } else {
    std::ranges::reverse(places);
    q.prompt =
        terse ? "rev " + text + "=" : "Spell this backwards: " + text + ". Reply with only the result.";
  }
  q.answer = spell();
  q.fields = {{"answer_rule", "text"}, {"text", text}};
  return q;
}

TaskPlugin OfLetters(const char* doc, const std::string& letters, DecodePick decode) {
  return SpaceTask(
      {.doc = doc,
       .options = {{"length", OptionKind::kRange, "[2, 6]", 1, 256, {}, "characters in a string"},
                   {"letters",
                    OptionKind::kText,
                    "\"" + letters + "\"",
                    2,
                    256,
                    {},
                    "characters to draw from, each once; sorting follows this order"},
                   StyleOption("terse")}},
      LetterStrata, decode);
}

constexpr const char* kAlphabet = "abcdefghijklmnopqrstuvwxyz";

}  // namespace

TP_PLUGIN(Task, reverse) {
  return OfLetters("spell a random string backwards", kAlphabet, Rearranged<false>);
}

TP_PLUGIN(Task, sort_digits) {
  return OfLetters("sort the digits of a random string", "0123456789", Rearranged<true>);
}

TP_PLUGIN(Task, sort_letters) {
  return OfLetters("sort the letters of a random string", kAlphabet, Rearranged<true>);
}

}  // namespace tidepool::tasks
