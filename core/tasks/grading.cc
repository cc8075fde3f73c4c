#include "core/tasks/grading.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/base/utf8.h"

namespace tidepool::tasks {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool IsAlpha(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// The last n characters (UTF-8) of a text.
std::string_view LastCharacters(std::string_view text, int64_t n) {
  size_t i = text.size();
  while (i > 0 && n > 0) {
    --i;
    if (!ContinuesCharacter(text[i])) --n;
  }
  return text.substr(i);
}

std::string WithoutCommas(std::string_view text) {
  std::string out(text);
  std::erase(out, ',');
  return out;
}

// sign * 0.digits * 10^exponent, digits without zeros at either end; zero has no digits.
struct Decimal {
  bool negative = false;
  std::string digits;
  int64_t exponent = 0;
  friend bool operator==(const Decimal&, const Decimal&) = default;
};

std::optional<Decimal> ParseDecimal(std::string_view text) {
  text = Trim(text);
  Decimal d;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    d.negative = text[0] == '-';
    text.remove_prefix(1);
  }
  bool point = false;
  bool any = false;
  size_t i = 0;
  for (; i < text.size(); ++i) {
    if (IsDigit(text[i])) {
      d.digits += text[i];
      if (!point) ++d.exponent;
      any = true;
    } else if (text[i] == '.' && !point) {
      point = true;
    } else {
      break;
    }
  }
  if (!any) return std::nullopt;
  if (i < text.size()) {
    if (text[i] != 'e' && text[i] != 'E') return std::nullopt;
    std::string_view tail = text.substr(i + 1);
    if (!tail.empty() && tail[0] == '+') tail.remove_prefix(1);
    int64_t e = 0;
    const auto [end, error] = std::from_chars(tail.data(), tail.data() + tail.size(), e);
    if (error != std::errc() || end != tail.data() + tail.size() || std::abs(e) > 1'000'000'000)
      return std::nullopt;
    d.exponent += e;
  }
  const size_t first = d.digits.find_first_not_of('0');
  if (first == std::string::npos) return Decimal{};  // zero; -0 equals 0
  d.digits.erase(0, first);
  d.exponent -= static_cast<int64_t>(first);
  d.digits.erase(d.digits.find_last_not_of('0') + 1);
  return d;
}

// Recursive descent over numbers, + - * /, brackets and signs.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::string_view text) : text_(text) {}
  std::optional<double> Parse() {
    const double value = Sum(0);
    Skip();
    if (failed_ || at_ != text_.size() || !std::isfinite(value)) return std::nullopt;
    return value;
  }

 private:
  static constexpr int kMaxDepth = 200;

  void Skip() {
    while (at_ < text_.size() && IsSpace(text_[at_])) ++at_;
  }
  bool Take(char c) {
    Skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  double Fail() {
    failed_ = true;
    return 0;
  }
  double Sum(int depth) {
    double value = Product(depth);
    while (!failed_) {
      if (Take('+')) {
        value += Product(depth);
      } else if (Take('-')) {
        value -= Product(depth);
      } else {
        break;
      }
    }
    return value;
  }
  double Product(int depth) {
    double value = Signed(depth);
    while (!failed_) {
      if (Take('*')) {
        value *= Signed(depth);
      } else if (Take('/')) {
        const double by = Signed(depth);
        if (by == 0) return Fail();
        value /= by;
      } else {
        break;
      }
    }
    return value;
  }
  double Signed(int depth) {
    bool negative = false;
    while (true) {
      if (Take('-')) {
        negative = !negative;
      } else if (!Take('+')) {
        break;
      }
    }
    const double value = Atom(depth);
    return negative ? -value : value;
  }
  double Atom(int depth) {
    if (depth > kMaxDepth) return Fail();
    if (Take('(')) {
      const double value = Sum(depth + 1);
      return Take(')') ? value : Fail();
    }
    Skip();
    const size_t start = at_;
    while (at_ < text_.size() && IsDigit(text_[at_])) ++at_;
    const size_t whole = at_ - start;
    size_t fraction = 0;
    bool point = false;
    if (at_ < text_.size() && text_[at_] == '.') {
      point = true;
      ++at_;
      const size_t from = at_;
      while (at_ < text_.size() && IsDigit(text_[at_])) ++at_;
      fraction = at_ - from;
    }
    if (whole + fraction == 0) return Fail();
    const std::string_view number = text_.substr(start, at_ - start);
    if (!point && whole > 1 && number[0] == '0' && number.find_first_not_of('0') != std::string_view::npos)
      return Fail();
    double value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error != std::errc()) return Fail();
    return value;
  }

  std::string_view text_;
  size_t at_ = 0;
  bool failed_ = false;
};

// Whether the digit runs of the text, as integers, are exactly `numbers` in some order.
bool UsesExactly(std::string_view text, std::vector<int64_t> numbers) {
  std::vector<int64_t> found;
  for (size_t i = 0; i < text.size();) {
    if (!IsDigit(text[i])) {
      ++i;
      continue;
    }
    size_t j = i;
    while (j < text.size() && IsDigit(text[j])) ++j;
    int64_t value = 0;
    if (std::from_chars(text.data() + i, text.data() + j, value).ec != std::errc()) return false;
    found.push_back(value);
    i = j;
  }
  std::ranges::sort(found);
  std::ranges::sort(numbers);
  return found == numbers;
}

std::optional<double> ParseDouble(std::string_view text) {
  text = Trim(text);
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

}  // namespace

std::string_view Trim(std::string_view text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsSpace(text.back())) text.remove_suffix(1);
  return text;
}

