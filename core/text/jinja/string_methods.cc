// Methods of strings, and the text operations that filters share with them.

#include <algorithm>

#include "core/text/jinja/evaluator.h"
#include "core/text/unicode.h"

namespace tidepool::text::jinja {
namespace {

// Python's str.isspace and str.strip also count the separators U+001C to U+001F.
bool IsPythonSpace(char32_t c) { return IsSpace(c) || (c >= 0x1C && c <= 0x1F); }

size_t CharacterBefore(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

}  // namespace

int64_t LengthInCodePoints(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

std::string Strip(std::string_view text, const std::string* characters, bool left, bool right) {
  const std::u32string set = characters == nullptr ? std::u32string() : ToUtf32(*characters);
  const auto goes = [&](char32_t c) {
    return characters == nullptr ? IsPythonSpace(c) : set.find(c) != std::u32string::npos;
  };
  size_t begin = 0;
  size_t end = text.size();
  while (left && begin < end) {
    const CodePoint c = DecodeAt(text, begin);
    if (!goes(c.value)) break;
    begin += c.bytes;
  }
  while (right && end > begin) {
    const size_t at = CharacterBefore(text, end);
    if (!goes(DecodeAt(text, at).value)) break;
    end = at;
  }
  return std::string(text.substr(begin, end - begin));
}

std::string ReplaceAll(std::string_view text, std::string_view from, std::string_view to, int64_t count) {
  std::string result;
  size_t at = 0;
  if (from.empty()) {  // before each character and at the end
    int64_t done = 0;
    while (true) {
      if (count < 0 || done < count) {
        result += to;
        ++done;
      }
      if (at >= text.size()) break;
      const uint32_t bytes = DecodeAt(text, at).bytes;
      result += text.substr(at, bytes);
      at += bytes;
    }
    return result;
  }
  for (int64_t done = 0; count < 0 || done < count; ++done) {
    const size_t found = text.find(from, at);
    if (found == std::string_view::npos) break;
    result += text.substr(at, found - at);
    result += to;
    at = found + from.size();
  }
  result += text.substr(at);
  return result;
}

std::string TitleCase(std::string_view text) {
  std::string result;
  bool inside = false;  // a word: a run of cased characters
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = DecodeAt(text, at);
    if (inside) {
      AppendLower(c.value, &result);
    } else {
      AppendTitle(c.value, &result);
    }
    inside = IsCased(c.value);
    at += c.bytes;
  }
  return result;
}

std::string Capitalize(std::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = DecodeAt(text, at);
    if (at == 0) {
      AppendTitle(c.value, &result);
    } else {
      AppendLower(c.value, &result);
    }
    at += c.bytes;
  }
  return result;
}

std::vector<std::string> SplitLines(std::string_view text) {
  std::vector<std::string> lines;
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = DecodeAt(text, at);
    size_t next = at + c.bytes;
    const bool ends = (c.value >= 0x0A && c.value <= 0x0D) || (c.value >= 0x1C && c.value <= 0x1E) ||
                      c.value == 0x85 || c.value == 0x2028 || c.value == 0x2029;
    if (ends) {
      lines.emplace_back(text.substr(start, at - start));
      if (c.value == '\r' && next < text.size() && text[next] == '\n') ++next;
      start = next;
    }
    at = next;
  }
  if (start < text.size()) lines.emplace_back(text.substr(start));
  return lines;
}

std::vector<std::string> SplitSpace(std::string_view text, int64_t splits_max) {
  std::vector<std::string> parts;
  size_t at = 0;
  const auto skip = [&](bool space) {
    while (at < text.size()) {
      const CodePoint c = DecodeAt(text, at);
      if (IsPythonSpace(c.value) != space) break;
      at += c.bytes;
    }
  };
  for (skip(true); at < text.size(); skip(true)) {
    if (splits_max >= 0 && static_cast<int64_t>(parts.size()) == splits_max) {
      parts.push_back(Strip(text.substr(at), nullptr, false, true));
      return parts;
    }
    const size_t begin = at;
    skip(false);
    parts.emplace_back(text.substr(begin, at - begin));
  }
  return parts;
}

