// Filters on sequences and mappings, and methods of lists, mappings and `loop`. Where jinja2 gives a
// generator, these give a list. Methods that change a value are refused, as the immutable sandbox does.

#include <algorithm>
#include <charconv>

#include "core/text/jinja/operations.h"
#include "core/text/unicode.h"

namespace tidepool::text::jinja {
namespace {

// --- parts of items that filters look at
// "a.b.0" or an integer.
Value PathOf(Evaluator& e, const Value& item, const Value& path) {
  if (path.is_integer()) return e.Item(item, path);
  if (!path.is_string()) return e.Fail("an attribute is named by a string or an integer");
  Value value = item;
  std::string_view rest = path.string();
  while (!e.failed()) {
    const size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    int64_t index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number =
        !part.empty() && error == std::errc() && end == part.data() + part.size() && part[0] != '-';
    value = e.Item(value, number ? Value::Int(index) : e.String(std::string(part)));
    if (dot == std::string_view::npos) break;
    rest.remove_prefix(dot + 1);
  }
  return value;
}

Value FoldCase(Evaluator& e, const Value& value) {
  return value.is_string() ? e.String(ToLower(value.string())) : value;
}

// What a filter compares of an item: its attribute, if one is named; in lower case unless case_sensitive.
Value KeyOf(Evaluator& e, const Value& item, const Value* attribute, bool case_sensitive) {
  const Value key = attribute != nullptr && !attribute->is(Kind::kNone) ? PathOf(e, item, *attribute) : item;
  return case_sensitive ? key : FoldCase(e, key);
}

bool LessThan(Evaluator& e, const Value& a, const Value& b) {
  e.Tick();
  const std::optional<int> order = Order(a, b);
  if (!order) e.Fail("cannot order " + TypeName(a) + " and " + TypeName(b));
  return order.value_or(0) < 0;
}

using Keyed = std::vector<std::pair<Value, Value>>;  // what an item is compared by, and the item
List SortedByKey(Evaluator& e, Keyed keyed, bool backwards) {
  // Values without an order fail at the first comparison; each later one then says "equal".
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    if (e.failed()) return false;
    return backwards ? LessThan(e, b.first, a.first) : LessThan(e, a.first, b.first);
  });
  List items;
  for (const auto& [key, item] : keyed) items.push_back(item);
  return items;
}

// --- filters that choose, change and order items
Value Select(const Operands& o) {
  const bool by_attribute = o.name.ends_with("attr");
  const bool wanted = o.name.starts_with("select");
  const List& given = o.arguments.positional;
  size_t next = 0;
  Value attribute;
  if (by_attribute) {
    if (given.empty()) return o.Fail("takes the name of an attribute");
    attribute = given[next++];
  }
  std::string test;
  if (next < given.size()) test = o.e.Str(given[next++]);
  const Arguments rest = o.arguments.From(next);
  List items;
  if (!Truth(o.self)) return o.e.MakeList({});  // what is false has no items, even if it could have none
  for (const Value& item : o.e.Iterate(o.self)) {
    if (!o.e.Tick()) return {};
    const Value subject = by_attribute ? PathOf(o.e, item, attribute) : item;
    const bool holds = test.empty() ? Truth(subject) : o.e.Test(test, subject, rest);
    if (holds == wanted) items.push_back(item);
  }
  return o.e.MakeList(std::move(items));
}

Value Map(const Operands& o) {
  const List& given = o.arguments.positional;
  const Value* attribute = o.Get(SIZE_MAX, "attribute");
  const Value* fallback = o.Get(SIZE_MAX, "default");
  if (attribute == nullptr && given.empty()) return o.Fail("takes a filter or attribute=");
  List items;
  if (!Truth(o.self)) return o.e.MakeList({});
  for (const Value& item : o.e.Iterate(o.self)) {
    if (!o.e.Tick()) return {};
    if (!given.empty()) {
      items.push_back(o.e.Filter(o.e.Str(given[0]), item, o.arguments.From(1)));
      continue;
    }
    const Value value = PathOf(o.e, item, *attribute);
    items.push_back(value.is(Kind::kUndefined) && fallback != nullptr ? *fallback : value);
  }
  return o.e.MakeList(std::move(items));
}

