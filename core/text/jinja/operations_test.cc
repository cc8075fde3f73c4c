// Tests: `x is name`. (Those of the case of a text: operations_text.cc.)

#include "core/text/jinja/operations.h"

namespace tidepool::text::jinja {
namespace {

template <Kind... kinds>
Value Is(const Operands& o) {
  return Value::Bool((o.self.is(kinds) || ...));
}
constexpr auto HasItems = Is<Kind::kString, Kind::kList, Kind::kTuple, Kind::kDict, Kind::kUndefined>;
template <bool wanted>
Value IsBoolean(const Operands& o) {
  return Value::Bool(o.self.is(Kind::kBool) && o.self.boolean() == wanted);
}

template <char... op>
Value Compares(const Operands& o) {
  const Value* other = o.Get(0, "other");
  return other == nullptr ? o.Fail("takes a value") : o.e.Compare({op...}, o.self, *other);
}

Value IsSame(const Operands& o) {
  const Value* other = o.Get(0, "other");
  if (other == nullptr || o.self.kind() != other->kind()) return Value::Bool(false);
  if (o.self.is_number()) return Value::Bool(o.e.Same(o.self, *other));
  return Value::Bool(o.self.is(Kind::kNone) || o.self.is(Kind::kUndefined) ||
                     o.self.identity() == other->identity());
}

Value Divides(const Operands& o) {  // even, odd, divisibleby
  int64_t divisor = 2;
  if (o.name == "divisibleby" && (!o.Integer(0, "num", &divisor) || divisor == 0))
    return o.Fail("takes an integer that is not 0");
  const Value remainder = o.e.Arithmetic("%", o.self, Value::Int(divisor));
  if (o.e.failed()) return {};
  return Value::Bool(remainder.real() == (o.name == "odd" ? 1.0 : 0.0));
}

constexpr Operation kTestOperations[] = {
    {kTest, "defined", [](const Operands& o) { return Value::Bool(!o.self.is(Kind::kUndefined)); }},
    {kTest, "undefined", Is<Kind::kUndefined>},
    {kTest, "none", Is<Kind::kNone>},
    {kTest, "string", Is<Kind::kString>},
    {kTest, "mapping", Is<Kind::kDict>},
    {kTest, "number", Is<Kind::kInt, Kind::kBool, Kind::kFloat>},
    {kTest, "integer", Is<Kind::kInt>},
    {kTest, "float", Is<Kind::kFloat>},
    {kTest, "boolean", Is<Kind::kBool>},
    {kTest, "true", IsBoolean<true>},
    {kTest, "false", IsBoolean<false>},
    {kTest, "sequence", HasItems},
    {kTest, "iterable",
     [](const Operands& o) { return o.self.is(Kind::kLoop) ? Value::Bool(true) : HasItems(o); }},
    {kTest, "callable", Is<Kind::kMacro, Kind::kMethod, Kind::kFunction, Kind::kUndefined>},
    {kTest, "eq equalto ==", Compares<'=', '='>},
    {kTest, "ne !=", Compares<'!', '='>},
    {kTest, "lt lessthan <", Compares<'<'>},
    {kTest, "le <=", Compares<'<', '='>},
    {kTest, "gt greaterthan >", Compares<'>'>},
    {kTest, "ge >=", Compares<'>', '='>},
    {kTest, "in", Compares<'i', 'n'>},
    {kTest, "sameas", IsSame},
    {kTest, "even odd divisibleby", Divides},
    {kTest, "escaped", [](const Operands&) { return Value::Bool(false); }},
};

}  // namespace

std::span<const Operation> TestOperations() { return kTestOperations; }

}  // namespace tidepool::text::jinja
