#include "core/text/unicode.h"

#include <algorithm>
#include <iterator>
#include <span>

#include "core/base/utf8.h"

namespace tidepool::text {
namespace {

struct CombiningRange {
  char32_t first, last;
  uint8_t ccc;  // canonical combining class
};
struct Decomposition {
  char32_t composed, first, second;  // second 0: a single character
};
struct Composition {
  char32_t first, second, composed;
};
struct CaseMapping {
  char32_t from;
  char32_t to[3];  // zeros at the end are no characters
};

#include "core/text/unicode/tables.inc"

// Length of the valid sequence at the start of `p`, else minus the length of the maximal invalid part
// (a lead byte with those following bytes that could go on to a valid sequence). `cut`: the invalid
// part ends with the text and more bytes could make it valid.
int Sequence(std::string_view p, bool* cut) {
  *cut = false;
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(p[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  int length = 0;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;   // no overlong forms
    if (lead == 0xED) high = 0x9F;  // no surrogates
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;  // nothing beyond U+10FFFF
  } else {
    return -1;
  }
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) >= p.size()) {
      *cut = true;
      return -i;
    }
    const unsigned char next = byte(static_cast<size_t>(i));
    if (next < low || next > high) return -i;
    low = 0x80;
    high = 0xBF;
  }
  return length;
}

constexpr char32_t kHangulS = 0xAC00, kHangulL = 0x1100, kHangulV = 0x1161, kHangulT = 0x11A7;
constexpr char32_t kHangulVCount = 21, kHangulTCount = 28, kHangulLCount = 19;
constexpr char32_t kHangulSCount = kHangulLCount * kHangulVCount * kHangulTCount;

uint8_t CombiningClass(char32_t c) {
  const auto* range = std::upper_bound(std::begin(kCombining), std::end(kCombining), c,
                                       [](char32_t v, const CombiningRange& r) { return v < r.first; });
  if (range == std::begin(kCombining)) return 0;
  --range;
  return c <= range->last ? range->ccc : 0;
}

void Decompose(char32_t c, std::u32string* out) {
  if (c >= kHangulS && c < kHangulS + kHangulSCount) {
    const char32_t index = c - kHangulS;
    out->push_back(kHangulL + index / (kHangulVCount * kHangulTCount));
    out->push_back(kHangulV + index % (kHangulVCount * kHangulTCount) / kHangulTCount);
    if (index % kHangulTCount != 0) out->push_back(kHangulT + index % kHangulTCount);
    return;
  }
  const auto* found = std::lower_bound(std::begin(kDecompositions), std::end(kDecompositions), c,
                                       [](const Decomposition& d, char32_t v) { return d.composed < v; });
  if (found == std::end(kDecompositions) || found->composed != c) {
    out->push_back(c);
    return;
  }
  Decompose(found->first, out);  // only the first part decomposes further, at most three deep
  if (found->second != 0) out->push_back(found->second);
}

char32_t Compose(char32_t a, char32_t b) {
  if (a >= kHangulL && a < kHangulL + kHangulLCount && b >= kHangulV && b < kHangulV + kHangulVCount) {
    return kHangulS + ((a - kHangulL) * kHangulVCount + (b - kHangulV)) * kHangulTCount;
  }
  if (a >= kHangulS && a < kHangulS + kHangulSCount && (a - kHangulS) % kHangulTCount == 0 && b > kHangulT &&
      b < kHangulT + kHangulTCount) {
    return a + (b - kHangulT);
  }
  const auto* found = std::lower_bound(std::begin(kCompositions), std::end(kCompositions), std::pair{a, b},
                                       [](const Composition& c, const std::pair<char32_t, char32_t>& v) {
                                         return std::pair{c.first, c.second} < v;
                                       });
  if (found == std::end(kCompositions) || found->first != a || found->second != b) return 0;
  return found->composed;
}

// Null: the table leaves the character alone.
const CaseMapping* FindMapping(std::span<const CaseMapping> table, char32_t c) {
  const auto found = std::lower_bound(table.begin(), table.end(), c,
                                      [](const CaseMapping& m, char32_t v) { return m.from < v; });
  return found == table.end() || found->from != c ? nullptr : &*found;
}

// In ASCII the letters from `first` on move by `shift`.
void AppendMapped(std::span<const CaseMapping> table, char32_t first, int shift, char32_t c,
                  std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(static_cast<int>(c) + (c >= first && c < first + 26 ? shift : 0)));
  } else if (const CaseMapping* found = FindMapping(table, c); found != nullptr) {
    for (const char32_t to : found->to) {
      if (to != 0) AppendUtf8(to, out);
    }
  } else {
    AppendUtf8(c, out);
  }
}

}  // namespace

void AppendUtf8(char32_t c, std::string* out) {
  const int following = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  constexpr char32_t kLead[] = {0, 0xC0, 0xE0, 0xF0};
  out->push_back(static_cast<char>(kLead[following] | (c >> (6 * following))));
  for (int i = following - 1; i >= 0; --i) out->push_back(static_cast<char>(0x80 | ((c >> (6 * i)) & 0x3F)));
}