Value Sort(const Operands& o) {
  Keyed keyed;
  for (const Value& item : o.e.Iterate(o.self)) {
    keyed.emplace_back(KeyOf(o.e, item, o.Get(2, "attribute"), o.Flag(1, "case_sensitive")), item);
  }
  return o.e.MakeList(SortedByKey(o.e, std::move(keyed), o.Flag(0, "reverse")));
}

Value Unique(const Operands& o) {
  List seen, items;
  for (const Value& item : o.e.Iterate(o.self)) {
    const Value key = KeyOf(o.e, item, o.Get(1, "attribute"), o.Flag(0, "case_sensitive"));
    if (key.is(Kind::kList) || key.is(Kind::kDict))
      return o.e.Fail("a " + TypeName(key) + " cannot be a key");
    bool known = false;
    for (const Value& other : seen) {
      if (!o.e.Tick()) return {};
      known = known || o.e.Same(other, key);
    }
    if (known) continue;
    seen.push_back(key);
    items.push_back(item);
  }
  return o.e.MakeList(std::move(items));
}

Value GroupBy(const Operands& o) {
  const Value* attribute = o.Get(0, "attribute");
  const Value* fallback = o.Get(1, "default");
  if (attribute == nullptr) return o.Fail("takes an attribute");
  const auto key_of = [&](const Value& item) {
    const Value key = PathOf(o.e, item, *attribute);
    return key.is(Kind::kUndefined) && fallback != nullptr ? *fallback : key;
  };
  Keyed keyed;
  for (const Value& item : o.e.Iterate(o.self)) keyed.emplace_back(FoldCase(o.e, key_of(item)), item);
  const List items = SortedByKey(o.e, std::move(keyed), /*backwards=*/false);
  List groups;
  for (size_t i = 0; i < items.size() && o.e.Tick();) {
    List members;
    const Value key = key_of(items[i]);
    for (; i < items.size() && o.e.Same(FoldCase(o.e, key_of(items[i])), FoldCase(o.e, key)) && o.e.Tick();
         ++i)
      members.push_back(items[i]);
    groups.push_back(o.e.heap().NewTuple({key, o.e.MakeList(std::move(members))}));
  }
  return o.e.MakeList(std::move(groups));
}

Value DictSort(const Operands& o) {
  if (!o.self.is(Kind::kDict)) return o.Fail("takes a mapping, not " + TypeName(o.self));
  const Value* by = o.Get(1, "by");
  const bool by_value = by != nullptr && o.e.Str(*by) == "value";
  Keyed keyed;
  for (const auto& [key, value] : o.self.dict().items) {
    keyed.emplace_back(KeyOf(o.e, by_value ? value : key, nullptr, o.Flag(0, "case_sensitive")),
                       o.e.heap().NewTuple({key, value}));
  }
  return o.e.MakeList(SortedByKey(o.e, std::move(keyed), o.Flag(2, "reverse")));
}

Value Extreme(const Operands& o) {  // min, max
  Value best, best_key;
  bool first = true;
  for (const Value& item : o.e.Iterate(o.self)) {
    const Value key = KeyOf(o.e, item, o.Get(1, "attribute"), o.Flag(0, "case_sensitive"));
    if (first || (o.name == "max" ? LessThan(o.e, best_key, key) : LessThan(o.e, key, best_key))) {
      best = item;
      best_key = key;
    }
    first = false;
    if (o.e.failed()) return {};
  }
  return best;
}

