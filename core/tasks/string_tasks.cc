// Tasks over random strings of given letters: small enough for models with one token a character.

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/rng.h"
#include "core/tasks/factories.h"

namespace tidepool::tasks {
namespace {

enum class Operation { kReverse, kSort };

std::vector<std::string> SplitCharacters(const std::string& text) {
  std::vector<std::string> out;
  for (const char c : text) {
    if ((static_cast<uint8_t>(c) & 0xC0U) != 0x80U || out.empty()) out.emplace_back();
    out.back() += c;
  }
  return out;
}

// A random string of `length` characters of `letters`, and what becomes of it. One stratum a length.
template <Operation operation>
class StringTask : public SpaceTask {
 public:
  StringTask(QuestionSpace space, const OptionValues& options, uint64_t seed)
      : SpaceTask(std::move(space)),
        length_(options.Range("length")),
        letters_(SplitCharacters(options.Text("letters"))),
        seed_(seed),
        terse_(options.Text("style") == "terse") {}

  static StatusOr<std::vector<int64_t>> Strata(const OptionValues& options) {
    std::vector<std::string> letters = SplitCharacters(options.Text("letters"));
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

 protected:
  [[nodiscard]] Question Decode(const QuestionSpace::Pick& pick) const override {
    CodeReader code(pick, seed_);
    std::vector<int64_t> places;  // of the letters, in the order of `letters`
    for (int64_t i = 0; i < length_.first + pick.stratum; ++i)
      places.push_back(code.Take(static_cast<int64_t>(letters_.size())));
    const auto spell = [&] {
      std::string text;
      for (const int64_t place : places) text += letters_[static_cast<size_t>(place)];
      return text;
    };
    Question q;
    const std::string text = spell();
    if constexpr (operation == Operation::kReverse) {
      std::ranges::reverse(places);
      q.prompt =
          terse_ ? "rev " + text + "=" : "Spell this backwards: " + text + ". Reply with only the result.";
    } else {
      std::ranges::sort(places);
      q.prompt =
          terse_ ? "sort " + text + "=" : "Sort these characters: " + text + ". Reply with only the result.";
    }
    q.answer = spell();
    q.fields = {{"answer_rule", "text"}, {"text", text}};
    return q;
  }

 private:
  std::pair<int64_t, int64_t> length_;
  std::vector<std::string> letters_;
  uint64_t seed_;
  bool terse_;
};

template <Operation operation>
TaskEntry Entry(const char* name, const char* doc, const char* letters) {
  return {.info = {name,
                   doc,
                   "questions",
                   {{"length", OptionKind::kRange, "[2, 6]", 1, 256, {}, "characters in a string"},
                    {"letters",
                     OptionKind::kText,
                     std::string("\"") + letters + "\"",
                     2,
                     256,
                     {},
                     "characters to draw from, each once; sorting follows this order"},
                    StyleOption("terse")}},
          .make = MakeSpaceTask<StringTask<operation>>,
          .units = CountSpace<StringTask<operation>>};
}

}  // namespace

std::vector<TaskEntry> StringTasks() {
  return {
      Entry<Operation::kReverse>("reverse", "spell a random string backwards", "abcdefghijklmnopqrstuvwxyz"),
      Entry<Operation::kSort>("sort_digits", "sort the digits of a random string", "0123456789"),
      Entry<Operation::kSort>("sort_letters", "sort the letters of a random string",
                              "abcdefghijklmnopqrstuvwxyz")};
}

}  // namespace tidepool::tasks
