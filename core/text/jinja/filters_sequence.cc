// Filters on sequences and mappings. Where jinja2 gives a generator, these give a list.

#include <algorithm>
#include <charconv>

#include "core/text/jinja/evaluator.h"
#include "core/text/unicode.h"

namespace tidepool::text::jinja {

bool Evaluator::FilterSequence(const std::string& name, const Value& input, const Arguments& arguments,
                               Value* result) {
  const auto get = [&](size_t place, const char* key) { return arguments.Get(place, key); };
  if (name == "length" || name == "count") {
    if (input.is_string()) {
      *result = Value::Int(LengthInCodePoints(input.string()));
    } else if (input.is_sequence() || input.is(Kind::kDict) || input.is(Kind::kUndefined)) {
      *result = Value::Int(static_cast<int64_t>(Iterate(input).size()));
    } else if (input.is(Kind::kLoop)) {
      *result = Value::Int(static_cast<int64_t>(input.loop().items->size()));
    } else {
      Fail("a value of type " + TypeName(input) + " has no length");
    }
  } else if (name == "first" || name == "last") {
    const List items = Iterate(input);
    if (!items.empty()) *result = name == "first" ? items.front() : items.back();
  } else if (name == "list") {
    *result = MakeList(Iterate(input));
  } else if (name == "join") {
    const Value* separator = get(0, "d");
    const Value* attribute = get(1, "attribute");
    const std::string between = separator != nullptr ? Str(*separator) : "";
    std::string text;
    bool first = true;
    for (const Value& item : Iterate(input)) {
      if (!Tick()) return true;
      if (!first) text += between;
      first = false;
      text += Str(attribute != nullptr ? PathOf(item, *attribute) : item);
      if (static_cast<int64_t>(text.size()) > heap_.left())
        Exhausted("the filter join makes a text that is too long");
    }
    *result = String(std::move(text));
  } else if (name == "items") {
    List items;
    if (input.is(Kind::kDict)) {
      for (const auto& [key, value] : input.dict().items) items.push_back(heap_.NewTuple({key, value}));
    } else if (!input.is(Kind::kUndefined)) {
      Fail("the filter items takes a mapping, not " + TypeName(input));
    }
    *result = MakeList(std::move(items));
  } else if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr") {
    *result = SelectFilter(name, input, arguments);
  } else if (name == "map") {
    *result = MapFilter(input, arguments);
  } else if (name == "sort") {
    *result = SortFilter(input, arguments);
  } else if (name == "unique") {
    *result = UniqueFilter(input, arguments);
  } else if (name == "groupby") {
    *result = GroupByFilter(input, arguments);
  } else if (name == "dictsort") {
    *result = DictSortFilter(input, arguments);
  } else if (name == "min" || name == "max") {
    *result = ExtremeFilter(name == "max", input, arguments);
  } else if (name == "batch") {
    *result = BatchFilter(input, arguments);
  } else if (name == "reverse") {
    if (input.is_string()) {
      std::u32string points = ToUtf32(input.string());
      std::reverse(points.begin(), points.end());
      *result = String(ToUtf8(points));
    } else {
      List items = Iterate(input);
      std::reverse(items.begin(), items.end());
      *result = MakeList(std::move(items));
    }
  } else if (name == "sum") {
    const Value* attribute = get(0, "attribute");
    const Value* start = get(1, "start");
    *result = start != nullptr ? *start : Value::Int(0);
    for (const Value& item : Iterate(input)) {
      if (!Tick()) return true;
      *result = Arithmetic("+", *result, attribute != nullptr ? PathOf(item, *attribute) : item);
    }
  } else if (name == "attr") {
    const Value* attribute = get(0, "name");
    if (attribute == nullptr || !attribute->is_string()) {
      Fail("the filter attr takes a name");
    } else if (!input.is(Kind::kDict)) {  // attributes only, so a mapping's keys are not seen
      *result = Attribute(input, attribute->string());
    }
  } else {
    return false;
  }
  return true;
}

