#include "core/config/schema.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

#include "core/base/names.h"
#include "core/config/yaml_tree.h"

namespace tidepool::config {
namespace {

std::string Number(double value) {
  std::array<char, 32> buffer{};
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return std::string(buffer.data(), result.ptr);
}

// Whole numbers without an exponent.
std::string Bound(double value) {
  const auto whole = static_cast<int64_t>(value);
  return static_cast<double>(whole) == value ? std::to_string(whole) : Number(value);
}

}  // namespace

bool Range::Holds(double value) const {
  return (lo_open ? value > lo : value >= lo) && (hi_open ? value < hi : value <= hi);
}

WordField::WordField(JobOfKind* job)
    : value_(job),
      words_(kWords<JobKind>),
      get_([](const void* v) { return static_cast<const JobOfKind*>(v)->index(); }),
      set_([](void* v, size_t i) {
        if (static_cast<JobOfKind*>(v)->index() == i) return;
        *static_cast<JobOfKind*>(v) = std::array<JobOfKind, std::variant_size_v<JobOfKind>>{
            RlJob(), SftJob(), DpoJob(), RewardModelJob(), DistillJob()}[i];
      }) {}

bool WordField::Set(std::string_view word) const {
  const auto at = std::ranges::find(words_, word);
  if (at == words_.end()) return false;
  set_(value_, static_cast<size_t>(at - words_.begin()));
  return true;
}

std::string WordField::List() const { return Listed(words_); }

const Key* FindKey(std::string_view path) {
  const auto it = std::ranges::find(Keys(), path, &Key::path);
  return it == Keys().end() ? nullptr : &*it;
}

bool IsSection(std::string_view path) {
  const std::string prefix = std::string(path) + ".";
  return std::ranges::any_of(Keys(), [&](const Key& key) { return key.path.starts_with(prefix); });
}

std::vector<std::string> NamesIn(std::string_view section) {
  const std::string prefix = section.empty() ? "" : std::string(section) + ".";
  std::vector<std::string> names;
  for (const Key& key : Keys()) {
    if (!key.path.starts_with(prefix)) continue;
    std::string name = key.path.substr(prefix.size());
    name = name.substr(0, name.find_first_of(".["));
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  return names;
}

std::string DescribeType(const Key& key) {
  JobConfig scratch;
  scratch.reward.functions.emplace_back();
  const Field field = key.field(scratch, 0);
  std::string text;
  bool number = false;
  if (std::holds_alternative<bool*>(field)) {
    text = "true or false";
  } else if (std::holds_alternative<int64_t*>(field) || std::holds_alternative<uint64_t*>(field)) {
    text = std::holds_alternative<uint64_t*>(field) ? "an integer, at least 0" : "an integer";
    number = true;
  } else if (std::holds_alternative<double*>(field) ||
             std::holds_alternative<std::optional<double>*>(field)) {
    text = "a number";
    number = true;
  } else if (std::holds_alternative<std::vector<std::string>*>(field)) {
    text = "a list of texts";
  } else if (std::holds_alternative<std::vector<int64_t>*>(field)) {
    text = "a list of integers";
    number = true;
  } else if (!key.choices.empty()) {
    text = key.choices.size() > 1 ? "one of" : "";
    bool first = true;
    for (const std::string& choice : key.choices) {
      if (choice.empty()) continue;
      text += (text.empty() ? "" : first ? " " : ", ") + choice;
      first = false;
    }
  } else {
    text = key.is_path ? "a path" : "text";
  }
  if (number) {
    const Range& r = key.range;
    const bool lo = r.lo > -std::numeric_limits<double>::infinity();
    const bool hi = r.hi < std::numeric_limits<double>::infinity();
    if (lo && hi && r.lo == r.hi) {
      text += ", only " + Bound(r.lo);
    } else {
      if (lo) text += (r.lo_open ? ", above " : ", at least ") + Bound(r.lo);
      if (hi) text += std::string(lo ? " and " : ", ") + (r.hi_open ? "below " : "at most ") + Bound(r.hi);
    }
  }
  if (!key.unit.empty()) text += " (" + key.unit + ")";
  return text;
}

std::string TextAsYaml(const std::string& text) {
  static const std::vector<std::string> kReserved = {
      "null", "Null", "NULL", "true", "false", "True", "False", "TRUE", "FALSE", "yes",
      "no",   "on",   "off",  "y",    "n",     "Yes",  "No",    "On",   "Off"};
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '/' || c == '-';
  };
  Node node;
  node.kind = Node::Kind::kScalar;
  node.text = text;
  const bool starts_well = !text.empty() && ((text[0] >= 'a' && text[0] <= 'z') ||
                                             (text[0] >= 'A' && text[0] <= 'Z') || text[0] == '/');
  if (starts_well && std::ranges::all_of(text, plain) && TypeOf(node) == ScalarType::kText &&
      std::ranges::count(kReserved, text) == 0) {
    return text;
  }
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string ValueText(const Field& field) {
  struct Visitor {
    std::string operator()(const bool* v) const { return *v ? "true" : "false"; }
    std::string operator()(const int64_t* v) const { return std::to_string(*v); }
    std::string operator()(const uint64_t* v) const { return std::to_string(*v); }
    std::string operator()(const double* v) const { return Number(*v); }
    std::string operator()(const std::optional<double>* v) const { return *v ? Number(**v) : "null"; }
    std::string operator()(const std::string* v) const { return TextAsYaml(*v); }
    std::string operator()(const WordField& v) const { return TextAsYaml(v.Get()); }
    std::string operator()(const std::vector<std::string>* v) const {
      std::string text = "[";
      for (const std::string& item : *v)
        text += (text.size() > 1 ? ", " : "") +
                nlohmann::json(item).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      return text + "]";
    }
    std::string operator()(const std::vector<int64_t>* v) const {
      std::string text = "[";
      for (const int64_t item : *v) text += (text.size() > 1 ? ", " : "") + std::to_string(item);
      return text + "]";
    }
  };
  return std::visit(Visitor{}, field);
}

}  // namespace tidepool::config