Value Evaluator::StringMethod(const std::string& self, const std::string& name, const Arguments& arguments) {
  operations_ += static_cast<int64_t>(self.size()) / 64;
  const Value* first = arguments.Get(0, "");
  const auto text_argument = [&](const Value* value, std::string* text) {
    if (value != nullptr && value->is_string()) {
      *text = value->string();
      return true;
    }
    Fail("the method " + name + " takes a string" +
         (value == nullptr ? std::string() : ", not " + TypeName(*value)));
    return false;
  };
  Value result;
  if (StringSplitMethod(self, name, arguments, &result) || StringPredicate(self, name, &result))
    return result;
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    std::string set;
    const bool all = first == nullptr || first->is(Kind::kNone);
    if (!all && !text_argument(first, &set)) return {};
    return String(Strip(self, all ? nullptr : &set, name != "rstrip", name != "lstrip"));
  }
  if (name == "startswith" || name == "endswith") {
    if (first == nullptr || arguments.positional.size() > 1)
      return Fail("the method " + name + " takes one value");
    const List candidates = first->is(Kind::kTuple) ? first->list() : List{*first};
    for (const Value& candidate : candidates) {
      std::string affix;
      if (!text_argument(&candidate, &affix)) return {};
      if (name == "startswith" ? self.starts_with(affix) : self.ends_with(affix)) return Value::Bool(true);
    }
    return Value::Bool(false);
  }
  if (name == "upper") return String(ToUpper(self));
  if (name == "lower" || name == "casefold") return String(ToLower(self));
  if (name == "title") return String(TitleCase(self));
  if (name == "capitalize") return String(Capitalize(self));
  if (name == "replace") {
    std::string from;
    std::string to;
    int64_t count = -1;
    if (!text_argument(first, &from) || !text_argument(arguments.Get(1, "new"), &to) ||
        !IntegerArgument(arguments.Get(2, "count"), &count, "replace")) {
      return {};
    }
    // What comes out is at most one copy of `to` for each character and the text itself.
    if (!to.empty() &&
        static_cast<int64_t>(self.size()) + 1 > heap_.left() / static_cast<int64_t>(to.size())) {
      return Exhausted("the method replace makes a text that is too long");
    }
    return String(ReplaceAll(self, from, to, count));
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex" || name == "count") {
    return StringFind(self, name, arguments);
  }
  if (name == "join") {
    Arguments separator;
    separator.positional = {String(self)};
    if (first == nullptr) return Fail("the method join takes a list");
    for (const Value& item : Iterate(*first)) {
      if (!item.is_string()) return Fail("the method join takes strings, not " + TypeName(item));
    }
    return Filter("join", *first, separator);
  }
  if (name == "removeprefix" || name == "removesuffix") {
    std::string affix;
    if (!text_argument(first, &affix)) return {};
    if (name == "removeprefix") return String(self.starts_with(affix) ? self.substr(affix.size()) : self);
    return String(self.ends_with(affix) ? self.substr(0, self.size() - affix.size()) : self);
  }
  if (name == "zfill" || name == "ljust" || name == "rjust" || name == "center") {
    int64_t width = 0;
    std::string fill = name == "zfill" ? "0" : " ";
    if (!IntegerArgument(first, &width, name.c_str())) return {};
    if (arguments.positional.size() > 1 && !text_argument(&arguments.positional[1], &fill)) return {};
    const int64_t space = width - LengthInCodePoints(self);
    if (space <= 0) return String(self);
    if (space > heap_.left() / 4 || LengthInCodePoints(fill) != 1)
      return Fail("the method " + name +
                  " makes a text that is too long, or its filler is not one character");
    const int64_t before = name == "ljust" ? 0 : name == "center" ? space / 2 + (space & width & 1) : space;
    std::string left;
    std::string right;
    for (int64_t i = 0; i < before; ++i) left += fill;
    for (int64_t i = before; i < space; ++i) right += fill;
    if (name == "zfill" && (self.starts_with('-') || self.starts_with('+')))
      return String(self[0] + left + self.substr(1));
    return String(left + self + right);
  }
  return FormatBraces(self, arguments);  // format
}

