#include "core/text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "core/text/unicode.h"

namespace tidepool::text::jinja {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool IsBlank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// \r\n and \r become \n; one line end at the end goes.
std::string NormalizeLines(std::string_view source) {
  std::string result;
  result.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      result.push_back('\n');
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      result.push_back(source[i]);
    }
  }
  if (result.ends_with('\n')) result.pop_back();
  return result;
}

// Longest first.
constexpr std::array<std::string_view, 27> kOperators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                         "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                         ">",  "<",  "=",  ".",  ":",  "|",  ",", ";", "!"};

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(NormalizeLines(source)) {}

  StatusOr<std::vector<Token>> Run() {
    while (at_ < source_.size()) {
      const size_t tag = FindTag();
      if (tag == std::string::npos) {
        EmitText(source_.substr(at_));
        break;
      }
      TP_RETURN_IF_ERROR(Tag(tag));
    }
    tokens_.push_back({TokenKind::kEnd, "", line_});
    return std::move(tokens_);
  }

 private:
  Status Fail(const std::string& what) const {
    return InvalidArgument("line " + std::to_string(line_) + ": " + what);
  }
  std::string_view Rest() const { return std::string_view(source_).substr(at_); }

  size_t FindTag() const {
    for (size_t i = source_.find('{', at_); i != std::string::npos; i = source_.find('{', i + 1)) {
      if (i + 1 < source_.size() && (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#'))
        return i;
    }
    return std::string::npos;
  }

  void EmitText(std::string text) {
    if (!text.empty()) tokens_.push_back({TokenKind::kText, std::move(text), line_});
  }
  void CountLines(size_t begin, size_t end) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<int64_t>(begin),
                                         source_.begin() + static_cast<int64_t>(end), '\n'));
  }

  // The text before a tag, less what the tag's sign or lstrip_blocks takes away.
  std::string TextBefore(size_t tag, char sign, bool is_print) const {
    std::string text = source_.substr(at_, tag - at_);
    if (sign == '-') {
      std::u32string points = ToUtf32(text);
      while (!points.empty() && IsSpace(points.back())) points.pop_back();
      return ToUtf8(points);
    }
    if (sign == '+' || is_print) return text;
    const size_t line_begin = text.rfind('\n') + 1;  // npos + 1 is 0
    if (line_begin == 0 && !line_starting_) return text;
    if (std::all_of(text.begin() + static_cast<int64_t>(line_begin), text.end(), IsBlank))
      text.resize(line_begin);
    return text;
  }

  void SkipSpace() {
    while (at_ < source_.size()) {
      const CodePoint c = DecodeAt(source_, at_);
      if (!IsSpace(c.value)) break;
      if (c.value == '\n') ++line_;
      at_ += c.bytes;
    }
  }

  // After the closing delimiter, of which `sign` was the sign.
  void AfterTag(char sign, bool is_print) {
    if (sign == '-') {
      SkipSpace();
    } else if (!is_print && sign != '+' && at_ < source_.size() && source_[at_] == '\n') {
      ++at_;
      ++line_;
    }
    line_starting_ = at_ > 0 && source_[at_ - 1] == '\n';
  }

  Status Tag(size_t tag) {
    const char type = source_[tag + 1];
    size_t inside = tag + 2;
    char sign = 0;
    if (inside < source_.size() && (source_[inside] == '-' || source_[inside] == '+'))
      sign = source_[inside++];
    const bool is_print = type == '{';
    std::string text = TextBefore(tag, sign, is_print);
    CountLines(at_, tag);
    EmitText(std::move(text));
    at_ = inside;
    if (type == '#') return Comment();
    if (type == '%' && RawBegin()) return Raw();
    tokens_.push_back({is_print ? TokenKind::kPrintBegin : TokenKind::kBlockBegin, "", line_});
    return Inside(is_print);
  }

  Status Comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) return Fail("a comment is not closed by #}");
    const char sign =
        end > at_ && (source_[end - 1] == '-' || source_[end - 1] == '+') ? source_[end - 1] : '\0';
    CountLines(at_, end);
    at_ = end + 2;
    AfterTag(sign, /*is_print=*/false);
    return OkStatus();
  }

  // `raw %}` or `raw -%}` after the opening delimiter; eats it.
  bool RawBegin() {
    size_t i = at_;
    while (i < source_.size() && IsBlank(source_[i])) ++i;
    if (source_.compare(i, 3, "raw") != 0) return false;
    i += 3;
    while (i < source_.size() && IsBlank(source_[i])) ++i;
    const bool strip = i < source_.size() && source_[i] == '-';
    if (strip) ++i;
    if (source_.compare(i, 2, "%}") != 0) return false;
    CountLines(at_, i);
    at_ = i + 2;
    if (strip) SkipSpace();
    line_starting_ = source_[at_ - 1] == '\n';
    return true;
  }

  Status Raw() {
    for (size_t tag = source_.find("{%", at_); tag != std::string::npos; tag = source_.find("{%", tag + 2)) {
      size_t i = tag + 2;
      char sign = 0;
      if (i < source_.size() && (source_[i] == '-' || source_[i] == '+')) sign = source_[i++];
      while (i < source_.size() && IsBlank(source_[i])) ++i;
      if (source_.compare(i, 6, "endraw") != 0) continue;
      i += 6;
      while (i < source_.size() && IsBlank(source_[i])) ++i;
      char end_sign = 0;
      if (i < source_.size() && (source_[i] == '-' || source_[i] == '+')) end_sign = source_[i++];
      if (source_.compare(i, 2, "%}") != 0) continue;
      std::string text = TextBefore(tag, sign, /*is_print=*/false);
      CountLines(at_, i);
      EmitText(std::move(text));
      at_ = i + 2;
      AfterTag(end_sign, /*is_print=*/false);
      return OkStatus();
    }
    return Fail("a raw block is not closed by endraw");
  }

  // Tokens up to the closing delimiter, which counts only outside brackets.
  Status Inside(bool is_print) {
    const std::string_view close = is_print ? "}}" : "%}";
    std::string open;  // brackets that wait to be closed
    while (at_ < source_.size()) {
      const char c = source_[at_];
      if (IsBlank(c)) {
        if (c == '\n') ++line_;
        ++at_;
        continue;
      }
      if (open.empty()) {
        char sign = 0;
        std::string_view rest = Rest();
        if ((c == '-' || (c == '+' && !is_print)) && rest.substr(1).starts_with(close)) {
          sign = c;
          rest.remove_prefix(1);
        }
        if (rest.starts_with(close)) {
          at_ += close.size() + (sign != 0 ? 1 : 0);
          tokens_.push_back({is_print ? TokenKind::kPrintEnd : TokenKind::kBlockEnd, "", line_});
          AfterTag(sign, is_print);
          return OkStatus();
        }
      }
      if (IsDigit(c)) {
        TP_RETURN_IF_ERROR(Number());
      } else if (IsNameStart(c)) {
        const size_t begin = at_;
        while (at_ < source_.size() && (IsNameStart(source_[at_]) || IsDigit(source_[at_]))) ++at_;
        tokens_.push_back({TokenKind::kName, source_.substr(begin, at_ - begin), line_});
      } else if (c == '"' || c == '\'') {
        TP_RETURN_IF_ERROR(String(c));
      } else {
        TP_RETURN_IF_ERROR(Operator(&open));
      }
    }
    return Fail(std::string("a tag is not closed by ") + std::string(close));
  }

  Status Operator(std::string* open) {
    for (const std::string_view op : kOperators) {
      if (!Rest().starts_with(op)) continue;
      const char c = op[0];
      if (c == '(' || c == '[' || c == '{') open->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
      if (c == ')' || c == ']' || c == '}') {
        if (open->empty() || open->back() != c) return Fail(std::string("unexpected '") + c + "'");
        open->pop_back();
      }
      tokens_.push_back({TokenKind::kOperator, std::string(op), line_});
      at_ += op.size();
      return OkStatus();
    }
    return Fail(std::string("unexpected character '") + source_[at_] + "'");
  }

  // Digits with single underscores between them.
  std::string Digits() {
    std::string digits;
    while (at_ < source_.size() &&
           (IsDigit(source_[at_]) || (source_[at_] == '_' && !digits.empty() && at_ + 1 < source_.size() &&
                                      IsDigit(source_[at_ + 1])))) {
      if (source_[at_] != '_') digits.push_back(source_[at_]);
      ++at_;
    }
    return digits;
  }

  Status Number() {
    if (source_[at_] == '0' && at_ + 1 < source_.size() &&
        std::string_view("xXoObB").find(source_[at_ + 1]) != std::string_view::npos) {
      return Fail("numbers in other bases than ten are not supported");
    }
    // After a dot, as in x.0, a number is an index and has no fraction.
    const bool after_dot =
        !tokens_.empty() && tokens_.back().kind == TokenKind::kOperator && tokens_.back().text == ".";
    std::string text = Digits();
    bool is_float = false;
    if (!after_dot) {
      if (at_ + 1 < source_.size() && source_[at_] == '.' && IsDigit(source_[at_ + 1])) {
        ++at_;
        text += "." + Digits();
        is_float = true;
      }
      if (at_ < source_.size() && (source_[at_] == 'e' || source_[at_] == 'E')) {
        size_t i = at_ + 1;
        if (i < source_.size() && (source_[i] == '+' || source_[i] == '-')) ++i;
        if (i < source_.size() && IsDigit(source_[i])) {
          text += source_.substr(at_, i - at_);
          at_ = i;
          text += Digits();
          is_float = true;
        }
      }
    }
    tokens_.push_back({is_float ? TokenKind::kFloat : TokenKind::kInteger, std::move(text), line_});
    return OkStatus();
  }

  // Python's escapes, without \N{...}.
  Status String(char quote) {
    const int line = line_;
    std::string text;
    ++at_;
    while (at_ < source_.size() && source_[at_] != quote) {
      const char c = source_[at_++];
      if (c == '\n') ++line_;
      if (c != '\\') {
        text.push_back(c);
        continue;
      }
      if (at_ >= source_.size()) break;
      const char e = source_[at_++];
      static constexpr std::string_view kFrom = "nrtbfav\\'\"";
      static constexpr std::string_view kTo = "\n\r\t\b\f\a\v\\'\"";
      if (const size_t simple = kFrom.find(e); simple != std::string_view::npos) {
        text.push_back(kTo[simple]);
      } else if (e == '\n') {
        ++line_;  // a line end that is escaped goes
      } else if (e == 'x' || e == 'u' || e == 'U') {
        TP_RETURN_IF_ERROR(Hex(e == 'x' ? 2 : e == 'u' ? 4 : 8, &text));
      } else if (e >= '0' && e <= '7') {
        char32_t value = static_cast<char32_t>(e - '0');
        for (int i = 0; i < 2 && at_ < source_.size() && source_[at_] >= '0' && source_[at_] <= '7'; ++i) {
          value = value * 8 + static_cast<char32_t>(source_[at_++] - '0');
        }
        AppendUtf8(value, &text);
      } else {
        text.push_back('\\');
        text.push_back(e);
      }
    }
    if (at_ >= source_.size()) return Fail("a string is not closed");
    ++at_;
    tokens_.push_back({TokenKind::kString, std::move(text), line});
    return OkStatus();
  }

  Status Hex(int digits, std::string* text) {
    const std::string_view hex = Rest().substr(0, static_cast<size_t>(digits));
    uint32_t value = 0;
    const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), value, 16);
    if (error != std::errc() || end != hex.data() + digits)
      return Fail("an escape in a string needs " + std::to_string(digits) + " hexadecimal digits");
    at_ += hex.size();
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF))
      return Fail("an escape in a string is no character");
    AppendUtf8(value, text);
    return OkStatus();
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // the text from at_ on starts a line
  std::vector<Token> tokens_;
};

}  // namespace

StatusOr<std::vector<Token>> Tokenize(std::string_view source) { return Lexer(source).Run(); }

}  // namespace tidepool::text::jinja
