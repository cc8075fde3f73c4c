#include "core/tasks/options.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/check.h"
#include "core/base/names.h"
#include "core/base/utf8.h"

namespace tidepool::tasks {
namespace {

using nlohmann::json;

std::string Show(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

bool IsIntWithin(const json& value, int64_t lo, int64_t hi) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return false;
  return value.is_number_integer() && value.get<int64_t>() >= lo && value.get<int64_t>() <= hi;
}

}  // namespace

Option ChoiceOption(std::string name, std::vector<std::string> choices, std::string doc) {
  const std::string first = "\"" + choices.front() + "\"";
  return {std::move(name), OptionKind::kChoice, first, 0, 0, std::move(choices), std::move(doc)};
}

std::string DescribeOption(const Option& option) {
  const std::string bounds = "from " + std::to_string(option.min) + " to " + std::to_string(option.max);
  switch (option.kind) {
    case OptionKind::kInt:
      return "an integer " + bounds;
    case OptionKind::kRange:
      return "a range [lo, hi] of integers " + bounds;
    case OptionKind::kText:
      return "text of " + std::to_string(option.min) + " to " + std::to_string(option.max) + " characters";
    case OptionKind::kBool:
      return "true or false";
    case OptionKind::kChoice:
      return "one of " + Listed(option.choices);
  }
  return {};
}

Status CheckOption(const Option& option, const json& value) {
  const Status wrong = InvalidArgument("expected " + DescribeOption(option) + "; found " + Show(value));
  switch (option.kind) {
    case OptionKind::kInt:
      return IsIntWithin(value, option.min, option.max) ? OkStatus() : wrong;
    case OptionKind::kRange: {
      if (IsIntWithin(value, option.min, option.max)) return OkStatus();
      if (!value.is_array() || value.size() != 2) return wrong;
      if (!IsIntWithin(value[0], option.min, option.max) || !IsIntWithin(value[1], option.min, option.max))
        return wrong;
      return value[0].get<int64_t>() <= value[1].get<int64_t>() ? OkStatus() : wrong;
    }
    case OptionKind::kText: {
      if (!value.is_string()) return wrong;
      const int64_t n = CharacterCount(value.get_ref<const std::string&>());
      return n >= option.min && n <= option.max ? OkStatus() : wrong;
    }
    case OptionKind::kBool:
      return value.is_boolean() ? OkStatus() : wrong;
    case OptionKind::kChoice:
      return value.is_string() && std::ranges::count(option.choices, value.get<std::string>()) > 0
                 ? OkStatus()
                 : wrong;
  }
  return wrong;
}

std::string OptionJson(const std::vector<Option>& table, const std::string& name, const std::string& typed) {
  const auto option = std::ranges::find(table, name, &Option::name);
  const bool text =
      option != table.end() && (option->kind == OptionKind::kText || option->kind == OptionKind::kChoice);
  if (!text || json::parse(typed, nullptr, /*allow_exceptions=*/false).is_string()) return typed;
  return json(typed).dump(-1, ' ', false, json::error_handler_t::replace);
}

StatusOr<OptionValues> OptionValues::Parse(const std::vector<Option>& table,
                                           const std::map<std::string, std::string>& json_texts) {
  const auto parse = [](const json& value) {
    Value v;
    if (value.is_number()) v.range = {value.get<int64_t>(), value.get<int64_t>()};
    if (value.is_array()) v.range = {value[0].get<int64_t>(), value[1].get<int64_t>()};
    if (value.is_string()) v.text = value.get<std::string>();
    v.flag = value.is_boolean() && value.get<bool>();
    return v;
  };
  OptionValues result;
  for (const Option& option : table) {
    const json value = json::parse(option.default_json, nullptr, /*allow_exceptions=*/false);
    TP_CHECK(!value.is_discarded() && CheckOption(option, value).ok())
        << "the plug-in's option " << option.name << " has the default_json '" << option.default_json
        << "'; expected " << DescribeOption(option) << ", as JSON";
    result.values_[option.name] = parse(value);
  }
  for (const auto& [name, text] : json_texts) {
    const auto option = std::ranges::find(table, name, &Option::name);
    if (option == table.end()) {
      std::vector<std::string> names;
      for (const Option& known : table) names.push_back(known.name);
      const std::string near = Nearest(name, names);
      return InvalidArgument(name + ": no such option of this task" +
                             (near.empty() ? "" : "; did you mean '" + near + "'?"));
    }
    const json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (value.is_discarded())
      return InvalidArgument(name + ": expected " + DescribeOption(*option) + "; found " + text);
    TP_RETURN_IF_ERROR(CheckOption(*option, value).At(name));
    result.values_[name] = parse(value);
  }
  return result;
}

const OptionValues::Value& OptionValues::Get(const std::string& name) const {
  const auto it = values_.find(name);
  TP_CHECK(it != values_.end()) << "no option " << name;
  return it->second;
}

}  // namespace tidepool::tasks