std::optional<std::string> ExtractAnswer(std::string_view text) {
  constexpr std::string_view kOpen = "<answer>";
  constexpr std::string_view kClose = "</answer>";
  // Pairs are read from the left, each opening tag with the next closing one, as a non-greedy
  // regular expression does; the last pair counts.
  std::optional<std::string_view> last;
  for (size_t at = 0;;) {
    const size_t open = text.find(kOpen, at);
    if (open == std::string_view::npos) break;
    const size_t close = text.find(kClose, open + kOpen.size());
    if (close == std::string_view::npos) break;
    last = text.substr(open + kOpen.size(), close - open - kOpen.size());
    at = close + kClose.size();
  }
  if (!last) return std::nullopt;
  return std::string(Trim(*last));
}

std::optional<std::string> LastNumber(std::string_view text) {
  size_t end = text.size();
  while (end > 0 && !IsDigit(text[end - 1])) --end;
  if (end == 0) return std::nullopt;
  // Walk left over digits, ",ddd" groups and at most one point that has digits on both sides.
  size_t begin = end;
  bool point = false;
  size_t run = 0;  // digits since the last separator
  while (begin > 0) {
    const char c = text[begin - 1];
    if (IsDigit(c)) {
      ++run;
    } else if (c == '.' && !point && begin >= 2 && IsDigit(text[begin - 2]) &&
               text.substr(begin, end - begin).find(',') == std::string_view::npos) {
      point = true;
      run = 0;
    } else if (c == ',' && run == 3 && begin >= 2 && IsDigit(text[begin - 2])) {
      run = 0;
    } else {
      break;
    }
    --begin;
  }
  if (begin > 0 && text[begin - 1] == '-') {
    const char before = begin >= 2 ? text[begin - 2] : ' ';
    if (!IsDigit(before) && !IsAlpha(before) && before != ')' && before != ']') --begin;
  }
  return WithoutCommas(text.substr(begin, end - begin));
}

bool DecimalsEqual(std::string_view a, std::string_view b) {
  const auto x = ParseDecimal(a);
  return x && x == ParseDecimal(b);
}

double DecimalScore(std::string_view answer, std::string_view truth) {
  const std::string given = WithoutCommas(answer);
  const std::string right = WithoutCommas(truth);
  if (given.empty()) return 0;
  if (DecimalsEqual(given, right)) return 1;
  if (given.find(right) == std::string::npos) return 0;
  return static_cast<double>(CharacterCount(right)) / static_cast<double>(CharacterCount(given));
}

double Gsm8kScore(std::string_view response, std::string_view truth, Gsm8kMethod method) {
  response = LastCharacters(response, 300);
  const auto in_number = [](char c) { return IsDigit(c) || c == ',' || c == '.'; };
  const auto number_at = [&](size_t at) {  // the number that starts here, or nothing
    const size_t digits = at < response.size() && response[at] == '-' ? at + 1 : at;
    size_t end = digits;
    while (end < response.size() && in_number(response[end])) ++end;
    return end == digits ? std::string_view() : response.substr(at, end - at);
  };
  std::string_view found;
  if (method == Gsm8kMethod::kStrict) {
    for (size_t at = response.find("#### "); at != std::string_view::npos;
         at = response.find("#### ", at + 1)) {
      if (const std::string_view number = number_at(at + 5); !number.empty()) found = number;
    }
    return !found.empty() && WithoutCommas(found) == truth ? 1 : 0;
  }
  for (size_t at = 0; at < response.size();) {
    const std::string_view number = number_at(at);
    if (!number.empty() && number != ".") found = number;
    at += std::max<size_t>(number.size(), 1);
  }
  return !found.empty() && found == truth ? 1 : 0;
}

std::optional<double> EvaluateExpression(std::string_view expression) {
  return ExpressionParser(expression).Parse();
}

double CountdownScore(std::string_view response, const std::vector<int64_t>& numbers, int64_t target,
                      double score, double format_score) {
  const size_t newline = response.rfind('\n');
  if (newline != std::string_view::npos) response.remove_prefix(newline + 1);
  const auto answer = ExtractAnswer(response);
  if (!answer) return 0;
  if (!UsesExactly(*answer, numbers)) return format_score;
  const auto value = EvaluateExpression(*answer);
  return value && std::abs(*value - static_cast<double>(target)) < 1e-5 ? score : format_score;
}

double CountdownExpressionScore(const std::optional<std::string>& answer, const std::vector<int64_t>& numbers,
                                double target) {
  if (!answer || Trim(*answer).empty()) return 0.01;
  const auto value = EvaluateExpression(*answer);
  if (!value) return 0.01;
  const bool right =
      UsesExactly(*answer, numbers) && std::abs(*value - target) <= 1e-6 + 1e-5 * std::abs(target);
  return right ? 1 : 0.05;
}

double SortingScore(std::string_view answer, const std::vector<double>& expected, SortDirection direction,
                    double tolerance) {
  std::string text(answer);
  std::ranges::replace(text, '\'', '"');
  const auto list = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!list.is_array() || list.size() != expected.size()) return 0;
  std::vector<double> given;
  for (const auto& item : list) {
    const std::optional<double> value = item.is_number()   ? std::optional(item.get<double>())
                                        : item.is_string() ? ParseDouble(item.get_ref<const std::string&>())
                                                           : std::nullopt;
    if (!value) return 0;
    given.push_back(*value);
  }
  for (size_t i = 0; i < given.size(); ++i) {
    if (!(std::abs(given[i] - expected[i]) <= tolerance)) return 0;
    if (i == 0) continue;
    if (direction == SortDirection::kAscending ? given[i] < given[i - 1] : given[i] > given[i - 1]) return 0;
  }
  return 1;
}

}  // namespace tidepool::tasks
