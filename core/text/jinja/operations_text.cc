// Operations on text: methods of strings, and filters that take any value as text.

#include <algorithm>
#include <optional>

#include "core/text/jinja/operations.h"
#include "core/text/unicode.h"

namespace tidepool::text::jinja {
namespace {

// Python's str.isspace and str.strip also count the separators U+001C to U+001F.
bool IsPythonSpace(char32_t c) { return IsSpace(c) || (c >= 0x1C && c <= 0x1F); }
bool IsLetterOrNumber(char32_t c) { return IsLetter(c) || IsNumber(c); }

// --- one text to another
std::string TitleCase(std::string_view text) {
  std::string result;
  bool inside = false;  // a word: a run of cased characters
  for (const char32_t c : ToUtf32(text)) {
    if (inside) {
      AppendLower(c, &result);
    } else {
      AppendTitle(c, &result);
    }
    inside = IsCased(c);
  }
  return result;
}

// The filter title, unlike str.title: words are what stands between white space and - ( { [ <.
std::string TitleWords(std::string_view text) {
  std::string result;
  bool inside = false;
  for (const char32_t c : ToUtf32(text)) {
    if (inside) {
      AppendLower(c, &result);
    } else {
      result += ToUpper(ToUtf8({&c, 1}));
    }
    inside = !IsSpace(c) && std::u32string_view(U"-({[<").find(c) == std::u32string_view::npos;
  }
  return result;
}

std::string Capitalize(std::string_view text) {
  std::string result;
  for (const char32_t c : ToUtf32(text)) {
    if (result.empty()) {
      AppendTitle(c, &result);
    } else {
      AppendLower(c, &result);
    }
  }
  return result;
}

std::string EscapeHtml(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const size_t at = std::string_view("&<>\"'").find(c);
    constexpr const char* kEscaped[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    result += at == std::string_view::npos ? std::string(1, c) : kEscaped[at];
  }
  return result;
}

template <std::string (*change)(std::string_view)>
Value Changed(const Operands& o) {
  return o.e.String(change(o.Text()));
}
Value AsText(const Operands& o) { return o.self.is_string() ? o.self : o.e.String(o.Text()); }

// --- what holds for a text
template <bool (*holds)(char32_t)>
Value All(const Operands& o) {
  const std::u32string points = ToUtf32(o.self.string());
  return Value::Bool(!points.empty() && std::all_of(points.begin(), points.end(), holds));
}

template <std::string (*change)(std::string_view)>
Value InCase(const Operands& o) {
  const std::string text = o.Text();
  const std::u32string points = ToUtf32(text);
  return Value::Bool(std::any_of(points.begin(), points.end(), IsCased) && text == change(text));
}

Value HasAffix(const Operands& o) {  // startswith, endswith
  const Value* affixes = o.Get(0, "");
  if (affixes == nullptr || o.arguments.positional.size() > 1) return o.Fail("takes one value");
  for (const Value& affix : affixes->is(Kind::kTuple) ? affixes->list() : List{*affixes}) {
    std::string text;
    if (!o.TextArgument(&affix, &text)) return {};
    const std::string& self = o.self.string();
    if (o.name == "startswith" ? self.starts_with(text) : self.ends_with(text)) return Value::Bool(true);
  }
  return Value::Bool(false);
}

Value FindText(const Operands& o) {  // find, rfind, index, rindex, count
  const std::string& self = o.self.string();
  std::string what;
  if (!o.TextArgument(o.Get(0, "sub"), &what)) return {};
  if (o.arguments.positional.size() > 1) return o.Fail("takes no bounds here");
  if (o.name == "count") {
    if (what.empty()) return Value::Int(CharacterCount(self) + 1);
    int64_t count = 0;
    for (size_t at = self.find(what); at != std::string::npos; at = self.find(what, at + what.size()))
      ++count;
    return Value::Int(count);
  }
  const size_t at = o.name[0] == 'r' ? self.rfind(what) : self.find(what);
  if (at == std::string::npos)
    return o.name.ends_with("index") ? o.e.Fail("the text is not in the string") : Value::Int(-1);
  return Value::Int(CharacterCount(std::string_view(self).substr(0, at)));
}

Value CountWords(const Operands& o) {
  int64_t words = 0;
  bool inside = false;
  for (const char32_t c : ToUtf32(o.Text())) {
    words += IsWord(c) && !inside ? 1 : 0;
    inside = IsWord(c);
  }
  return Value::Int(words);
}

// Python's str.splitlines, without the ends of lines.
std::vector<std::string> SplitLines(std::string_view text) {
  std::vector<std::string> lines;
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = DecodeAt(text, at);
    const size_t begin = std::exchange(at, at + c.bytes);
    const bool ends = (c.value >= 0x0A && c.value <= 0x0D) || (c.value >= 0x1C && c.value <= 0x1E) ||
                      c.value == 0x85 || c.value == 0x2028 || c.value == 0x2029;
    if (!ends) continue;
    lines.emplace_back(text.substr(start, begin - start));
    if (c.value == '\r' && text.substr(at).starts_with('\n')) ++at;
    start = at;
  }
  if (start < text.size()) lines.emplace_back(text.substr(start));
  return lines;
}

// --- parts of a text, taken away and put in
Value StripText(const Operands& o) {  // strip, lstrip, rstrip, the filter trim
  const Value* characters = o.Get(0, "chars");
  const bool given = characters != nullptr && !characters->is(Kind::kNone);
  if (given && !characters->is_string()) return o.Fail("takes a string, not " + TypeName(*characters));
  return o.e.String(
      Strip(o.Text(), given ? &characters->string() : nullptr, o.name != "rstrip", o.name != "lstrip"));
}

Value RemoveAffix(const Operands& o) {  // removeprefix, removesuffix
  const std::string& self = o.self.string();
  std::string affix;
  if (!o.TextArgument(o.Get(0, ""), &affix)) return {};
  if (o.name == "removeprefix") return o.e.String(self.starts_with(affix) ? self.substr(affix.size()) : self);
  return o.e.String(self.ends_with(affix) ? self.substr(0, self.size() - affix.size()) : self);
}

Value Replace(const Operands& o) {
  const std::string text = o.Text();
  std::string from, to, result;
  int64_t count = -1;
  if (!o.TextArgument(o.Get(0, "old"), &from) || !o.TextArgument(o.Get(1, "new"), &to) ||
      !o.Integer(2, "count", &count)) {
    return {};
  }
  size_t at = 0;
  for (int64_t done = 0; count < 0 || done < count; ++done) {
    const size_t found = text.find(from, at);  // an empty one: before each character and at the end
    if (found == std::string::npos) break;
    result.append(text, at, found - at) += to;
    at = found + from.size();
    if (static_cast<int64_t>(result.size()) > o.e.heap().left())
      return o.Exhausted("makes a text that is too long");
    if (!from.empty()) continue;
    if (at == text.size()) break;
    const uint32_t bytes = DecodeAt(text, at).bytes;
    result.append(text, at, bytes);
    at += bytes;
  }
  return o.e.String(result.append(text, at));
}

Value Pad(const Operands& o) {  // center, ljust, rjust, zfill
  const std::string text = o.Text();
  int64_t width = o.kind == kFilter ? 80 : 0;
  std::string fill = o.name == "zfill" ? "0" : " ";
  if (!o.Integer(0, "width", &width)) return {};
  if (o.kind != kFilter && o.arguments.positional.size() > 1 &&
      !o.TextArgument(&o.arguments.positional[1], &fill)) {
    return {};
  }
  const int64_t space = width - CharacterCount(text);
  if (space <= 0) return o.e.String(text);
  if (space > o.e.heap().left() / 4) return o.Exhausted("makes a text that is too long");
  if (CharacterCount(fill) != 1) return o.Fail("takes one character to fill with");
  const int64_t before = o.name == "ljust" ? 0 : o.name == "center" ? space / 2 + (space & width & 1) : space;
  std::string left, right;
  for (int64_t i = 0; i < space; ++i) (i < before ? left : right) += fill;
  if (o.name == "zfill" && (text.starts_with('-') || text.starts_with('+')))
    return o.e.String(text[0] + left + text.substr(1));
  return o.e.String(left + text + right);
}

Value Indent(const Operands& o) {
  const Value* width = o.Get(0, "width");
  if (!o.self.is_string()) return o.Fail("takes a string, not " + TypeName(o.self));
  const bool first = o.Flag(1, "first"), blank = o.Flag(2, "blank");
  std::string indent(4, ' ');
  if (width != nullptr) {
    int64_t count = 4;
    if (width->is_string()) {
      indent = width->string();
    } else if (!o.Integer(0, "width", &count)) {
      return {};
    } else if (count > 10'000) {
      return o.Exhausted("takes a width of at most 10000");
    } else {
      indent.assign(static_cast<size_t>(std::max<int64_t>(count, 0)), ' ');
    }
  }
  const std::vector<std::string> lines = SplitLines(o.Text() + "\n");
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) text.push_back('\n');
    if (i == 0 ? first : !lines[i].empty() || blank) text += indent;
    text += lines[i];
    if (static_cast<int64_t>(text.size()) > o.e.heap().left())
      return o.Exhausted("makes a text that is too long");
  }
  return o.e.String(std::move(text));
}