Value Batch(const Operands& o) {
  int64_t size = 0;
  const Value* fill = o.Get(1, "fill_with");
  if (!o.Integer(0, "linecount", &size)) return {};
  if (size < 1 || size > 1'000'000) return o.Fail("takes a size from 1 to 1000000");
  List rows, row;
  for (const Value& item : o.e.Iterate(o.self)) {
    row.push_back(item);
    if (static_cast<int64_t>(row.size()) == size) rows.push_back(o.e.MakeList(std::exchange(row, {})));
  }
  if (!row.empty()) {
    while (fill != nullptr && !fill->is(Kind::kNone) && static_cast<int64_t>(row.size()) < size)
      row.push_back(*fill);
    rows.push_back(o.e.MakeList(std::move(row)));
  }
  return o.e.MakeList(std::move(rows));
}

Value Reverse(const Operands& o) {
  if (o.self.is_string()) {
    const std::u32string points = ToUtf32(o.self.string());
    return o.e.String(ToUtf8(std::u32string(points.rbegin(), points.rend())));
  }
  List items = o.e.Iterate(o.self);
  std::reverse(items.begin(), items.end());
  return o.e.MakeList(std::move(items));
}

// --- filters that make one value of a sequence
Value Length(const Operands& o) {
  if (o.self.is_string()) return Value::Int(CharacterCount(o.self.string()));
  if (o.self.is(Kind::kLoop)) return Value::Int(static_cast<int64_t>(o.self.loop().items->size()));
  if (!o.self.is_sequence() && !o.self.is(Kind::kDict) && !o.self.is(Kind::kUndefined))
    return o.e.Fail("a value of type " + TypeName(o.self) + " has no length");
  return Value::Int(static_cast<int64_t>(o.e.Iterate(o.self).size()));
}

Value Outermost(const Operands& o) {  // first, last
  const List items = o.e.Iterate(o.self);
  return items.empty() ? Value() : o.name == "first" ? items.front() : items.back();
}

Value JoinedBy(const Operands& o, const Value& sequence, const std::string& between, const Value* attribute) {
  std::string text;
  bool first = true;
  for (const Value& item : o.e.Iterate(sequence)) {
    if (!o.e.Tick()) return {};
    if (o.kind != kFilter && !item.is_string()) return o.Fail("takes strings, not " + TypeName(item));
    if (!std::exchange(first, false)) text += between;
    text += o.e.Str(attribute != nullptr ? PathOf(o.e, item, *attribute) : item);
    if (static_cast<int64_t>(text.size()) > o.e.heap().left()) o.Exhausted("makes a text that is too long");
  }
  return o.e.String(std::move(text));
}
Value JoinFilter(const Operands& o) {
  const Value* separator = o.Get(0, "d");
  return JoinedBy(o, o.self, separator != nullptr ? o.e.Str(*separator) : "", o.Get(1, "attribute"));
}
Value JoinMethod(const Operands& o) {
  const Value* sequence = o.Get(0, "");
  return sequence == nullptr ? o.Fail("takes a list") : JoinedBy(o, *sequence, o.self.string(), nullptr);
}

Value Sum(const Operands& o) {
  const Value* attribute = o.Get(0, "attribute");
  const Value* start = o.Get(1, "start");
  Value sum = start != nullptr ? *start : Value::Int(0);
  for (const Value& item : o.e.Iterate(o.self)) {
    if (!o.e.Tick()) return {};
    sum = o.e.Arithmetic("+", sum, attribute != nullptr ? PathOf(o.e, item, *attribute) : item);
  }
  return sum;
}

Value AttributeOf(const Operands& o) {  // attributes only, so a mapping's keys are not seen
  const Value* attribute = o.Get(0, "name");
  if (attribute == nullptr || !attribute->is_string()) return o.Fail("takes a name");
  return o.self.is(Kind::kDict) ? Value() : o.e.Attribute(o.self, attribute->string());
}

// --- mappings
Value Parts(const Operands& o) {  // items, keys, values
  List parts;
  if (o.self.is(Kind::kUndefined)) return o.e.MakeList({});
  if (!o.self.is(Kind::kDict)) return o.Fail("takes a mapping, not " + TypeName(o.self));
  for (const auto& [key, value] : o.self.dict().items) {
    parts.push_back(o.name == "keys" ? key : o.name == "values" ? value : o.e.heap().NewTuple({key, value}));
  }
  return o.e.MakeList(std::move(parts));
}

