#include "core/text/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/text/unicode.h"

namespace tidepool::text::jinja {

const Value* Dict::Find(std::string_view key) const {
  for (const auto& [k, v] : items) {
    if (k.is_string() && k.string() == key) return &v;
  }
  return nullptr;
}

void Dict::Set(Value key, Value value) {
  for (auto& [k, v] : items) {
    if (Equal(k, key).value_or(false)) {
      v = value;
      return;
    }
  }
  items.emplace_back(key, value);
}

bool Truth(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.integer() != 0;
    case Kind::kFloat:
      return value.real() != 0.0;
    case Kind::kString:
      return !value.string().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !value.list().empty();
    case Kind::kDict:
      return !value.dict().items.empty();
    default:
      return true;
  }
}

std::optional<bool> Equal(const Value& a, const Value& b, int depth) {
  if (depth > kNestingMax) return std::nullopt;
  if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
  if (a.is_number() && b.is_number()) return a.real() == b.real();
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      return a.string() == b.string();
    case Kind::kList:
    case Kind::kTuple: {
      if (a.list().size() != b.list().size()) return false;
      for (size_t i = 0; i < a.list().size(); ++i) {
        const std::optional<bool> same = Equal(a.list()[i], b.list()[i], depth + 1);
        if (!same || !*same) return same;
      }
      return true;
    }
    case Kind::kDict: {
      if (a.dict().items.size() != b.dict().items.size()) return false;
      for (const auto& [key, value] : a.dict().items) {
        bool found = false;
        for (const auto& [other_key, other] : b.dict().items) {
          if (!Equal(key, other_key, depth + 1).value_or(false)) continue;
          const std::optional<bool> same = Equal(value, other, depth + 1);
          if (!same || !*same) return same;
          found = true;
          break;
        }
        if (!found) return false;
      }
      return true;
    }
    default:
      return a.identity() == b.identity();
  }
}

std::optional<int> Order(const Value& a, const Value& b, int depth) {
  if (depth > kNestingMax) return std::nullopt;
  const auto sign = [](auto x, auto y) { return x < y ? -1 : x > y ? 1 : 0; };
  if (a.is_integer() && b.is_integer()) return sign(a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return sign(a.real(), b.real());
  if (a.is_string() && b.is_string()) {
    const int order = a.string().compare(b.string());  // order of bytes is order of code points in UTF-8
    return sign(order, 0);
  }
  if (a.is_sequence() && a.kind() == b.kind()) {
    for (size_t i = 0; i < a.list().size() && i < b.list().size(); ++i) {
      const std::optional<bool> same = Equal(a.list()[i], b.list()[i], depth + 1);
      if (!same) return std::nullopt;
      if (!*same) return Order(a.list()[i], b.list()[i], depth + 1);
    }
    return sign(a.list().size(), b.list().size());
  }
  return std::nullopt;
}

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  // The shortest digits that read back the same, then Python's choice of form: exponents from -4 to 15
  // are written out.
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  std::string text(buffer, end);
  const size_t e = text.find('e');
  const int exponent = std::atoi(text.c_str() + e + 1);
  const bool negative = text[0] == '-';
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') digits.push_back(c);
  }
  std::string result = negative ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    result += digits.substr(0, 1);
    if (digits.size() > 1) result += "." + digits.substr(1);
    char tail[8];
    std::snprintf(tail, sizeof(tail), "e%+03d", exponent);
    return result + tail;
  }
  if (exponent < 0) return result + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return result + digits + std::string(whole - digits.size(), '0') + ".0";
  return result + digits.substr(0, whole) + "." + digits.substr(whole);
}

bool AppendStr(const Value& value, std::string* out) {
  if (value.is_string()) {
    *out += value.string();
    return true;
  }
  if (value.is(Kind::kUndefined)) return true;
  return AppendRepr(value, out);
}

