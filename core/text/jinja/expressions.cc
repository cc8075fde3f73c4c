// Expressions: operators, look-ups and slices, with Python's meaning.

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/text/jinja/operations.h"
#include "core/text/unicode.h"

namespace tidepool::text::jinja {
namespace {

std::string UndefinedMessage(const Value& value) {
  return "'" + (value.name() == nullptr ? std::string("value") : *value.name()) + "' is undefined";
}

}  // namespace

Value Evaluator::Evaluate(const Expression& node, Frame* frame) {
  if (!Tick()) return {};
  if (++depth_ > kEvaluationDepthMax) Exhausted("nested deeper than " + std::to_string(kEvaluationDepthMax));
  const Value result = EvaluateNode(node, frame);
  --depth_;
  return result;
}

Value Evaluator::EvaluateNode(const Expression& node, Frame* frame) {
  if (failed()) return {};
  const auto part = [&](size_t i) { return Evaluate(*node.parts[i], frame); };
  switch (node.kind) {
    case ExpressionKind::kLiteral:
      return node.literal;
    case ExpressionKind::kName:
      return Lookup(node.text, frame);
    case ExpressionKind::kList:
    case ExpressionKind::kTuple: {
      List items;
      for (size_t i = 0; i < node.parts.size(); ++i) items.push_back(part(i));
      return node.kind == ExpressionKind::kList ? MakeList(std::move(items))
                                                : heap_.NewTuple(std::move(items));
    }
    case ExpressionKind::kDict: {
      Dict* dict = heap_.NewDict();
      for (size_t i = 0; i + 1 < node.parts.size(); i += 2) {
        const Value key = part(i);
        if (key.is(Kind::kList) || key.is(Kind::kDict))
          return Fail("a " + TypeName(key) + " cannot be a key");
        dict->Set(key, part(i + 1));
      }
      return Value::DictOf(dict);
    }
    case ExpressionKind::kNot:
      return Value::Bool(!Truth(part(0)));
    case ExpressionKind::kNegate:
    case ExpressionKind::kPlus: {
      const Value value = part(0);
      if (failed()) return {};
      if (!value.is_number()) {
        return Fail(value.is(Kind::kUndefined) ? UndefinedMessage(value)
                                               : "a sign before a value of type " + TypeName(value));
      }
      const bool negate = node.kind == ExpressionKind::kNegate;
      if (value.is(Kind::kFloat)) return Value::Float(negate ? -value.real() : value.real());
      return negate ? IntegerArithmetic('-', 0, value.integer()) : Value::Int(value.integer());
    }
    case ExpressionKind::kAnd: {
      const Value left = part(0);
      return Truth(left) ? part(1) : left;
    }
    case ExpressionKind::kOr: {
      const Value left = part(0);
      return Truth(left) ? left : part(1);
    }
    case ExpressionKind::kArithmetic: {
      const Value left = part(0);
      const Value right = part(1);
      return failed() ? Value() : Arithmetic(node.text, left, right);
    }
    case ExpressionKind::kConcat: {
      std::string text;
      for (size_t i = 0; i < node.parts.size(); ++i) text += Str(part(i));
      return String(std::move(text));
    }
    case ExpressionKind::kCompare: {
      Value left = part(0);
      Value result = Value::Bool(true);
      for (size_t i = 0; i < node.operators.size(); ++i) {
        const Value right = part(i + 1);
        if (failed()) return {};
        result = Compare(node.operators[i], left, right);
        if (!Truth(result)) return result;
        left = right;
      }
      return result;
    }
    case ExpressionKind::kConditional:
      if (Truth(part(0))) return part(1);
      return node.parts[2] ? part(2) : Value();
    case ExpressionKind::kAttribute: {
      const Value object = part(0);
      return failed() ? Value() : Attribute(object, node.text);
    }
    case ExpressionKind::kItem: {
      const Value object = part(0);
      const Value key = part(1);
      return failed() ? Value() : Item(object, key);
    }
    case ExpressionKind::kSlice: {
      const Value object = part(0);
      Value bounds[3] = {Value::None(), Value::None(), Value::None()};
      for (size_t i = 0; i < 3; ++i) {
        if (node.parts[i + 1]) bounds[i] = part(i + 1);
      }
      return failed() ? Value() : Slice(object, bounds[0], bounds[1], bounds[2]);
    }
    case ExpressionKind::kCall:
      return Call(node, frame, nullptr);
    case ExpressionKind::kFilter: {
      static const std::string block_input;  // the nameless variable of a filter block
      const Value input = node.parts[0] ? part(0) : Lookup(block_input, frame);
      const Arguments arguments = EvaluateArguments(node, frame);
      return failed() ? Value() : Filter(node.text, input, arguments);
    }
    case ExpressionKind::kTest: {
      const Value subject = part(0);
      const Arguments arguments = EvaluateArguments(node, frame);
      return failed() ? Value() : Value::Bool(Test(node.text, subject, arguments));
    }
  }
  return {};
}

std::string Evaluator::Str(const Value& value) {
  if (failed()) return {};
  std::string text;
  if (!AppendStr(value, &text))
    Fail("a value nested deeper than " + std::to_string(kNestingMax) + " cannot be written");
  operations_ += static_cast<int64_t>(text.size()) / 64;
  return text;
}

bool Evaluator::Same(const Value& a, const Value& b) {
  const std::optional<bool> same = Equal(a, b);
  if (!same) Fail("values nested deeper than " + std::to_string(kNestingMax) + " cannot be compared");
  return same.value_or(false);
}

Value Evaluator::IntegerArithmetic(char op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  switch (op) {
    case '+':
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case '-':
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case '*':
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case '^': {
      if (b > 64 && a != 0 && a != 1 && a != -1) {
        overflow = true;
        break;
      }
      result = 1;
      const int64_t rounds = b > 64 ? 64 + b % 2 : b;
      for (int64_t i = 0; i < rounds && !overflow; ++i) overflow = __builtin_mul_overflow(result, a, &result);
      break;
    }
    default: {  // floor division and its remainder, which has the divisor's sign
      if (b == 0) return Fail("division by zero");
      if (b == -1) return op == '/' ? IntegerArithmetic('-', 0, a) : Value::Int(0);
      int64_t quotient = a / b;
      int64_t remainder = a % b;
      if (remainder != 0 && (remainder < 0) != (b < 0)) {
        --quotient;
        remainder += b;
      }
      return Value::Int(op == '/' ? quotient : remainder);
    }
  }
  return overflow ? Fail("an integer beyond 64 bits") : Value::Int(result);
}

Value Evaluator::Arithmetic(const std::string& op, const Value& a, const Value& b) {
  if (a.is(Kind::kUndefined)) return Fail(UndefinedMessage(a));
  if (b.is(Kind::kUndefined) && !(op == "%" && a.is_string())) return Fail(UndefinedMessage(b));
  if (a.is_integer() && b.is_integer()) {
    if (op == "/") {
      return b.integer() == 0 ? Fail("division by zero") : Value::Float(a.real() / b.real());
    }
    if (op == "**" && b.integer() < 0) return Value::Float(std::pow(a.real(), b.real()));
    return IntegerArithmetic(op == "//" ? '/' : op == "**" ? '^' : op[0], a.integer(), b.integer());
  }
  if (a.is_number() && b.is_number()) {
    const double x = a.real();
    const double y = b.real();
    if (op == "+") return Value::Float(x + y);
    if (op == "-") return Value::Float(x - y);
    if (op == "*") return Value::Float(x * y);
    if (op == "**") return Value::Float(std::pow(x, y));
    if (y == 0.0) return Fail("division by zero");
    if (op == "/") return Value::Float(x / y);
    double remainder = std::fmod(x, y);
    if (remainder != 0.0 && (remainder < 0) != (y < 0)) remainder += y;
    return Value::Float(op == "%" ? remainder : std::floor((x - remainder) / y + 0.5));
  }
  if (op == "+" && a.is_string() && b.is_string()) return String(a.string() + b.string());
  if (op == "+" && a.is_sequence() && a.kind() == b.kind()) {
    List items = a.list();
    items.insert(items.end(), b.list().begin(), b.list().end());
    return a.is(Kind::kList) ? MakeList(std::move(items)) : heap_.NewTuple(std::move(items));
  }
  if (op == "%" && a.is_string()) return FormatPercent(a.string(), b);
  if (op == "*") {
    const Value& times = a.is_integer() ? a : b;
    const Value& what = a.is_integer() ? b : a;
    if (times.is_integer() && (what.is_string() || what.is_sequence())) {
      const int64_t count = std::max<int64_t>(times.integer(), 0);
      const int64_t size =
          static_cast<int64_t>(what.is_string() ? what.string().size() : what.list().size() * sizeof(Value));
      if (size > 0 && count > heap_.left() / size) return Exhausted("a repetition is too long");
      std::string text;
      List items;
      for (int64_t i = 0; i < count && size > 0; ++i) {
        if (what.is_string()) {
          text += what.string();
        } else {
          items.insert(items.end(), what.list().begin(), what.list().end());
        }
      }
      if (what.is_string()) return String(std::move(text));
      return what.is(Kind::kList) ? MakeList(std::move(items)) : heap_.NewTuple(std::move(items));
    }
  }
  return Fail("the operator " + op + " cannot take " + TypeName(a) + " and " + TypeName(b));
}

Value Evaluator::Compare(const std::string& op, const Value& a, const Value& b) {
  if (op == "==") return Value::Bool(Same(a, b));
  if (op == "!=") return Value::Bool(!Same(a, b));
  if (op == "in") return Value::Bool(Contains(b, a));
  if (op == "not in") return Value::Bool(!Contains(b, a));
  if (a.is(Kind::kUndefined)) return Fail(UndefinedMessage(a));
  if (b.is(Kind::kUndefined)) return Fail(UndefinedMessage(b));
  // A NaN is in no order with anything.
  if (a.is_number() && b.is_number() && (std::isnan(a.real()) || std::isnan(b.real())))
    return Value::Bool(false);
  const std::optional<int> order = Order(a, b);
  if (!order) {
    return Fail("the operator " + op + " cannot take " + TypeName(a) + " and " + TypeName(b));
  }
  if (op == "<") return Value::Bool(*order < 0);
  if (op == "<=") return Value::Bool(*order <= 0);
  if (op == ">") return Value::Bool(*order > 0);
  return Value::Bool(*order >= 0);
}

bool Evaluator::Contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kUndefined:
      return false;
    case Kind::kString:
      if (!item.is_string()) {
        Fail("'in' a string takes a string, not " + TypeName(item));
        return false;
      }
      operations_ += static_cast<int64_t>(container.string().size()) / 64;
      return container.string().find(item.string()) != std::string::npos;
    case Kind::kList:
    case Kind::kTuple:
      for (const Value& candidate : container.list()) {
        if (!Tick() || Same(candidate, item)) return !failed();
      }
      return false;
    case Kind::kDict:
      if (item.is(Kind::kList) || item.is(Kind::kDict)) {
        Fail("a " + TypeName(item) + " cannot be a key");
        return false;
      }
      for (const auto& [key, value] : container.dict().items) {
        if (!Tick() || Same(key, item)) return !failed();
      }
      return false;
    default:
      Fail("'in' cannot look into a value of type " + TypeName(container));
      return false;
  }
}