bool Evaluator::StringSplitMethod(const std::string& self, const std::string& name,
                                  const Arguments& arguments, Value* result) {
  List parts;
  const auto add = [&](std::string_view part) {
    if (Tick()) parts.push_back(String(std::string(part)));
  };
  if (name == "splitlines") {
    for (const std::string& line : SplitLines(self)) add(line);
    *result = MakeList(std::move(parts));
    return true;
  }
  const Value* separator = arguments.Get(0, name.ends_with("partition") ? "" : "sep");
  const bool by_space = separator == nullptr || separator->is(Kind::kNone);
  const std::string by = !by_space && separator->is_string() ? separator->string() : std::string();
  if (name == "partition" || name == "rpartition") {
    if (by.empty()) {
      Fail("the method " + name + " takes a string that is not empty");
      return true;
    }
    const size_t at = name == "partition" ? self.find(by) : self.rfind(by);
    if (at == std::string::npos) {
      add(name == "partition" ? self : "");
      add("");
      add(name == "partition" ? "" : self);
    } else {
      add(std::string_view(self).substr(0, at));
      add(by);
      add(std::string_view(self).substr(at + by.size()));
    }
    *result = heap_.NewTuple(std::move(parts));
    return true;
  }
  if (name != "split" && name != "rsplit") return false;
  int64_t splits_max = -1;
  if (!IntegerArgument(arguments.Get(1, "maxsplit"), &splits_max, "split")) return true;
  if (!by_space && by.empty()) {
    Fail("the method " + name + " takes a string that is not empty");
    return true;
  }
  if (by_space) {
    if (name == "rsplit" && splits_max >= 0) {
      Fail("the method rsplit needs a separator when the number of splits is limited");
      return true;
    }
    for (const std::string& part : SplitSpace(self, splits_max)) add(part);
  } else if (name == "split") {
    size_t at = 0;
    for (int64_t done = 0; splits_max < 0 || done < splits_max; ++done) {
      const size_t found = self.find(by, at);
      if (found == std::string::npos) break;
      add(std::string_view(self).substr(at, found - at));
      at = found + by.size();
    }
    add(std::string_view(self).substr(at));
  } else {
    size_t end = self.size();
    for (int64_t done = 0; (splits_max < 0 || done < splits_max) && end >= by.size(); ++done) {
      const size_t found = self.rfind(by, end - by.size());
      if (found == std::string::npos) break;
      add(std::string_view(self).substr(found + by.size(), end - found - by.size()));
      end = found;
    }
    add(std::string_view(self).substr(0, end));
    std::reverse(parts.begin(), parts.end());
  }
  *result = MakeList(std::move(parts));
  return true;
}

bool Evaluator::StringPredicate(const std::string& self, const std::string& name, Value* result) {
  if (!name.starts_with("is")) return false;
  if (name == "isupper" || name == "islower") {
    *result = Value::Bool(Test(name.substr(2), String(self), {}));
    return true;
  }
  bool all = !self.empty();
  for (size_t at = 0; at < self.size() && all;) {
    const CodePoint c = DecodeAt(self, at);
    const bool digit = IsNumber(c.value);
    const bool letter = IsLetter(c.value);
    if (name == "isspace") {
      all = IsPythonSpace(c.value);
    } else if (name == "isalpha") {
      all = letter;
    } else if (name == "isalnum") {
      all = letter || digit;
    } else {
      all = digit;
    }
    at += c.bytes;
  }
  *result = Value::Bool(all);
  return true;
}

Value Evaluator::StringFind(const std::string& self, const std::string& name, const Arguments& arguments) {
  const Value* what = arguments.Get(0, "sub");
  if (what == nullptr || !what->is_string()) return Fail("the method " + name + " takes a string");
  if (arguments.positional.size() > 1) return Fail("the method " + name + " takes no bounds here");
  if (name == "count") {
    if (what->string().empty()) return Value::Int(LengthInCodePoints(self) + 1);
    int64_t count = 0;
    for (size_t at = self.find(what->string()); at != std::string::npos;
         at = self.find(what->string(), at + what->string().size())) {
      ++count;
    }
    return Value::Int(count);
  }
  const size_t at = name[0] == 'r' ? self.rfind(what->string()) : self.find(what->string());
  if (at == std::string::npos)
    return name.ends_with("index") ? Fail("the text is not in the string") : Value::Int(-1);
  return Value::Int(LengthInCodePoints(std::string_view(self).substr(0, at)));
}

// str.format with {}, {0} and {name}, without conversions and formats.
Value Evaluator::FormatBraces(const std::string& format, const Arguments& arguments) {
  std::string text;
  size_t next = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    const char c = format[i];
    if (c != '{' && c != '}') {
      text.push_back(c);
      continue;
    }
    if (i + 1 < format.size() && format[i + 1] == c) {
      text.push_back(c);
      ++i;
      continue;
    }
    const size_t close = format.find('}', i);
    if (c == '}' || close == std::string::npos) return Fail("a single brace in a format");
    const std::string name = format.substr(i + 1, close - i - 1);
    const bool number = !name.empty() && name.size() < 6 &&
                        std::all_of(name.begin(), name.end(), [](char d) { return d >= '0' && d <= '9'; });
    const Value* value = nullptr;
    if (name.empty() || number) {
      const size_t place = name.empty() ? next++ : static_cast<size_t>(std::stoi(name));
      if (place < arguments.positional.size()) value = &arguments.positional[place];
    } else {
      value = arguments.Get(SIZE_MAX, name);
    }
    if (value == nullptr) return Fail("the format field {" + name + "} has no value or is not supported");
    text += Str(*value);
    i = close;
  }
  return String(std::move(text));
}

}  // namespace tidepool::text::jinja
