#pragma once
// Structs with listed fields (core/base/fields.h) as JSON objects, a key a field: what writes a file and what
// reads it are visitors of the one list. Lists are arrays, maps by name are objects, and an empty optional
// has no key. A number that is not finite becomes null when the JSON is made text.

#include <cmath>
#include <concepts>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/fields.h"
#include "core/base/words.h"

namespace tidepool {

template <typename T>
concept JsonPlain = std::is_arithmetic_v<T> || std::same_as<T, std::string>;
template <typename T>
concept JsonMap = requires {
  typename T::mapped_type;
};
template <typename T>
concept JsonList = requires(T& x) {
  x.emplace_back();
};
template <typename T>
concept JsonPairs = std::same_as<T, std::vector<std::pair<std::string, double>>>;
template <typename T>
concept JsonId = std::same_as<decltype(T::value), int64_t>;
template <typename T>
concept JsonOptional = std::same_as<T, std::optional<typename T::value_type>>;

// "0x000000000000feed"
inline std::string HexWord(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof(text), "0x%016llx", static_cast<unsigned long long>(value));
  return text;
}

template <typename Json, typename T>
Json JsonOf(const T& x) {
  if constexpr (std::same_as<T, uint64_t>) {
    return HexWord(x);
  } else if constexpr (JsonPlain<T>) {
    return x;
  } else if constexpr (std::is_enum_v<T>) {
    return Name(x);
  } else if constexpr (JsonId<T>) {
    return x.value;
  } else if constexpr (JsonMap<T> || JsonPairs<T>) {
    Json object = Json::object();
    for (const auto& [name, item] : x) object[name] = JsonOf<Json>(item);
    return object;
  } else if constexpr (JsonList<T>) {
    Json list = Json::array();
    for (const auto& item : x) list.push_back(JsonOf<Json>(item));
    return list;
  } else {
    Json object = Json::object();
    VisitFields(x, [&]<typename Field>(const char* name, const Field& field) {
      if constexpr (JsonOptional<Field>) {
        if (field) object[name] = JsonOf<Json>(*field);
      } else {
        object[name] = JsonOf<Json>(field);
      }
    });
    return object;
  }
}

// Into `x`, which stays as it is where the JSON is of another type (false is returned then). So does a field
// that has no key. An item of another type is left out of a map, and is a new item of a list.
template <typename Json, typename T>
bool FromJson(const Json& json, T& x) {
  if constexpr (JsonPlain<T>) {
    const bool fits = std::same_as<T, bool>     ? json.is_boolean()
                      : std::is_arithmetic_v<T> ? json.is_number()
                                                : json.is_string();
    if constexpr (std::integral<T> && !std::same_as<T, bool>) {
      // A whole number that some program wrote as 3.0; any other is none.
      constexpr double kExact = 0x1p53;
      if (json.is_number_float() && !(std::abs(json.template get<double>()) <= kExact)) return false;
    }
    if (fits) x = json.template get<T>();
    return fits;
  } else if constexpr (JsonOptional<T>) {
    typename T::value_type value{};
    if (!FromJson(json, value)) return false;
    x = std::move(value);
  } else if constexpr (JsonMap<T>) {
    if (!json.is_object()) return false;
    x.clear();
    for (const auto& [name, item] : json.items()) {
      if (typename T::mapped_type value{}; FromJson(item, value)) x[name] = std::move(value);
    }
  } else if constexpr (JsonList<T>) {
    if (!json.is_array()) return false;
    x.clear();
    for (const Json& item : json) FromJson(item, x.emplace_back());
  } else {
    if (!json.is_object()) return false;
    VisitFields(x, [&](const char* name, auto& field) {
      if (const auto at = json.find(name); at != json.end()) FromJson(*at, field);
    });
  }
  return true;
}

}  // namespace tidepool