Value Evaluator::Attribute(const Value& object, const std::string& name) {
  switch (object.kind()) {
    case Kind::kUndefined:
      return Fail(UndefinedMessage(object) + ", so it has no '" + name + "'");
    case Kind::kLoop:
      return LoopAttribute(object, name);
    case Kind::kNamespace:
    case Kind::kDict: {
      if (object.is(Kind::kDict) && HasMethod(object, name)) return heap_.NewMethod(object, name);
      operations_ += static_cast<int64_t>(object.dict().items.size()) / 8;
      if (const Value* value = object.dict().Find(name)) return *value;
      return Value::Undefined(&name);
    }
    case Kind::kMacro:
      if (name == "name") return Value::String(&object.macro().definition->text);
      return Value::Undefined(&name);
    default:
      if (HasMethod(object, name)) return heap_.NewMethod(object, name);
      return Value::Undefined(&name);
  }
}

Value Evaluator::Item(const Value& object, const Value& key) {
  if (object.is(Kind::kUndefined)) return Fail(UndefinedMessage(object) + ", so it has no items");
  if (object.is(Kind::kDict)) {
    operations_ += static_cast<int64_t>(object.dict().items.size()) / 8;
    for (const auto& [known, value] : object.dict().items) {
      if (Same(known, key)) return value;
    }
  } else if (key.is_integer() && (object.is_sequence() || object.is_string())) {
    const int64_t size =
        object.is_string() ? CharacterCount(object.string()) : static_cast<int64_t>(object.list().size());
    const int64_t index = key.integer() < 0 ? key.integer() + size : key.integer();
    if (index < 0 || index >= size) return {};
    if (object.is_sequence()) return object.list()[static_cast<size_t>(index)];
    size_t at = 0;
    operations_ += index / 64;
    for (int64_t i = 0; i < index; ++i) at += DecodeAt(object.string(), at).bytes;
    return String(object.string().substr(at, DecodeAt(object.string(), at).bytes));
  }
  if (key.is_string()) {  // x["name"] falls back to the attribute
    if (object.is(Kind::kLoop) || object.is(Kind::kNamespace)) return Attribute(object, key.string());
    if (HasMethod(object, key.string())) return heap_.NewMethod(object, key.string());
    return Value::Undefined(&key.string());
  }
  return {};
}

