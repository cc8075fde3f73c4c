#pragma once
// A parsed template. Plain trees; literals live in them.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/text/jinja/value.h"

namespace tidepool::text::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class ExpressionKind {
  kLiteral,  // literal (strings point to text)
  kName,     // text
  kList,
  kTuple,  // parts
  kDict,   // parts: key, value, key, value, ...
  kNot,
  kNegate,
  kPlus,  // parts[0]
  kAnd,
  kOr,           // parts[0], parts[1]
  kArithmetic,   // text is the operator: + - * / // % **
  kConcat,       // parts
  kCompare,      // parts[0] operators[0] parts[1] operators[1] parts[2] ...
  kConditional,  // parts: condition, value, otherwise (may be null)
  kAttribute,    // parts[0].text
  kItem,         // parts[0][parts[1]]
  kSlice,        // parts[0][parts[1]:parts[2]:parts[3]], any of the three may be null
  kCall,         // parts[0](parts[1...], named)
  kFilter,       // parts[0]|text(parts[1...], named); parts[0] is null in a filter block
  kTest,         // parts[0] is text(parts[1...], named)
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kLiteral;
  int line = 0;
  std::string text;
  Value literal;
  std::vector<ExpressionPtr> parts;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  std::vector<std::string> operators;
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

// `a`, `a, b` or `a.b` (an attribute of a namespace).
struct Target {
  std::vector<std::string> names;
  std::string attribute;  // not empty: names[0].attribute
  bool unpack = false;    // a tuple, even of one name
};

enum class StatementKind {
  kText,        // text
  kPrint,       // value
  kIf,          // value; body; otherwise (an elif is an if in there)
  kFor,         // target in value if filter; body; otherwise
  kSet,         // target = value
  kSetBlock,    // target = rendered body, through value (a filter) if not null
  kMacro,       // text(parameters); body
  kCall,        // value is the call, parameters those of caller; body
  kFilter,      // value is a filter without input; body
  kWith,        // assignments; body
  kGeneration,  // body
  kBreak,
  kContinue,
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  int line = 0;
  std::string text;
  ExpressionPtr value;
  ExpressionPtr filter;
  Target target;
  std::vector<std::pair<std::string, ExpressionPtr>> parameters;  // defaults may be null; kWith: assignments
  Block body;
  Block otherwise;
};

}  // namespace tidepool::text::jinja
