// Methods of strings, mappings, lists and of `loop`, with Python's meaning. Methods that change a value
// are refused, as the immutable sandbox does.

#include <algorithm>
#include <ctime>

#include "core/text/jinja/evaluator.h"

namespace tidepool::text::jinja {
namespace {

constexpr std::string_view kStringMethods[] = {
    "strip",      "lstrip",  "rstrip",  "split",   "rsplit",       "splitlines",   "startswith",
    "endswith",   "upper",   "lower",   "title",   "capitalize",   "replace",      "find",
    "rfind",      "index",   "rindex",  "count",   "join",         "isdigit",      "isalpha",
    "isalnum",    "isspace", "isupper", "islower", "isnumeric",    "isdecimal",    "zfill",
    "ljust",      "rjust",   "center",  "format",  "removeprefix", "removesuffix", "partition",
    "rpartition", "casefold"};
constexpr std::string_view kDictMethods[] = {"items", "keys",   "values",     "get",   "copy",
                                             "pop",   "update", "setdefault", "clear", "popitem"};
constexpr std::string_view kListMethods[] = {"index", "count",  "copy",    "append", "extend", "insert",
                                             "pop",   "remove", "reverse", "sort",   "clear"};
// Those of the lists above that change the value.
constexpr std::string_view kChanging[] = {"pop",    "update", "setdefault", "clear",   "popitem", "append",
                                          "extend", "insert", "remove",     "reverse", "sort"};

template <size_t N>
bool OneOf(std::string_view name, const std::string_view (&names)[N]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

}  // namespace

bool Evaluator::HasMethod(const Value& object, std::string_view name) {
  if (object.is_string()) return OneOf(name, kStringMethods);
  if (object.is(Kind::kDict)) return OneOf(name, kDictMethods);
  if (object.is(Kind::kTuple)) return name == "index" || name == "count";
  if (object.is(Kind::kList)) return OneOf(name, kListMethods);
  return false;
}

Value Evaluator::CallMethod(const Value& self, const std::string& name, const Arguments& arguments) {
  if (self.is_string()) return StringMethod(self.string(), name, arguments);
  if (self.is(Kind::kLoop)) return LoopMethod(self.loop(), name, arguments);
  if (OneOf(name, kChanging)) {
    return Fail("the method " + name + " would change a " + TypeName(self) +
                ", which templates may not do; build a new one, or use namespace()");
  }
  if (self.is(Kind::kDict)) return DictMethod(self.dict(), name, arguments);
  return ListMethod(self.list(), name, arguments);
}

Value Evaluator::LoopMethod(Loop& loop, const std::string& name, const Arguments& arguments) {
  if (name == "cycle") {
    if (arguments.positional.empty()) return Fail("loop.cycle takes at least one value");
    return arguments.positional[static_cast<size_t>(loop.index) % arguments.positional.size()];
  }
  bool same = loop.changed.size() == arguments.positional.size() + 1;  // a first call always differs
  for (size_t i = 0; same && i < arguments.positional.size(); ++i)
    same = Same(loop.changed[i], arguments.positional[i]);
  loop.changed = arguments.positional;
  loop.changed.emplace_back();  // marks that there was a call
  return Value::Bool(!same);
}

Value Evaluator::DictMethod(Dict& self, const std::string& name, const Arguments& arguments) {
  if (name == "get") {
    const Value* key = arguments.Get(0, "key");
    const Value* fallback = arguments.Get(1, "default");
    if (key == nullptr) return Fail("the method get takes a key");
    for (const auto& [known, value] : self.items) {
      if (!Tick()) return {};
      if (Same(known, *key)) return value;
    }
    return fallback != nullptr ? *fallback : Value::None();
  }
  if (name == "copy") {
    Dict* copy = heap_.NewDict();
    copy->items = self.items;
    heap_.Charge(static_cast<int64_t>(self.items.size()) * 32);
    return Value::DictOf(copy);
  }
  List items;
  for (const auto& [key, value] : self.items) {
    items.push_back(name == "keys" ? key : name == "values" ? value : heap_.NewTuple({key, value}));
  }
  return MakeList(std::move(items));
}

Value Evaluator::ListMethod(const List& self, const std::string& name, const Arguments& arguments) {
  if (name == "copy") return MakeList(self);
  const Value* wanted = arguments.Get(0, "value");
  if (wanted == nullptr) return Fail("the method " + name + " takes a value");
  int64_t count = 0;
  for (size_t i = 0; i < self.size() && Tick(); ++i) {
    if (!Same(self[i], *wanted)) continue;
    if (name == "index") return Value::Int(static_cast<int64_t>(i));
    ++count;
  }
  return name == "count" ? Value::Int(count) : Fail("the value is not in the list");
}

Value Evaluator::StringFromTime(const Value* format) {
  if (format == nullptr || !format->is_string()) return Fail("strftime_now takes a format");
  const std::time_t seconds = options_.unix_time_s;
  std::tm parts{};
  if (gmtime_r(&seconds, &parts) == nullptr) return Fail("strftime_now: the time is out of range");
  char buffer[1024];
  const size_t length = std::strftime(buffer, sizeof(buffer), format->string().c_str(), &parts);
  return String(std::string(buffer, length));
}

}  // namespace tidepool::text::jinja