Value Evaluator::Slice(const Value& object, const Value& begin, const Value& end, const Value& step) {
  if (object.is(Kind::kUndefined)) return Fail(UndefinedMessage(object) + ", so it has no slices");
  if (!object.is_sequence() && !object.is_string()) {
    return Fail("a value of type " + TypeName(object) + " has no slices");
  }
  const std::u32string points = object.is_string() ? ToUtf32(object.string()) : std::u32string();
  const auto size = static_cast<int64_t>(object.is_string() ? points.size() : object.list().size());
  operations_ += size / 16;
  int64_t stride = 1;
  if (!step.is(Kind::kNone) && !IntegerArgument(&step, &stride, "a slice")) return {};
  if (stride == 0) return Fail("a slice has a step of 0");
  stride = std::clamp<int64_t>(stride, -(size + 1), size + 1);
  const auto bound = [&](const Value& given, int64_t fallback) {
    int64_t value = fallback;
    if (given.is(Kind::kNone)) return fallback;
    if (!IntegerArgument(&given, &value, "a slice")) return fallback;
    if (value < 0) value = value < -size ? -1 : value + size;
    return stride > 0 ? std::clamp<int64_t>(value, 0, size) : std::clamp<int64_t>(value, -1, size - 1);
  };
  const int64_t first = bound(begin, stride > 0 ? 0 : size - 1);
  const int64_t last = bound(end, stride > 0 ? size : -1);
  List items;
  std::u32string text;
  for (int64_t i = first; stride > 0 ? i < last : i > last; i += stride) {
    if (object.is_string()) {
      text.push_back(points[static_cast<size_t>(i)]);
    } else {
      items.push_back(object.list()[static_cast<size_t>(i)]);
    }
  }
  if (object.is_string()) return String(ToUtf8(text));
  return object.is(Kind::kList) ? MakeList(std::move(items)) : heap_.NewTuple(std::move(items));
}

