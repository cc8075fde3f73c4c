// spell_backward, letter_counting: English words of a built-in list. One stratum a length.
#include <algorithm>
#include <span>

#include "core/tasks/tasks/task_plugin.h"
#include "core/tasks/word_list.h"

namespace tidepool::tasks {
namespace {

using Words = std::span<const std::string_view>;

Words WordsOfLength(int64_t n) {
  const auto letters = [](std::string_view word) { return static_cast<int64_t>(word.size()); };
  return {std::ranges::lower_bound(WordList(), n, {}, letters),
          std::ranges::upper_bound(WordList(), n, {}, letters)};
}

// `count`: the questions about words of one length.
StatusOr<std::vector<int64_t>> WordStrata(const OptionValues& options, int64_t (*count)(Words words)) {
  const auto [lo, hi] = options.Range("length");
  std::vector<int64_t> strata;
  for (int64_t n = lo; n <= hi; ++n) strata.push_back(count(WordsOfLength(n)));
  return strata;
}

StatusOr<std::vector<int64_t>> SpellingStrata(const OptionValues& options) {
  return WordStrata(options, [](Words words) { return static_cast<int64_t>(words.size()); });
}

Question SpellBackward(const QuestionSpace::Pick& pick, const OptionValues& options, uint64_t /*seed*/) {
  const std::string word(
      WordsOfLength(options.Range("length").first + pick.stratum)[static_cast<size_t>(pick.code)]);
  return {.prompt = IsTerse(options)
                        ? "rev " + word + "="
                        : "Spell the word \"" + word + "\" backwards. Reply with only the letters.",
          .messages = {},
          .answer = std::string(word.rbegin(), word.rend()),
          .fields = {{"answer_rule", "text"}, {"text", word}}};
}

// How often a letter occurs in a word: every letter of the word, and one that is not in it.
std::string LettersToCount(std::string_view word) {
  std::string letters;
  for (const char c : word) {
    if (letters.find(c) == std::string::npos) letters += c;
  }
  // The absent letter comes from the word itself, so that it varies and is always the same.
  char absent = static_cast<char>('a' + (word[0] + word.back() + static_cast<int>(word.size())) % 26);
  while (word.find(absent) != std::string_view::npos)
    absent = absent == 'z' ? 'a' : static_cast<char>(absent + 1);
  return letters + absent;
}

StatusOr<std::vector<int64_t>> CountingStrata(const OptionValues& options) {
  return WordStrata(options, [](Words words) {
    int64_t pairs = 0;
    for (const std::string_view word : words) pairs += static_cast<int64_t>(LettersToCount(word).size());
    return pairs;
  });
}

Question LetterCounting(const QuestionSpace::Pick& pick, const OptionValues& options, uint64_t /*seed*/) {
  auto at = static_cast<size_t>(pick.code);
  const Words words = WordsOfLength(options.Range("length").first + pick.stratum);
  auto word = words.begin();
  for (size_t n = 0; at >= (n = LettersToCount(*word).size()); ++word) at -= n;
  const std::string text(*word), letter(1, LettersToCount(*word)[at]);
  return {.prompt = IsTerse(options)
                        ? "count " + letter + " in " + text + "="
                        : "How many times does the letter \"" + letter + "\" appear in the word \"" + text +
                              "\"? Reply with only the number.",
          .messages = {},
          .answer = std::to_string(std::ranges::count(text, letter[0])),
          .fields = {{"answer_rule", "last_number"}, {"text", text}, {"letter", letter}}};
}

TaskPlugin OfWords(const char* doc, StrataOf strata, DecodePick decode) {
  return SpaceTask({.doc = doc,
                    .options = {{"length", OptionKind::kRange, "[3, 10]", 3, 10, {}, "letters in a word"},
                                StyleOption("chat")}},
                   strata, decode);
}

}  // namespace

TP_PLUGIN(Task, spell_backward) {
  return OfWords("spell an English word backwards", SpellingStrata, SpellBackward);
}

TP_PLUGIN(Task, letter_counting) {
  return OfWords("how often a letter occurs in an English word", CountingStrata, LetterCounting);
}

}  // namespace tidepool::tasks
