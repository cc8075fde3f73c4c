// Tasks over random strings of given letters: small enough for models with one token a character.

#include <algorithm>
#include <utility>

#include "core/base/utf8.h"
#include "core/tasks/factories.h"

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

}  // namespace

std::vector<TaskEntry> StringTasks() {
  const auto task = [](const char* name, const char* doc, const std::string& letters, DecodePick decode) {
    const std::vector<Option> options = {
        {"length", OptionKind::kRange, "[2, 6]", 1, 256, {}, "characters in a string"},
        {"letters",
         OptionKind::kText,
         "\"" + letters + "\"",
         2,
         256,
         {},
         "characters to draw from, each once; sorting follows this order"},
        StyleOption("terse")};
    return SpaceTask({name, doc, "questions", options}, LetterStrata, decode);
  };
  const std::string alphabet = "abcdefghijklmnopqrstuvwxyz";
  return {task("reverse", "spell a random string backwards", alphabet, Rearranged<false>),
          task("sort_digits", "sort the digits of a random string", "0123456789", Rearranged<true>),
          task("sort_letters", "sort the letters of a random string", alphabet, Rearranged<true>)};
}

}  // namespace tidepool::tasks