Value GetKey(const Operands& o) {
  const Value* key = o.Get(0, "key");
  const Value* fallback = o.Get(1, "default");
  if (key == nullptr) return o.Fail("takes a key");
  for (const auto& [known, value] : o.self.dict().items) {
    if (!o.e.Tick()) return {};
    if (o.e.Same(known, *key)) return value;
  }
  return fallback != nullptr ? *fallback : Value::None();
}

Value Copy(const Operands& o) {
  if (o.self.is_sequence()) return o.e.MakeList(o.self.list());
  Dict* copy = o.e.heap().NewDict();
  copy->items = o.self.dict().items;
  o.e.heap().Charge(static_cast<int64_t>(copy->items.size()) * 32);
  return Value::DictOf(copy);
}

// --- lists and `loop`
Value FindItem(const Operands& o) {  // index, count
  const List& items = o.self.list();
  const Value* wanted = o.Get(0, "value");
  if (wanted == nullptr) return o.Fail("takes a value");
  int64_t count = 0;
  for (size_t i = 0; i < items.size() && o.e.Tick(); ++i) {
    if (!o.e.Same(items[i], *wanted)) continue;
    if (o.name == "index") return Value::Int(static_cast<int64_t>(i));
    ++count;
  }
  return o.name == "count" ? Value::Int(count) : o.e.Fail("the value is not in the list");
}

Value Cycle(const Operands& o) {
  const List& given = o.arguments.positional;
  return given.empty() ? o.e.Fail("loop.cycle takes at least one value")
                       : given[static_cast<size_t>(o.self.loop().index) % given.size()];
}

Value HasChanged(const Operands& o) {
  Loop& loop = o.self.loop();
  const List& given = o.arguments.positional;
  bool same = loop.changed.size() == given.size() + 1;  // a first call always differs
  for (size_t i = 0; same && i < given.size(); ++i) same = o.e.Same(loop.changed[i], given[i]);
  loop.changed = given;
  loop.changed.emplace_back();  // marks that there was a call
  return Value::Bool(!same);
}

Value Refuse(const Operands& o) {
  return o.Fail("would change a " + TypeName(o.self) +
                ", which templates may not do; build a new one, or use namespace()");
}

constexpr Operation kSequenceOperations[] = {
    {kFilter, "select reject selectattr rejectattr", Select},
    {kFilter, "map", Map},
    {kFilter, "sort", Sort},
    {kFilter, "unique", Unique},
    {kFilter, "groupby", GroupBy},
    {kFilter, "dictsort", DictSort},
    {kFilter, "min max", Extreme},
    {kFilter, "batch", Batch},
    {kFilter, "reverse", Reverse},
    {kFilter, "list", [](const Operands& o) { return o.e.MakeList(o.e.Iterate(o.self)); }},
    {kFilter, "length count", Length},
    {kFilter, "first last", Outermost},
    {kFilter, "join", JoinFilter},
    {kOfString, "join", JoinMethod},
    {kFilter, "sum", Sum},
    {kFilter, "attr", AttributeOf},
    {kFilter | kOfDict, "items", Parts},
    {kOfDict, "keys values", Parts},
    {kOfDict, "get", GetKey},
    {kOfDict | kOfList, "copy", Copy},
    {kOfList | kOfTuple, "index count", FindItem},
    {kOfLoop, "cycle", Cycle},
    {kOfLoop, "changed", HasChanged},
    {kOfDict | kOfList, "pop clear", Refuse},
    {kOfDict, "update setdefault popitem", Refuse},
    {kOfList, "append extend insert remove reverse sort", Refuse},
};

}  // namespace

std::span<const Operation> SequenceOperations() { return kSequenceOperations; }

}  // namespace tidepool::text::jinja