Value Evaluator::LoopAttribute(const Value& value, const std::string& name) {
  const Loop& loop = value.loop();
  const auto size = static_cast<int64_t>(loop.items->size());
  if (name == "index") return Value::Int(loop.index + 1);
  if (name == "index0") return Value::Int(loop.index);
  if (name == "revindex") return Value::Int(size - loop.index);
  if (name == "revindex0") return Value::Int(size - loop.index - 1);
  if (name == "first") return Value::Bool(loop.index == 0);
  if (name == "last") return Value::Bool(loop.index + 1 == size);
  if (name == "length") return Value::Int(size);
  if (name == "depth") return Value::Int(1);  // counts recursive calls of the loop, which are not supported
  if (name == "depth0") return Value::Int(0);
  if (name == "previtem" && loop.index > 0) return (*loop.items)[static_cast<size_t>(loop.index - 1)];
  if (name == "nextitem" && loop.index + 1 < size) return (*loop.items)[static_cast<size_t>(loop.index + 1)];
  if (HasMethod(value, name)) return heap_.NewMethod(value, name);
  return Value::Undefined(&name);
}

List Evaluator::Iterate(const Value& value) {
  List items;
  if (failed()) return items;
  switch (value.kind()) {
    case Kind::kUndefined:
      return items;
    case Kind::kList:
    case Kind::kTuple:
      items = value.list();
      break;
    case Kind::kDict:
      for (const auto& [key, item] : value.dict().items) items.push_back(key);
      break;
    case Kind::kString:
      for (size_t at = 0; at < value.string().size() && Tick();) {
        const uint32_t bytes = DecodeAt(value.string(), at).bytes;
        items.push_back(String(value.string().substr(at, bytes)));
        at += bytes;
      }
      break;
    default:
      Fail("a value of type " + TypeName(value) + " cannot be iterated over");
  }
  operations_ += static_cast<int64_t>(items.size()) / 4;
  return items;
}