namespace {

void AppendStringRepr(const std::string& text, std::string* out) {
  const bool has_single = text.find('\'') != std::string::npos;
  const bool has_double = text.find('"') != std::string::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  out->push_back(quote);
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = DecodeAt(text, at);
    if (c.value == static_cast<char32_t>(quote) || c.value == '\\') {
      out->push_back('\\');
      out->push_back(static_cast<char>(c.value));
    } else if (c.value == '\n') {
      *out += "\\n";
    } else if (c.value == '\r') {
      *out += "\\r";
    } else if (c.value == '\t') {
      *out += "\\t";
    } else if (!IsPrintable(c.value)) {
      char buffer[16];
      std::snprintf(buffer, sizeof(buffer),
                    c.value < 0x100     ? "\\x%02x"
                    : c.value < 0x10000 ? "\\u%04x"
                                        : "\\U%08x",
                    static_cast<unsigned>(c.value));
      *out += buffer;
    } else {
      out->append(text, at, c.bytes);
    }
    at += c.bytes;
  }
  out->push_back(quote);
}

void AppendJsonString(const std::string& text, bool ensure_ascii, std::string* out) {
  *out += nlohmann::json(text).dump(-1, ' ', ensure_ascii, nlohmann::json::error_handler_t::replace);
}

}  // namespace

bool AppendRepr(const Value& value, std::string* out, int depth) {
  if (depth > kNestingMax) return false;
  switch (value.kind()) {
    case Kind::kUndefined:
      *out += "Undefined";
      return true;
    case Kind::kNone:
      *out += "None";
      return true;
    case Kind::kBool:
      *out += value.boolean() ? "True" : "False";
      return true;
    case Kind::kInt:
      *out += std::to_string(value.integer());
      return true;
    case Kind::kFloat:
      *out += FloatRepr(value.real());
      return true;
    case Kind::kString:
      AppendStringRepr(value.string(), out);
      return true;
    case Kind::kList:
    case Kind::kTuple: {
      const bool tuple = value.is(Kind::kTuple);
      out->push_back(tuple ? '(' : '[');
      for (size_t i = 0; i < value.list().size(); ++i) {
        if (i > 0) *out += ", ";
        if (!AppendRepr(value.list()[i], out, depth + 1)) return false;
      }
      if (tuple && value.list().size() == 1) out->push_back(',');
      out->push_back(tuple ? ')' : ']');
      return true;
    }
    case Kind::kNamespace:
    case Kind::kDict: {
      if (value.is(Kind::kNamespace)) *out += "<Namespace ";
      out->push_back('{');
      bool first = true;
      for (const auto& [key, item] : value.dict().items) {
        if (!first) *out += ", ";
        first = false;
        if (!AppendRepr(key, out, depth + 1)) return false;
        *out += ": ";
        if (!AppendRepr(item, out, depth + 1)) return false;
      }
      out->push_back('}');
      if (value.is(Kind::kNamespace)) out->push_back('>');
      return true;
    }
    default:
      *out += "<" + TypeName(value) + ">";
      return true;
  }
}

Status AppendJson(const Value& value, const JsonStyle& style, std::string* out, int depth) {
  if (depth > kNestingMax)
    return InvalidArgument("tojson: nested deeper than " + std::to_string(kNestingMax));
  const auto new_line = [&](int level) {
    if (style.indent < 0) return;
    out->push_back('\n');
    out->append(static_cast<size_t>(style.indent) * static_cast<size_t>(level), ' ');
  };
  // With an indent, json.dumps ends a line's item with a bare comma.
  const std::string separator =
      style.indent >= 0 && style.item_separator == ", " ? "," : style.item_separator;
  switch (value.kind()) {
    case Kind::kNone:
      *out += "null";
      return OkStatus();
    case Kind::kBool:
      *out += value.boolean() ? "true" : "false";
      return OkStatus();
    case Kind::kInt:
      *out += std::to_string(value.integer());
      return OkStatus();
    case Kind::kFloat:
      *out += std::isnan(value.real())   ? "NaN"
              : std::isinf(value.real()) ? (value.real() > 0 ? "Infinity" : "-Infinity")
                                         : FloatRepr(value.real());
      return OkStatus();
    case Kind::kString:
      AppendJsonString(value.string(), style.ensure_ascii, out);
      return OkStatus();
    case Kind::kList:
    case Kind::kTuple: {
      out->push_back('[');
      bool first = true;
      for (const Value& item : value.list()) {
        if (!first) *out += separator;
        first = false;
        new_line(depth + 1);
        TP_RETURN_IF_ERROR(AppendJson(item, style, out, depth + 1));
      }
      if (!first) new_line(depth);
      out->push_back(']');
      return OkStatus();
    }
    case Kind::kDict: {
      auto items = value.dict().items;
      if (style.sort_keys) {
        bool ordered = true;
        std::stable_sort(items.begin(), items.end(), [&](const auto& a, const auto& b) {
          const std::optional<int> order = Order(a.first, b.first);
          ordered = ordered && order.has_value();
          return order.value_or(0) < 0;
        });
        if (!ordered) return InvalidArgument("tojson: keys of different types cannot be sorted");
      }
      out->push_back('{');
      bool first = true;
      for (const auto& [key, item] : items) {
        if (!first) *out += separator;
        first = false;
        new_line(depth + 1);
        if (key.is_string()) {
          AppendJsonString(key.string(), style.ensure_ascii, out);
        } else if (key.is_number() || key.is(Kind::kNone)) {
          out->push_back('"');
          TP_RETURN_IF_ERROR(AppendJson(key, style, out, depth + 1));
          out->push_back('"');
        } else {
          return InvalidArgument("tojson: a key is " + TypeName(key));
        }
        *out += style.key_separator;
        TP_RETURN_IF_ERROR(AppendJson(item, style, out, depth + 1));
      }
      if (!first) new_line(depth);
      out->push_back('}');
      return OkStatus();
    }
    default:
      return InvalidArgument("tojson: a value of type " + TypeName(value) + " has no JSON form");
  }
}