Value Evaluator::PathOf(const Value& item, const Value& path) {
  if (path.is_integer()) return Item(item, path);
  if (!path.is_string()) return Fail("an attribute is named by a string or an integer");
  Value value = item;
  std::string_view rest = path.string();
  while (!failed()) {
    const size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    int64_t index = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number =
        !part.empty() && error == std::errc() && end == part.data() + part.size() && part[0] != '-';
    value = Item(value, number ? Value::Int(index) : String(std::string(part)));
    if (dot == std::string_view::npos) break;
    rest.remove_prefix(dot + 1);
  }
  return value;
}

Value Evaluator::SelectFilter(const std::string& name, const Value& input, const Arguments& arguments) {
  const bool by_attribute = name.ends_with("attr");
  const bool wanted = name.starts_with("select");
  size_t next = 0;
  Value attribute;
  if (by_attribute) {
    if (arguments.positional.empty()) return Fail("the filter " + name + " takes the name of an attribute");
    attribute = arguments.positional[next++];
  }
  std::string test;
  if (next < arguments.positional.size()) test = Str(arguments.positional[next++]);
  Arguments rest;
  rest.positional.assign(arguments.positional.begin() + static_cast<int64_t>(next),
                         arguments.positional.end());
  rest.named = arguments.named;
  List items;
  if (!Truth(input)) return MakeList({});  // what is false has no items, even if it could have none
  for (const Value& item : Iterate(input)) {
    if (!Tick()) return {};
    const Value subject = by_attribute ? PathOf(item, attribute) : item;
    const bool holds = test.empty() ? Truth(subject) : Test(test, subject, rest);
    if (holds == wanted) items.push_back(item);
  }
  return MakeList(std::move(items));
}

Value Evaluator::MapFilter(const Value& input, const Arguments& arguments) {
  List items;
  const Value* attribute = nullptr;
  const Value* fallback = nullptr;
  for (const auto& [key, value] : arguments.named) {
    if (key == "attribute") attribute = &value;
    if (key == "default") fallback = &value;
  }
  if (attribute == nullptr && arguments.positional.empty())
    return Fail("the filter map takes a filter or attribute=");
  if (!Truth(input)) return MakeList({});
  for (const Value& item : Iterate(input)) {
    if (!Tick()) return {};
    if (arguments.positional.empty()) {
      const Value value = PathOf(item, *attribute);
      items.push_back(value.is(Kind::kUndefined) && fallback != nullptr ? *fallback : value);
      continue;
    }
    Arguments rest;
    rest.positional.assign(arguments.positional.begin() + 1, arguments.positional.end());
    rest.named = arguments.named;
    items.push_back(Filter(Str(arguments.positional[0]), item, rest));
  }
  return MakeList(std::move(items));
}

Value Evaluator::FoldCase(const Value& value) {
  return value.is_string() ? String(ToLower(value.string())) : value;
}

bool Evaluator::LessThan(const Value& a, const Value& b) {
  Tick();
  const std::optional<int> order = Order(a, b);
  if (!order) Fail("cannot order " + TypeName(a) + " and " + TypeName(b));
  return order.value_or(0) < 0;
}

Value Evaluator::KeyOf(const Value& item, const Value* attribute, bool case_sensitive) {
  const Value key = attribute != nullptr && !attribute->is(Kind::kNone) ? PathOf(item, *attribute) : item;
  return case_sensitive ? key : FoldCase(key);
}

List Evaluator::SortedByKey(std::vector<std::pair<Value, Value>> keyed, bool backwards) {
  // Values without an order fail at the first comparison; each later one then says "equal".
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    if (failed()) return false;
    return backwards ? LessThan(b.first, a.first) : LessThan(a.first, b.first);
  });
  List items;
  for (const auto& [key, item] : keyed) items.push_back(item);
  return items;
}

Value Evaluator::SortFilter(const Value& input, const Arguments& arguments) {
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : Iterate(input)) {
    keyed.emplace_back(KeyOf(item, arguments.Get(2, "attribute"), arguments.Flag(1, "case_sensitive")), item);
  }
  return MakeList(SortedByKey(std::move(keyed), arguments.Flag(0, "reverse")));
}