std::u32string ToUtf32(std::string_view utf8) {
  std::u32string result;
  result.reserve(utf8.size());
  for (size_t at = 0; at < utf8.size();) {
    const CodePoint c = DecodeAt(utf8, at);
    result.push_back(c.value);
    at += c.bytes;
  }
  return result;
}

std::string ToUtf8(std::u32string_view text) {
  std::string result;
  result.reserve(text.size());
  for (const char32_t c : text) AppendUtf8(c, &result);
  return result;
}

size_t FindInvalidUtf8(std::string_view text) {
  bool cut = false;
  for (size_t at = 0; at < text.size();) {
    const int length = Sequence(text.substr(at), &cut);
    if (length < 0) return at;
    at += static_cast<size_t>(length);
  }
  return std::string_view::npos;
}

std::string ReplaceInvalidUtf8(std::string_view bytes) {
  std::string result;
  result.reserve(bytes.size());
  bool cut = false;
  for (size_t at = 0; at < bytes.size();) {
    const int length = Sequence(bytes.substr(at), &cut);
    if (length > 0) {
      result.append(bytes.substr(at, static_cast<size_t>(length)));
      at += static_cast<size_t>(length);
    } else {
      result.append("\xEF\xBF\xBD");
      at += static_cast<size_t>(-length);
    }
  }
  return result;
}

size_t CompleteUtf8Prefix(std::string_view bytes) {
  // An unfinished sequence has at most three bytes; its lead is the last byte that is no continuation.
  for (size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
    const size_t at = bytes.size() - back;
    if (ContinuesCharacter(bytes[at])) continue;
    bool cut = false;
    const int length = Sequence(bytes.substr(at), &cut);
    return length < 0 && cut && static_cast<size_t>(-length) == back ? at : bytes.size();
  }
  return bytes.size();
}

uint8_t ClassOf(char32_t c) { return kClass[(static_cast<size_t>(kClassBlock[c >> 7]) << 7) | (c & 127)]; }

bool IsCertainlyNfc(std::string_view utf8) {
  for (size_t at = 0; at < utf8.size();) {
    if (static_cast<unsigned char>(utf8[at]) < 0xC3) {  // below U+00C0 nothing changes
      ++at;
      continue;
    }
    const CodePoint c = DecodeAt(utf8, at);
    // Marked: what combines with something before it, and what never stays itself. A composed
    // character such as U+00E9 is neither.
    if ((ClassOf(c.value) & unicode_class::kNfcMayChange) != 0) return false;
    at += c.bytes;
  }
  return true;
}

std::string Nfc(std::string_view utf8) {
  std::u32string text;
  text.reserve(utf8.size());
  for (const char32_t c : ToUtf32(utf8)) Decompose(c, &text);
  // Canonical order: stable by combining class between starters.
  std::vector<std::pair<uint8_t, char32_t>> marks;
  for (size_t i = 0; i < text.size();) {
    if (CombiningClass(text[i]) == 0) {
      ++i;
      continue;
    }
    marks.clear();
    size_t end = i;
    for (; end < text.size(); ++end) {
      const uint8_t ccc = CombiningClass(text[end]);
      if (ccc == 0) break;
      marks.emplace_back(ccc, text[end]);
    }
    std::stable_sort(marks.begin(), marks.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t k = 0; k < marks.size(); ++k) text[i + k] = marks[k].second;
    i = end;
  }
  // Canonical composition (Unicode, section 3.11, D117): a character composes with the last starter
  // unless one between them has a combining class that is 0 or not lower.
  std::u32string result;
  result.reserve(text.size());
  size_t starter = std::u32string::npos;
  uint8_t last_ccc = 0;
  for (const char32_t c : text) {
    const uint8_t ccc = CombiningClass(c);
    if (starter != std::u32string::npos) {
      const bool adjacent = starter + 1 == result.size();
      if (adjacent || (last_ccc != 0 && last_ccc < ccc)) {
        if (const char32_t composed = Compose(result[starter], c); composed != 0) {
          result[starter] = composed;
          continue;
        }
      }
    }
    if (ccc == 0) starter = result.size();
    last_ccc = ccc;
    result.push_back(c);
  }
  return ToUtf8(result);
}

std::string ToUpper(std::string_view utf8) {
  std::string result;
  result.reserve(utf8.size());
  for (const char32_t c : ToUtf32(utf8)) AppendMapped(kUpper, 'a', 'A' - 'a', c, &result);
  return result;
}

std::string ToLower(std::string_view utf8) {
  std::string result;
  result.reserve(utf8.size());
  for (const char32_t c : ToUtf32(utf8)) AppendLower(c, &result);
  return result;
}

void AppendLower(char32_t c, std::string* out) { AppendMapped(kLower, 'A', 'a' - 'A', c, out); }
void AppendTitle(char32_t c, std::string* out) { AppendMapped(kTitle, 'a', 'A' - 'a', c, out); }

bool IsCased(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return FindMapping(kUpper, c) != nullptr || FindMapping(kLower, c) != nullptr ||
         FindMapping(kTitle, c) != nullptr;
}

}  // namespace tidepool::text