Value Heap::NewString(std::string text) {
  Charge(static_cast<int64_t>(text.size()) + 32);
  return Value::String(&strings_.emplace_back(std::move(text)));
}
Value Heap::NewList(List items) {
  Charge(static_cast<int64_t>(items.size() * sizeof(Value)) + 32);
  return Value::ListOf(&lists_.emplace_back(std::move(items)));
}
Value Heap::NewTuple(List items) {
  Charge(static_cast<int64_t>(items.size() * sizeof(Value)) + 32);
  return Value::TupleOf(&lists_.emplace_back(std::move(items)));
}
Dict* Heap::NewDict() {
  Charge(64);
  return &dicts_.emplace_back();
}
Macro* Heap::NewMacro() {
  Charge(32);
  return &macros_.emplace_back();
}
Loop* Heap::NewLoop() {
  Charge(64);
  return &loops_.emplace_back();
}
Value Heap::NewMethod(Value self, std::string name) {
  Charge(64);
  return Value::OfMethod(&methods_.emplace_back(Method{self, std::move(name)}));
}

StatusOr<Value> Heap::FromJson(const nlohmann::ordered_json& json, int depth) {
  if (depth > kNestingMax)
    return InvalidArgument("a value is nested deeper than " + std::to_string(kNestingMax));
  if (exhausted()) return ResourceExhausted("the values given to the chat template are too large");
  switch (json.type()) {
    case nlohmann::json::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case nlohmann::json::value_t::number_integer:
      return Value::Int(json.get<int64_t>());
    case nlohmann::json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
        return InvalidArgument("the integer " + json.dump() + " is beyond 64 bits");
      }
      return Value::Int(json.get<int64_t>());
    case nlohmann::json::value_t::number_float:
      return Value::Float(json.get<double>());
    case nlohmann::json::value_t::string: {
      const auto& text = json.get_ref<const std::string&>();
      if (FindInvalidUtf8(text) != std::string::npos) return InvalidArgument("a string is no UTF-8");
      return NewString(text);
    }
    case nlohmann::json::value_t::array: {
      List items;
      items.reserve(json.size());
      for (const auto& item : json) {
        TP_ASSIGN_OR_RETURN(const Value value, FromJson(item, depth + 1));
        items.push_back(value);
      }
      return NewList(std::move(items));
    }
    case nlohmann::json::value_t::object: {
      Dict* dict = NewDict();
      for (const auto& [key, item] : json.items()) {
        if (FindInvalidUtf8(key) != std::string::npos) return InvalidArgument("a key is no UTF-8");
        TP_ASSIGN_OR_RETURN(const Value value, FromJson(item, depth + 1));
        dict->items.emplace_back(NewString(key), value);  // keys of a parsed object differ
      }
      return Value::DictOf(dict);
    }
    default:
      return Value::None();
  }
}

}  // namespace tidepool::text::jinja