bool Evaluator::IntegerArgument(const Value* value, int64_t* result, std::string_view what) {
  if (value == nullptr || value->is(Kind::kNone)) return !failed();
  if (!value->is_integer()) {
    Fail(std::string(what) + " takes an integer, not " + TypeName(*value));
    return false;
  }
  *result = value->integer();
  return true;
}

Value Evaluator::FormatPercent(const std::string& format, const Value& values) {
  const List parts = values.is(Kind::kTuple) ? values.list() : List{values};
  size_t next = 0;
  std::string text;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      text.push_back(format[i]);
      continue;
    }
    if (++i >= format.size()) return Fail("a format ends with %");
    if (format[i] == '%') {
      text.push_back('%');
      continue;
    }
    int64_t precision = -1;
    if (format[i] == '.') {
      precision = 0;
      for (++i; i < format.size() && format[i] >= '0' && format[i] <= '9' && precision < 100; ++i) {
        precision = precision * 10 + (format[i] - '0');
      }
    }
    const char type = i < format.size() ? format[i] : '\0';
    if (next >= parts.size()) return Fail("a format has more places than there are values");
    const Value& value = parts[next++];
    if (type == 's') {
      text += Str(value);
    } else if (type == 'r') {
      AppendRepr(value, &text);
    } else if ((type == 'd' || type == 'i') && value.is_number()) {
      if (value.is(Kind::kFloat) && !(std::fabs(value.real()) < 9.2e18))
        return Fail("an integer beyond 64 bits");
      text += std::to_string(value.is(Kind::kFloat) ? static_cast<int64_t>(value.real()) : value.integer());
    } else if (type == 'f' && value.is_number()) {
      char buffer[512];
      std::snprintf(buffer, sizeof(buffer), "%.*f",
                    static_cast<int>(precision < 0 ? 6 : std::min<int64_t>(precision, 100)), value.real());
      text += buffer;
    } else {
      return Fail(std::string("the format %") + type + " is not supported for a value of type " +
                  TypeName(value));
    }
  }
  if (next < parts.size() && !values.is(Kind::kDict) && !values.is(Kind::kList) &&
      !values.is(Kind::kUndefined))
    return Fail("a format has fewer places than there are values");
  return String(std::move(text));
}

}  // namespace tidepool::text::jinja
