#pragma once
// Values of the template language and the heap that owns them during one rendering.
//
// A Value is two words and copies freely; what it points to belongs to the Heap of the rendering (or to
// the parsed template, for literals) and goes with it, so cycles cost nothing. Semantics are Python's:
// integers (64 bits here, overflow is an error), floats, strings indexed by code point, lists, tuples,
// dictionaries in order of insertion. Not thread-safe; each rendering has its own heap.

#include <cstdint>
#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/base/words.h"

namespace tidepool::text::jinja {

struct Statement;
struct Frame;
struct Dict;
struct Macro;
struct Loop;
struct Method;
class Value;
using List = std::vector<Value>;

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kNamespace,
  kMacro,
  kLoop,
  kMethod,
  kFunction,
};
// Python's names, for messages.
constexpr auto WordsOf(Kind) {
  return std::to_array<const char*>({"Undefined", "NoneType", "bool", "int", "float", "str", "list", "tuple",
                                     "dict", "Namespace", "Macro", "LoopContext", "method", "function"});
}

class Value {
 public:
  Value() : kind_(Kind::kUndefined), string_(nullptr) {}
  static Value Undefined(const std::string* name) { return Of(Kind::kUndefined, &Value::string_, name); }
  static Value None() { return Of<const std::string*>(Kind::kNone, &Value::string_, nullptr); }
  static Value Bool(bool b) { return Of<int64_t>(Kind::kBool, &Value::int_, b ? 1 : 0); }
  static Value Int(int64_t i) { return Of(Kind::kInt, &Value::int_, i); }
  static Value Float(double d) { return Of(Kind::kFloat, &Value::float_, d); }
  static Value String(const std::string* s) { return Of(Kind::kString, &Value::string_, s); }
  static Value ListOf(const List* l) { return Of(Kind::kList, &Value::list_, l); }
  static Value TupleOf(const List* l) { return Of(Kind::kTuple, &Value::list_, l); }
  static Value DictOf(Dict* d) { return Of(Kind::kDict, &Value::dict_, d); }
  static Value Namespace(Dict* d) { return Of(Kind::kNamespace, &Value::dict_, d); }
  static Value OfMacro(const Macro* m) { return Of(Kind::kMacro, &Value::macro_, m); }
  static Value OfLoop(Loop* l) { return Of(Kind::kLoop, &Value::loop_, l); }
  static Value OfMethod(const Method* m) { return Of(Kind::kMethod, &Value::method_, m); }
  static Value Function(const std::string* name) { return Of(Kind::kFunction, &Value::string_, name); }

  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] bool is(Kind k) const { return kind_ == k; }
  [[nodiscard]] bool is_string() const { return kind_ == Kind::kString; }
  [[nodiscard]] bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  [[nodiscard]] bool is_integer() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  [[nodiscard]] bool is_number() const { return is_integer() || kind_ == Kind::kFloat; }

  // Each requires the matching kind.
  [[nodiscard]] bool boolean() const { return int_ != 0; }
  [[nodiscard]] int64_t integer() const { return int_; }
  [[nodiscard]] double real() const { return kind_ == Kind::kFloat ? float_ : static_cast<double>(int_); }
  [[nodiscard]] const std::string& string() const { return *string_; }
  [[nodiscard]] const std::string* name() const { return string_; }  // of an undefined value; may be null
  [[nodiscard]] const List& list() const { return *list_; }
  [[nodiscard]] Dict& dict() const { return *dict_; }
  [[nodiscard]] const Macro& macro() const { return *macro_; }
  [[nodiscard]] Loop& loop() const { return *loop_; }
  [[nodiscard]] const Method& method() const { return *method_; }
  [[nodiscard]] const void* identity() const { return string_; }  // for `sameas`

 private:
  template <typename T>
  static Value Of(Kind kind, T Value::*field, T x) {
    Value v;
    v.kind_ = kind;
    v.*field = x;
    return v;
  }
  Kind kind_;
  union {
    int64_t int_;
    double float_;
    const std::string* string_;
    const List* list_;
    Dict* dict_;
    const Macro* macro_;
    Loop* loop_;
    const Method* method_;
  };
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;  // in order of insertion
  // By a string key; null: none. Linear: dictionaries here are small.
  [[nodiscard]] const Value* Find(std::string_view key) const;
  void Set(Value key, Value value);  // replaces an equal key
};

struct Macro {
  const Statement* definition = nullptr;
  Frame* closure = nullptr;
};
struct Method {  // a method taken from a value, to be called
  Value self;
  std::string name;
};
struct Loop {  // the `loop` variable
  const List* items = nullptr;
  int64_t index = 0;           // from 0
  std::vector<Value> changed;  // last arguments of loop.changed
};

inline std::string TypeName(const Value& value) { return Name(value.kind()); }
bool Truth(const Value& value);

// Nesting beyond this is an error wherever values are walked through.
inline constexpr int kNestingMax = 200;

// Python's ==; nothing if the values are nested too deep.
std::optional<bool> Equal(const Value& a, const Value& b, int depth = 0);
// Negative, zero, positive as a < b, a == b, a > b; nothing if the types have no order.
std::optional<int> Order(const Value& a, const Value& b, int depth = 0);

// str() and repr(). Both append to `out`; false if nested too deep.
bool AppendStr(const Value& value, std::string* out);
bool AppendRepr(const Value& value, std::string* out, int depth = 0);
std::string FloatRepr(double value);

struct JsonStyle {
  int64_t indent = -1;  // < 0: on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool ensure_ascii = false;
  bool sort_keys = false;
};
// json.dumps. kInvalidArgument for what has no JSON form.
Status AppendJson(const Value& value, const JsonStyle& style, std::string* out, int depth = 0);

// Owns what values point to, within a budget of bytes.
class Heap {
 public:
  explicit Heap(int64_t bytes_max) : left_(bytes_max) {}
  Value NewString(std::string text);
  Value NewList(List items);
  Value NewTuple(List items);
  Dict* NewDict();
  Macro* NewMacro();
  Loop* NewLoop();
  Value NewMethod(Value self, std::string name);
  // kInvalidArgument if nested too deep or with an integer beyond 64 bits.
  StatusOr<Value> FromJson(const nlohmann::ordered_json& json, int depth = 0);
  void Charge(int64_t bytes) { left_ -= bytes; }
  [[nodiscard]] bool exhausted() const { return left_ < 0; }
  [[nodiscard]] int64_t left() const { return left_; }

 private:
  int64_t left_;
  std::deque<std::string> strings_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<Macro> macros_;
  std::deque<Loop> loops_;
  std::deque<Method> methods_;
};

}  // namespace tidepool::text::jinja