// --- formats
Value FormatPercents(const Operands& o) {
  List values = o.arguments.positional;
  return o.e.FormatPercent(o.Text(), o.e.heap().NewTuple(std::move(values)));
}

// str.format with {}, {0} and {name}, without conversions and formats.
Value FormatBraces(const Operands& o) {
  const std::string& format = o.self.string();
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
    if (c == '}' || close == std::string::npos) return o.e.Fail("a single brace in a format");
    const std::string name = format.substr(i + 1, close - i - 1);
    const bool number = !name.empty() && name.size() < 6 &&
                        std::all_of(name.begin(), name.end(), [](char d) { return d >= '0' && d <= '9'; });
    const Value* value = nullptr;
    if (name.empty() || number) {
      const size_t place = name.empty() ? next++ : static_cast<size_t>(std::stoi(name));
      if (place < o.arguments.positional.size()) value = &o.arguments.positional[place];
    } else {
      value = o.Get(SIZE_MAX, name);
    }
    if (value == nullptr) return o.e.Fail("the format field {" + name + "} has no value or is not supported");
    text += o.e.Str(*value);
    i = close;
  }
  return o.e.String(std::move(text));
}

// --- a text to its parts
List Strings(const Operands& o, const std::vector<std::string_view>& parts) {
  List strings;
  for (const std::string_view part : parts) {
    if (o.e.Tick()) strings.push_back(o.e.String(std::string(part)));
  }
  return strings;
}

