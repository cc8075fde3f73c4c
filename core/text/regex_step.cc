// Split by a regular expression that has no splitter of its own.

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/utf8.h"
#include "core/text/pre_tokenizer.h"
#include "core/text/unicode.h"

namespace tidepool::text {
namespace {

// Per match. A published pattern needs a few steps a character; only nested repetition comes near.
constexpr uint32_t kMatchLimit = 1'000'000;
constexpr uint32_t kHeapLimitKib = 64 * 1024;

// PCRE2 comes with the Unicode version of its day. Code points that the reference's version knows otherwise
// are matched as others of the same category and length (unicode/generate_stand_ins.py), so that offsets
// stay.
struct StandIn {
  char32_t first, last, to;
};
#include "core/text/unicode/stand_ins.inc"

// `text` as PCRE2 is to see it; `copy` holds it if it differs.
std::string_view WithStandIns(std::string_view text, std::string* copy) {
  copy->clear();
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0xE0) {  // none of them is shorter than three bytes
      ++at;
      continue;
    }
    const CodePoint c = DecodeAt(text, at);
    const StandIn* found =
        std::upper_bound(std::begin(kStandIns), std::end(kStandIns), c.value,
                         [](char32_t value, const StandIn& range) { return value < range.first; });
    if (found != std::begin(kStandIns) && c.value <= (--found)->last) {
      if (copy->empty()) *copy = text;
      std::string bytes;
      AppendUtf8(found->to, &bytes);
      copy->replace(at, c.bytes, bytes);
    }
    at += c.bytes;
  }
  return copy->empty() ? text : std::string_view(*copy);
}

struct DataDeleter {
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
};
struct ContextDeleter {
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
};

std::string ErrorText(int code) {
  PCRE2_UCHAR8 buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof(buffer)) < 0) return "error " + std::to_string(code);
  return reinterpret_cast<const char*>(buffer);
}

Status SplitByRegex(const pcre2_code* code, SplitBehavior behavior, bool invert, std::string_view piece,
                    Pieces* out) {
  const std::unique_ptr<pcre2_match_data, DataDeleter> data(
      pcre2_match_data_create_from_pattern(code, nullptr));
  const std::unique_ptr<pcre2_match_context, ContextDeleter> context(pcre2_match_context_create(nullptr));
  if (!data || !context) return ResourceExhausted("no memory for a regular expression");
  pcre2_set_match_limit(context.get(), kMatchLimit);
  pcre2_set_heap_limit(context.get(), kHeapLimitKib);

  std::string copy;
  const std::string_view seen = WithStandIns(piece, &copy);
  std::vector<Match> matches;
  size_t done = 0;  // everything before it is in `matches`
  size_t from = 0;
  while (from < piece.size()) {
    const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR8>(seen.data()), seen.size(), from,
                                  PCRE2_NO_UTF_CHECK, data.get(), context.get());
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      return ResourceExhausted("the pre-tokeniser's regular expression gave up: " + ErrorText(found) +
                               "; shorten the text or use a simpler pattern");
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
    if (range[1] <= range[0]) {  // an empty match cuts nothing here; look on after the next character
      from = range[0] + 1;
      while (from < piece.size() && ContinuesCharacter(piece[from])) ++from;
      continue;
    }
    if (range[0] > done) matches.push_back({done, range[0], invert});
    matches.push_back({range[0], range[1], !invert});
    done = from = range[1];
  }
  if (done < piece.size()) matches.push_back({done, piece.size(), invert});
  ApplyBehavior(behavior, piece, matches, out);
  return OkStatus();
}

}  // namespace

StatusOr<SplitStep> MakeRegexStep(const std::string& regex, SplitBehavior behavior, bool invert) {
  // \h: a hexadecimal digit there, a space here. &&: an intersection of classes there. (?m): dot matches
  // line ends there. {2,3}+: a repetition there, possessive here.
  for (const char* foreign : {"\\h", "\\H", "&&", "\\K", "\\G", "(?m", "(?R", "\\g", "\\X", "\\R", "(*"}) {
    if (regex.find(foreign) != std::string::npos) {
      return Unimplemented("the pre-tokeniser's regular expression has \"" + std::string(foreign) +
                           "\", whose meaning differs between engines; it is not supported");
    }
  }
  for (size_t at = regex.find("}+"); at != std::string::npos; at = regex.find("}+", at + 1)) {
    const size_t open = regex.rfind('{', at);
    if (open != std::string::npos && regex.find_first_not_of("0123456789,", open + 1) == at) {
      return Unimplemented("the pre-tokeniser's regular expression has \"" +
                           regex.substr(open, at + 2 - open) +
                           "\", whose meaning differs between engines; it is not supported");
    }
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  // MULTILINE: ^ and $ are at every line in the reference's syntax.
  const std::shared_ptr<pcre2_code> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR8>(regex.data()), regex.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                    nullptr),
      pcre2_code_free);
  if (!code) {
    return InvalidArgument("the pre-tokeniser's regular expression is wrong at character " +
                           std::to_string(offset) + ": " + ErrorText(error));
  }
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // without it matching is slower and the same
  return SplitStep([=](std::string_view piece, Pieces* out) {
    return SplitByRegex(code.get(), behavior, invert, piece, out);
  });
}

}  // namespace tidepool::text
