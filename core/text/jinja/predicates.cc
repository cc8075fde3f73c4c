// Tests: `x is name`.

#include "core/text/jinja/evaluator.h"
#include "core/text/unicode.h"

namespace tidepool::text::jinja {

bool Evaluator::Test(const std::string& name, const Value& subject, const Arguments& arguments) {
  if (failed()) return false;
  const Value* other = arguments.Get(0, "other");
  const auto compare = [&](const char* op) {
    if (other == nullptr) {
      Fail("the test " + name + " takes a value");
      return false;
    }
    return Truth(Compare(op, subject, *other));
  };
  if (name == "defined") return !subject.is(Kind::kUndefined);
  if (name == "undefined") return subject.is(Kind::kUndefined);
  if (name == "none") return subject.is(Kind::kNone);
  if (name == "string") return subject.is_string();
  if (name == "mapping") return subject.is(Kind::kDict);
  if (name == "number") return subject.is_number();
  if (name == "integer") return subject.is(Kind::kInt);
  if (name == "float") return subject.is(Kind::kFloat);
  if (name == "boolean") return subject.is(Kind::kBool);
  if (name == "true") return subject.is(Kind::kBool) && subject.boolean();
  if (name == "false") return subject.is(Kind::kBool) && !subject.boolean();
  if (name == "iterable") {
    return subject.is_string() || subject.is_sequence() || subject.is(Kind::kDict) ||
           subject.is(Kind::kUndefined) || subject.is(Kind::kLoop);
  }
  if (name == "sequence") {  // what has a length and items
    return subject.is_string() || subject.is_sequence() || subject.is(Kind::kDict) ||
           subject.is(Kind::kUndefined);
  }
  if (name == "callable") {
    return subject.is(Kind::kMacro) || subject.is(Kind::kMethod) || subject.is(Kind::kFunction) ||
           subject.is(Kind::kUndefined);
  }
  if (name == "eq" || name == "equalto" || name == "==") return compare("==");
  if (name == "ne" || name == "!=") return compare("!=");
  if (name == "lt" || name == "lessthan" || name == "<") return compare("<");
  if (name == "le" || name == "<=") return compare("<=");
  if (name == "gt" || name == "greaterthan" || name == ">") return compare(">");
  if (name == "ge" || name == ">=") return compare(">=");
  if (name == "in") return compare("in");
  if (name == "sameas") {
    if (other == nullptr || subject.kind() != other->kind()) return false;
    if (subject.is_number()) return Same(subject, *other);
    return subject.is(Kind::kNone) || subject.is(Kind::kUndefined) || subject.identity() == other->identity();
  }
  if (name == "even" || name == "odd" || name == "divisibleby") {
    int64_t divisor = 2;
    if (name == "divisibleby") {
      if (other == nullptr) other = arguments.Get(0, "num");
      if (!IntegerArgument(other, &divisor, "divisibleby") || divisor == 0) {
        Fail("the test divisibleby takes an integer that is not 0");
        return false;
      }
    }
    const Value remainder = Arithmetic("%", subject, Value::Int(divisor));
    if (failed()) return false;
    return name == "odd" ? remainder.real() == 1.0 : remainder.real() == 0.0;
  }
  if (name == "upper" || name == "lower") {
    const std::string text = Str(subject);
    bool cased = false;
    for (const char32_t c : ToUtf32(text)) cased = cased || IsCased(c);
    return cased && text == (name == "upper" ? ToUpper(text) : ToLower(text));
  }
  if (name == "escaped") return false;
  Fail("no test is named '" + name + "'");
  return false;
}

}  // namespace tidepool::text::jinja