Value Lines(const Operands& o) {
  const std::vector<std::string> lines = SplitLines(o.self.string());
  return o.e.MakeList(Strings(o, {lines.begin(), lines.end()}));
}

Value Partition(const Operands& o) {  // partition, rpartition
  const std::string_view self = o.self.string();
  const Value* separator = o.Get(0, "");
  if (separator == nullptr || !separator->is_string() || separator->string().empty())
    return o.Fail("takes a string that is not empty");
  const std::string& by = separator->string();
  const bool forward = o.name == "partition";
  const size_t at = forward ? self.find(by) : self.rfind(by);
  return o.e.heap().NewTuple(at != std::string::npos
                                 ? Strings(o, {self.substr(0, at), by, self.substr(at + by.size())})
                             : forward ? Strings(o, {self, "", ""})
                                       : Strings(o, {"", "", self}));
}

// At white space. Before the limit: the rest is one part, without the white space at its end.
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

Value Split(const Operands& o) {  // split, rsplit
  const std::string_view self = o.self.string();
  const Value* separator = o.Get(0, "sep");
  const bool forward = o.name == "split";
  int64_t splits_max = -1;
  if (!o.e.IntegerArgument(o.Get(1, "maxsplit"), &splits_max, "split")) return {};
  if (separator == nullptr || separator->is(Kind::kNone)) {
    if (!forward && splits_max >= 0) return o.Fail("needs a separator when the number of splits is limited");
    const std::vector<std::string> parts = SplitSpace(self, splits_max);
    return o.e.MakeList(Strings(o, {parts.begin(), parts.end()}));
  }
  if (!separator->is_string() || separator->string().empty())
    return o.Fail("takes a string that is not empty");
  const std::string& by = separator->string();
  std::vector<std::string_view> parts;
  std::string_view rest = self;
  for (int64_t done = 0; splits_max < 0 || done < splits_max; ++done) {
    const size_t found = forward ? rest.find(by) : rest.rfind(by);
    if (found == std::string::npos) break;
    const std::string_view before = rest.substr(0, found), after = rest.substr(found + by.size());
    parts.push_back(forward ? before : after);
    rest = forward ? after : before;
  }
  parts.push_back(rest);
  if (!forward) std::reverse(parts.begin(), parts.end());
  return o.e.MakeList(Strings(o, parts));
}

