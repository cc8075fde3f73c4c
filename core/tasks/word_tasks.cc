// Tasks over English words of a built-in list.

#include <algorithm>
#include <utility>

#include "core/tasks/factories.h"
#include "core/tasks/word_list.h"

namespace tidepool::tasks {
namespace {

std::vector<std::string_view> WordsOfLength(int64_t n) {
  std::vector<std::string_view> out;
  for (const std::string_view word : WordList()) {
    if (static_cast<int64_t>(word.size()) == n) out.push_back(word);
  }
  return out;
}

Option LengthOption() { return {"length", OptionKind::kRange, "[3, 10]", 3, 10, {}, "letters in a word"}; }

class SpellBackward : public SpaceTask {
 public:
  SpellBackward(QuestionSpace space, const OptionValues& options, uint64_t /*seed*/)
      : SpaceTask(std::move(space)), terse_(options.Text("style") == "terse") {
    const auto [lo, hi] = options.Range("length");
    for (int64_t n = lo; n <= hi; ++n) words_.push_back(WordsOfLength(n));
  }

  static StatusOr<std::vector<int64_t>> Strata(const OptionValues& options) {
    const auto [lo, hi] = options.Range("length");
    std::vector<int64_t> strata;
    for (int64_t n = lo; n <= hi; ++n) strata.push_back(static_cast<int64_t>(WordsOfLength(n).size()));
    return strata;
  }

 protected:
  [[nodiscard]] Question Decode(const QuestionSpace::Pick& pick) const override {
    const std::string word(words_[static_cast<size_t>(pick.stratum)][static_cast<size_t>(pick.code)]);
    return {.prompt = terse_ ? "rev " + word + "="
                             : "Spell the word \"" + word + "\" backwards. Reply with only the letters.",
            .messages = {},
            .answer = std::string(word.rbegin(), word.rend()),
            .fields = {{"answer_rule", "text"}, {"text", word}}};
  }

 private:
  bool terse_;
  std::vector<std::vector<std::string_view>> words_;
};

// How often a letter occurs in a word: every letter of the word, and one that is not in it.
class LetterCounting : public SpaceTask {
 public:
  using Pair = std::pair<std::string_view, char>;

  LetterCounting(QuestionSpace space, const OptionValues& options, uint64_t /*seed*/)
      : SpaceTask(std::move(space)), terse_(options.Text("style") == "terse") {
    const auto [lo, hi] = options.Range("length");
    for (int64_t n = lo; n <= hi; ++n) pairs_.push_back(Pairs(n));
  }

  static StatusOr<std::vector<int64_t>> Strata(const OptionValues& options) {
    const auto [lo, hi] = options.Range("length");
    std::vector<int64_t> strata;
    for (int64_t n = lo; n <= hi; ++n) strata.push_back(static_cast<int64_t>(Pairs(n).size()));
    return strata;
  }

 protected:
  [[nodiscard]] Question Decode(const QuestionSpace::Pick& pick) const override {
    const auto [word, letter] = pairs_[static_cast<size_t>(pick.stratum)][static_cast<size_t>(pick.code)];
    const std::string text(word);
    return {.prompt = terse_ ? "count " + std::string(1, letter) + " in " + text + "="
                             : std::string("How many times does the letter \"") + letter +
                                   "\" appear in the word \"" + text + "\"? Reply with only the number.",
            .messages = {},
            .answer = std::to_string(std::ranges::count(word, letter)),
            .fields = {{"answer_rule", "last_number"}, {"text", text}, {"letter", std::string(1, letter)}}};
  }

 private:
  static std::vector<Pair> Pairs(int64_t n) {
    std::vector<Pair> out;
    for (const std::string_view word : WordsOfLength(n)) {
      for (size_t i = 0; i < word.size(); ++i) {
        if (word.find(word[i]) == i) out.emplace_back(word, word[i]);
      }
      // The absent letter comes from the word itself, so that it varies and is always the same.
      char absent = static_cast<char>('a' + (word[0] + word.back() + static_cast<int>(word.size())) % 26);
      while (word.find(absent) != std::string_view::npos)
        absent = absent == 'z' ? 'a' : static_cast<char>(absent + 1);
      out.emplace_back(word, absent);
    }
    return out;
  }

  bool terse_;
  std::vector<std::vector<Pair>> pairs_;
};

}  // namespace

std::vector<TaskEntry> WordTasks() {
  return {{.info = {"spell_backward",
                    "spell an English word backwards",
                    "questions",
                    {LengthOption(), StyleOption("chat")}},
           .make = MakeSpaceTask<SpellBackward>,
           .units = CountSpace<SpellBackward>},
          {.info = {"letter_counting",
                    "how often a letter occurs in an English word",
                    "questions",
                    {LengthOption(), StyleOption("chat")}},
           .make = MakeSpaceTask<LetterCounting>,
           .units = CountSpace<LetterCounting>}};
}

}  // namespace tidepool::tasks
