#pragma once
// The fields of a request's JSON object. Each is taken by its name, with its type and range; one that nobody
// took is refused, so that nothing that a caller asked for is passed over in silence. A field with the value
// null counts as missing. Of several errors the first is kept. Not thread-safe; borrows the object.

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "workers/serve/api_error.h"

namespace tidepool::workers {

class RequestFields {
 public:
  using Json = nlohmann::ordered_json;
  // Of the request as a whole.
  RequestFields(const Json& object, std::optional<ApiError>* error) : RequestFields(object, "", error) {}
  // Of an object within it: "messages[2]". The error is one for all of them.
  [[nodiscard]] RequestFields Within(const Json& object, const std::string& name) const {
    return {object, PathOf(name), error_};
  }

  // Null: it is missing.
  const Json* Take(const std::string& name);
  std::optional<int64_t> Integer(const std::string& name, int64_t least = std::numeric_limits<int64_t>::min(),
                                 int64_t most = std::numeric_limits<int64_t>::max());
  std::optional<double> Number(const std::string& name, double least, double most);
  bool Flag(const std::string& name, bool otherwise = false);
  std::string Text(const std::string& name);  // "" where it is missing
  // Ids of a list, each in [0, below).
  std::vector<int32_t> Ids(const std::string& name, int64_t below);

  // Known fields that can have these values alone, which change nothing; `why` no other.
  void Only(const std::string& name, const std::vector<Json>& values, const std::string& why);
  // Known fields that change nothing about an answer.
  void PassOver(const std::string& name) { (void)Take(name); }

  void Refuse(const std::string& name, const std::string& why);
  // The fields that were not taken are unknown.
  void Finish();
  [[nodiscard]] bool ok() const { return !error_->has_value(); }
  [[nodiscard]] std::string PathOf(const std::string& name) const;

 private:
  RequestFields(const Json& object, std::string where, std::optional<ApiError>* error);

  const Json& object_;
  const std::string where_;
  std::optional<ApiError>* const error_;
  std::set<std::string> known_;
};

// The ids that a JSON list has, or why it is none: "token ids below 49152 are expected, found -1".
std::optional<std::string> TakeIds(const nlohmann::ordered_json& list, int64_t below,
                                   std::vector<int32_t>* ids);

}  // namespace tidepool::workers