Value Evaluator::UniqueFilter(const Value& input, const Arguments& arguments) {
  List seen;
  List items;
  for (const Value& item : Iterate(input)) {
    const Value key = KeyOf(item, arguments.Get(1, "attribute"), arguments.Flag(0, "case_sensitive"));
    if (key.is(Kind::kList) || key.is(Kind::kDict)) return Fail("a " + TypeName(key) + " cannot be a key");
    bool known = false;
    for (const Value& other : seen) {
      if (!Tick()) return {};
      known = known || Same(other, key);
    }
    if (known) continue;
    seen.push_back(key);
    items.push_back(item);
  }
  return MakeList(std::move(items));
}

Value Evaluator::GroupByFilter(const Value& input, const Arguments& arguments) {
  const Value* attribute = arguments.Get(0, "attribute");
  const Value* fallback = arguments.Get(1, "default");
  if (attribute == nullptr) return Fail("the filter groupby takes an attribute");
  const auto key_of = [&](const Value& item) {
    const Value key = PathOf(item, *attribute);
    return key.is(Kind::kUndefined) && fallback != nullptr ? *fallback : key;
  };
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : Iterate(input)) keyed.emplace_back(FoldCase(key_of(item)), item);
  const List items = SortedByKey(std::move(keyed), /*backwards=*/false);
  List groups;
  for (size_t i = 0; i < items.size() && Tick();) {
    List members;
    const Value key = key_of(items[i]);
    for (; i < items.size() && Same(FoldCase(key_of(items[i])), FoldCase(key)) && Tick(); ++i)
      members.push_back(items[i]);
    groups.push_back(heap_.NewTuple({key, MakeList(std::move(members))}));
  }
  return MakeList(std::move(groups));
}

Value Evaluator::DictSortFilter(const Value& input, const Arguments& arguments) {
  if (!input.is(Kind::kDict)) return Fail("the filter dictsort takes a mapping, not " + TypeName(input));
  const Value* by = arguments.Get(1, "by");
  const bool by_value = by != nullptr && Str(*by) == "value";
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : input.dict().items) {
    keyed.emplace_back(KeyOf(by_value ? value : key, nullptr, arguments.Flag(0, "case_sensitive")),
                       heap_.NewTuple({key, value}));
  }
  return MakeList(SortedByKey(std::move(keyed), arguments.Flag(2, "reverse")));
}

Value Evaluator::ExtremeFilter(bool largest, const Value& input, const Arguments& arguments) {
  Value best;
  Value best_key;
  bool first = true;
  for (const Value& item : Iterate(input)) {
    const Value key = KeyOf(item, arguments.Get(1, "attribute"), arguments.Flag(0, "case_sensitive"));
    if (first || (largest ? LessThan(best_key, key) : LessThan(key, best_key))) {
      best = item;
      best_key = key;
    }
    first = false;
    if (failed()) return {};
  }
  return best;
}

Value Evaluator::BatchFilter(const Value& input, const Arguments& arguments) {
  int64_t size = 0;
  const Value* fill = arguments.Get(1, "fill_with");
  if (!IntegerArgument(arguments.Get(0, "linecount"), &size, "batch")) return {};
  if (size < 1 || size > 1'000'000) return Fail("the filter batch takes a size from 1 to 1000000");
  List rows;
  List row;
  for (const Value& item : Iterate(input)) {
    row.push_back(item);
    if (static_cast<int64_t>(row.size()) == size) rows.push_back(MakeList(std::exchange(row, {})));
  }
  if (!row.empty()) {
    while (fill != nullptr && !fill->is(Kind::kNone) && static_cast<int64_t>(row.size()) < size)
      row.push_back(*fill);
    rows.push_back(MakeList(std::move(row)));
  }
  return MakeList(std::move(rows));
}

}  // namespace tidepool::text::jinja
