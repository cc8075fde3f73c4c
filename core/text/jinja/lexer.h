#pragma once
// Template source as tokens, with Jinja's rules for white space: trim_blocks (the line end after a
// block tag goes), lstrip_blocks (blanks before a block tag that starts a line go), `-` (all white space
// on that side goes), `+` (neither), and one line end at the end of the source goes.

#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace tidepool::text::jinja {

enum class TokenKind {
  kText,
  kBlockBegin,
  kBlockEnd,
  kPrintBegin,
  kPrintEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  // a string's value, a number's digits without '_'
  int line = 0;
};

// kInvalidArgument with the line. requires valid UTF-8. The last token is kEnd.
StatusOr<std::vector<Token>> Tokenize(std::string_view source);

}  // namespace tidepool::text::jinja
