// Filters on text and numbers, and the dispatch of all filters.

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/text/jinja/evaluator.h"
#include "core/text/unicode.h"

namespace tidepool::text::jinja {
namespace {

// Python's int(text, base), without the surrounding blanks; nothing if it is no such number.
std::optional<int64_t> ParseInteger(std::string_view given, int base) {
  std::string text;
  const std::string stripped = Strip(given, nullptr, true, true);
  for (size_t i = 0; i < stripped.size(); ++i) {
    if (stripped[i] == '_' && i > 0 && i + 1 < stripped.size()) continue;
    text.push_back(stripped[i]);
  }
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.erase(0, 1);
  for (const auto& [prefix, prefix_base] : {std::pair{"0x", 16}, {"0o", 8}, {"0b", 2}}) {
    if (base == prefix_base && ToLower(text).starts_with(prefix)) text.erase(0, 2);
  }
  if (text.empty() || text[0] == '-') return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return negative ? -value : value;
}

std::optional<double> ParseFloat(std::string_view given) {
  std::string text = Strip(given, nullptr, true, true);
  if (text.starts_with('+')) text.erase(0, 1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<int64_t> Truncate(double value) {
  if (!(value > -9.2e18 && value < 9.2e18)) return std::nullopt;
  return static_cast<int64_t>(value);
}

// The filter title, unlike str.title: words are what stands between white space and - ( { [ <.
std::string TitleWords(std::string_view text) {
  std::string result;
  bool inside = false;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = DecodeAt(text, at);
    const bool between =
        IsSpace(c.value) || (c.value < 0x80 && std::string_view("-({[<").find(static_cast<char>(c.value)) !=
                                                   std::string_view::npos);
    if (between) {
      AppendUtf8(c.value, &result);
    } else if (inside) {
      AppendLower(c.value, &result);
    } else {
      result += ToUpper(text.substr(at, c.bytes));
    }
    inside = !between;
    at += c.bytes;
  }
  return result;
}

std::string EscapeHtml(const std::string& text) {
  std::string result;
  for (const char c : text) {
    const size_t at = std::string_view("&<>\"'").find(c);
    constexpr const char* kEscaped[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    result += at == std::string_view::npos ? std::string(1, c) : kEscaped[at];
  }
  return result;
}

}  // namespace

Value Evaluator::Filter(const std::string& name, const Value& input, const Arguments& arguments) {
  Value result;
  if (FilterText(name, input, arguments, &result)) return result;
  if (FilterSequence(name, input, arguments, &result)) return result;
  return Fail("no filter is named '" + name + "'");
}

bool Evaluator::FilterText(const std::string& name, const Value& input, const Arguments& arguments,
                           Value* result) {
  const auto get = [&](size_t place, const char* key) { return arguments.Get(place, key); };
  if (name == "default" || name == "d") {
    const Value* fallback = get(0, "default_value");
    const bool use = input.is(Kind::kUndefined) || (arguments.Flag(1, "boolean") && !Truth(input));
    *result = !use ? input : fallback != nullptr ? *fallback : String("");
  } else if (name == "trim") {
    const Value* characters = get(0, "chars");
    const bool some = characters != nullptr && characters->is_string();
    *result = String(Strip(Str(input), some ? &characters->string() : nullptr, true, true));
  } else if (name == "upper") {
    *result = String(ToUpper(Str(input)));
  } else if (name == "lower") {
    *result = String(ToLower(Str(input)));
  } else if (name == "title") {
    *result = String(TitleWords(Str(input)));
  } else if (name == "capitalize") {
    *result = String(Capitalize(Str(input)));
  } else if (name == "string") {
    *result = input.is_string() ? input : String(Str(input));
  } else if (name == "safe") {
    *result = input;
  } else if (name == "escape" || name == "e" || name == "forceescape") {
    *result = String(EscapeHtml(Str(input)));
  } else if (name == "replace") {
    const Value* from = get(0, "old");
    const Value* to = get(1, "new");
    int64_t count = -1;
    if (from == nullptr || to == nullptr) {
      Fail("the filter replace takes an old and a new text");
    } else if (IntegerArgument(get(2, "count"), &count, "replace")) {
      *result = String(ReplaceAll(Str(input), Str(*from), Str(*to), count));
    }
  } else if (name == "indent") {
    *result = IndentFilter(input, arguments);
  } else if (name == "tojson") {
    *result = JsonFilter(input, arguments);
  } else if ((name == "int" || name == "float") && input.is(Kind::kUndefined)) {
    Fail("the filter " + name + " met an undefined value");
  } else if (name == "int") {
    int64_t base = 10;
    const Value* fallback = get(0, "default");
    std::optional<int64_t> value;
    if (!IntegerArgument(get(1, "base"), &base, "int")) return true;
    if (base < 2 || base > 36) {
      Fail("the filter int takes a base from 2 to 36");
      return true;
    }
    if (input.is_string()) {
      value = ParseInteger(input.string(), static_cast<int>(base));
      if (!value) {
        const std::optional<double> real = ParseFloat(input.string());
        if (real) value = Truncate(*real);
      }
    } else if (input.is_number()) {
      value = input.is(Kind::kFloat) ? Truncate(input.real()) : std::optional(input.integer());
    }
    *result = value ? Value::Int(*value) : fallback != nullptr ? *fallback : Value::Int(0);
  } else if (name == "float") {
    const Value* fallback = get(0, "default");
    std::optional<double> value;
    if (input.is_string()) value = ParseFloat(input.string());
    if (input.is_number()) value = input.real();
    *result = value ? Value::Float(*value) : fallback != nullptr ? *fallback : Value::Float(0.0);
  } else if (name == "abs") {
    if (!input.is_number()) {
      Fail("the filter abs takes a number, not " + TypeName(input));
    } else if (input.is(Kind::kFloat)) {
      *result = Value::Float(std::fabs(input.real()));
    } else {
      *result =
          input.integer() < 0 ? IntegerArithmetic('-', 0, input.integer()) : Value::Int(input.integer());
    }
  } else if (name == "round") {
    *result = RoundFilter(input, arguments);
  } else if (name == "wordcount") {
    int64_t words = 0;
    bool inside = false;
    const std::string text = Str(input);
    for (size_t at = 0; at < text.size();) {
      const CodePoint c = DecodeAt(text, at);
      const bool word = IsWord(c.value);
      if (word && !inside) ++words;
      inside = word;
      at += c.bytes;
    }
    *result = Value::Int(words);
  } else if (name == "format") {
    List values = arguments.positional;
    *result = FormatPercent(Str(input), heap_.NewTuple(std::move(values)));
  } else if (name == "center") {
    int64_t width = 80;
    if (!IntegerArgument(get(0, "width"), &width, "center")) return true;
    const std::string text = Str(input);
    const int64_t space = width - LengthInCodePoints(text);
    if (space <= 0) {
      *result = String(text);
    } else if (space > heap_.left()) {
      Exhausted("the filter center makes a text that is too long");
    } else {
      const int64_t left = space / 2 + (space & width & 1);
      *result = String(std::string(static_cast<size_t>(left), ' ') + text +
                       std::string(static_cast<size_t>(space - left), ' '));
    }
  } else {
    return false;
  }
  return true;
}

Value Evaluator::IndentFilter(const Value& input, const Arguments& arguments) {
  const Value* width = arguments.Get(0, "width");
  if (!input.is_string()) return Fail("the filter indent takes a string, not " + TypeName(input));
  const bool first = arguments.Flag(1, "first"), blank = arguments.Flag(2, "blank");
  std::string indent(4, ' ');
  if (width != nullptr) {
    int64_t count = 4;
    if (width->is_string()) {
      indent = width->string();
    } else if (!IntegerArgument(width, &count, "indent")) {
      return {};
    } else if (count > 10'000) {
      return Exhausted("the filter indent takes a width of at most 10000");
    } else {
      indent.assign(static_cast<size_t>(std::max<int64_t>(count, 0)), ' ');
    }
  }
  const std::vector<std::string> lines = SplitLines(Str(input) + "\n");
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) text.push_back('\n');
    if (i == 0 ? first : !lines[i].empty() || blank) text += indent;
    text += lines[i];
    if (static_cast<int64_t>(text.size()) > heap_.left())
      return Exhausted("the filter indent makes a text that is too long");
  }
  return String(std::move(text));
}

Value Evaluator::JsonFilter(const Value& input, const Arguments& arguments) {
  // The order of parameters is that of transformers' filter.
  JsonStyle style;
  style.ensure_ascii = arguments.Flag(0, "ensure_ascii");
  if (!IntegerArgument(arguments.Get(1, "indent"), &style.indent, "tojson")) return {};
  if (style.indent > 1000) return Exhausted("the filter tojson takes an indent of at most 1000");
  if (const Value* separators = arguments.Get(2, "separators");
      separators != nullptr && separators->is_sequence() && separators->list().size() == 2) {
    style.item_separator = Str(separators->list()[0]);
    style.key_separator = Str(separators->list()[1]);
  }
  style.sort_keys = arguments.Flag(3, "sort_keys");
  std::string text;
  if (const Status status = AppendJson(input, style, &text); !status.ok()) return Fail(status.message());
  return String(std::move(text));
}

Value Evaluator::RoundFilter(const Value& input, const Arguments& arguments) {
  int64_t precision = 0;
  const Value* method = arguments.Get(1, "method");
  const std::string how = method != nullptr ? Str(*method) : "common";
  if (!IntegerArgument(arguments.Get(0, "precision"), &precision, "round")) return {};
  if (!input.is_number()) return Fail("the filter round takes a number, not " + TypeName(input));
  if (precision < -300 || precision > 300) return Fail("the filter round takes a precision from -300 to 300");
  if (how == "common") {
    if (input.is_integer() && precision >= 0) return Value::Int(input.integer());
    char buffer[700];
    if (precision >= 0) {  // decimal rounding of the exact value, half to even, as Python's round
      std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(precision), input.real());
      return Value::Float(std::strtod(buffer, nullptr));
    }
    const double scale = std::pow(10.0, static_cast<double>(-precision));
    const double value = std::nearbyint(input.real() / scale) * scale;
    if (input.is_integer()) {
      const std::optional<int64_t> whole = Truncate(value);
      return whole ? Value::Int(*whole) : Fail("an integer beyond 64 bits");
    }
    return Value::Float(value);
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (how == "ceil") return Value::Float(std::ceil(input.real() * scale) / scale);
  if (how == "floor") return Value::Float(std::floor(input.real() * scale) / scale);
  return Fail("the filter round knows the methods common, ceil and floor");
}

}  // namespace tidepool::text::jinja
