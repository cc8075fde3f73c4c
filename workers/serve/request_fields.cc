#include "workers/serve/request_fields.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/names.h"

namespace tidepool::workers {
namespace {

// What callers wrote may be megabytes; an error quotes the beginning of it.
constexpr size_t kNameShown = 200, kErrorShown = 2000;

std::string Short(const std::string& text, size_t most) {
  return text.size() > most ? text.substr(0, most) + "..." : text;
}

// A value as an error quotes it.
std::string Shown(const nlohmann::ordered_json& value) {
  const std::string text = value.is_structured()
                               ? (value.is_array() ? "a list" : "an object")
                               : value.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
  return Short(text, 60);
}

std::string Plain(double x) {
  std::string text = nlohmann::ordered_json(x).dump();
  return text.ends_with(".0") ? text.substr(0, text.size() - 2) : text;
}

}  // namespace

std::optional<std::string> TakeIds(const nlohmann::ordered_json& list, int64_t below,
                                   std::vector<int32_t>* ids) {
  const std::string expected = "token ids from 0 to " + std::to_string(below - 1) + " are expected, found ";
  if (!list.is_array()) return "a list of " + expected + Shown(list);
  ids->reserve(list.size());
  for (const auto& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(below))
      return expected + Shown(id);
    ids->push_back(static_cast<int32_t>(id.get<int64_t>()));
  }
  return std::nullopt;
}

RequestFields::RequestFields(const Json& object, std::string where, std::optional<ApiError>* error)
    : object_(object), where_(std::move(where)), error_(error) {
  if (!object_.is_object()) Refuse("", "an object is expected, found " + Shown(object_));
}

std::string RequestFields::PathOf(const std::string& name) const {
  return where_.empty() || name.empty() ? where_ + name : where_ + "." + name;
}

void RequestFields::Refuse(const std::string& name, const std::string& why) {
  if (error_->has_value()) return;
  const std::string path = Short(PathOf(name), kNameShown);
  *error_ = ApiError{400, Short(path.empty() ? why : path + ": " + why, kErrorShown), path};
}

const RequestFields::Json* RequestFields::Take(const std::string& name) {
  known_.insert(name);
  if (!object_.is_object()) return nullptr;
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

std::optional<int64_t> RequestFields::Integer(const std::string& name, int64_t least, int64_t most) {
  const Json* value = Take(name);
  if (value == nullptr) return std::nullopt;
  const bool too_large = value->is_number_unsigned() &&
                         value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (value->is_number_integer() && !too_large) {
    const auto number = value->get<int64_t>();
    if (number >= least && number <= most) return number;
  }
  const std::string range =
      most == std::numeric_limits<int64_t>::max()
          ? (least == std::numeric_limits<int64_t>::min() ? "a whole number of 64 bits"
                                                          : "a whole number from " + std::to_string(least))
          : "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
  Refuse(name, range + " is expected, found " + Shown(*value));
  return std::nullopt;
}

std::optional<double> RequestFields::Number(const std::string& name, double least, double most) {
  const Json* value = Take(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) {
    const auto number = value->get<double>();
    if (number >= least && number <= most) return number;
  }
  Refuse(name,
         "a number from " + Plain(least) + " to " + Plain(most) + " is expected, found " + Shown(*value));
  return std::nullopt;
}

bool RequestFields::Flag(const std::string& name, bool otherwise) {
  const Json* value = Take(name);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) Refuse(name, "true or false is expected, found " + Shown(*value));
  return value->is_boolean() ? value->get<bool>() : otherwise;
}

std::string RequestFields::Text(const std::string& name) {
  const Json* value = Take(name);
  if (value == nullptr) return "";
  if (!value->is_string()) Refuse(name, "a text is expected, found " + Shown(*value));
  return value->is_string() ? value->get<std::string>() : "";
}

std::vector<int32_t> RequestFields::Ids(const std::string& name, int64_t below) {
  std::vector<int32_t> ids;
  const Json* value = Take(name);
  if (value == nullptr) return ids;
  if (const auto wrong = TakeIds(*value, below, &ids)) Refuse(name, *wrong);
  return ids;
}

void RequestFields::Only(const std::string& name, const std::vector<Json>& values, const std::string& why) {
  const Json* value = Take(name);
  if (value == nullptr || std::ranges::find(values, *value) != values.end()) return;
  Refuse(name, Shown(*value) + " is not to be had: " + why);
}

void RequestFields::Finish() {
  if (!ok()) return;
  for (const auto& [name, value] : object_.items()) {
    if (known_.contains(name) || value.is_null()) continue;
    const std::string near = Nearest(Short(name, kNameShown), {known_.begin(), known_.end()});
    return Refuse(name, "there is no such field" + (near.empty() ? "" : "; did you mean " + near + "?"));
  }
}

}  // namespace tidepool::workers