constexpr Operation kTextOperations[] = {
    {kFilter | kOfString, "upper", Changed<ToUpper>},
    {kFilter | kOfString, "lower", Changed<ToLower>},
    {kOfString, "casefold", Changed<ToLower>},
    {kFilter | kOfString, "capitalize", Changed<Capitalize>},
    {kOfString, "title", Changed<TitleCase>},
    {kFilter, "title", Changed<TitleWords>},
    {kFilter, "escape e forceescape", Changed<EscapeHtml>},
    {kFilter, "string", AsText},
    {kFilter, "trim", StripText},
    {kOfString, "strip lstrip rstrip", StripText},
    {kOfString, "removeprefix removesuffix", RemoveAffix},
    {kFilter | kOfString, "replace", Replace},
    {kFilter | kOfString, "center", Pad},
    {kOfString, "ljust rjust zfill", Pad},
    {kFilter, "indent", Indent},
    {kFilter, "format", FormatPercents},
    {kOfString, "format", FormatBraces},
    {kOfString, "splitlines", Lines},
    {kOfString, "partition rpartition", Partition},
    {kOfString, "split rsplit", Split},
    {kOfString, "startswith endswith", HasAffix},
    {kOfString, "find rfind index rindex count", FindText},
    {kFilter, "wordcount", CountWords},
    {kOfString, "isdigit isnumeric isdecimal", All<IsNumber>},
    {kOfString, "isalpha", All<IsLetter>},
    {kOfString, "isalnum", All<IsLetterOrNumber>},
    {kOfString, "isspace", All<IsPythonSpace>},
    {kTest, "upper", InCase<ToUpper>},
    {kTest, "lower", InCase<ToLower>},
    {kOfString, "isupper", InCase<ToUpper>},
    {kOfString, "islower", InCase<ToLower>},
};

}  // namespace

std::span<const Operation> TextOperations() { return kTextOperations; }

std::string Strip(std::string_view text, const std::string* characters, bool left, bool right) {
  const std::u32string points = ToUtf32(text), set = characters == nullptr ? U"" : ToUtf32(*characters);
  const auto stays = [&](char32_t c) {
    return characters == nullptr ? !IsPythonSpace(c) : set.find(c) == std::u32string::npos;
  };
  const auto begin = left ? std::find_if(points.begin(), points.end(), stays) : points.begin();
  const auto end =
      right ? std::find_if(points.rbegin(), std::make_reverse_iterator(begin), stays).base() : points.end();
  return ToUtf8(std::u32string(begin, end));
}

}  // namespace tidepool::text::jinja
