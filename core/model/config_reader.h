#pragma once
// Typed, checked access to one JSON file of a model folder. Inside of core/model.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace tidepool::model {

// The object in a file of at most 16 MiB. kNotFound, kInvalidArgument (not JSON, no object, nested too deep).
StatusOr<nlohmann::json> ReadJsonObject(const std::string& path);

// Values of one object; a key that is absent or null has the default. kInvalidArgument: another type.
class ConfigReader {
 public:
  using Json = nlohmann::json;
  // `json` outlives the reader.
  ConfigReader(std::string path, const Json& json) : path_(std::move(path)), json_(json) {}

  // Null if the key is absent or null.
  [[nodiscard]] const Json* Find(const char* key) const;
  [[nodiscard]] bool Has(const char* key) const { return json_.contains(key); }  // be it null
  Status Int(const char* key, int64_t fallback, int64_t& out) const;
  Status Number(const char* key, double fallback, double& out) const;
  Status Bool(const char* key, bool fallback, bool& out) const;
  Status Text(const char* key, const std::string& fallback, std::string& out) const;
  // An id, or a list of ids; -1 (some old folders) and null are none.
  Status TokenIds(const char* key, std::vector<int32_t>& out) const;
  // `out` stays where there is none.
  Status FirstTokenId(const char* key, int32_t& out) const;

  [[nodiscard]] Status Wrong(const std::string& key, const std::string& expected, const Json& found) const;
  // kUnimplemented: "PATH: WHAT is not implemented".
  [[nodiscard]] Status Missing(const std::string& what) const;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  const Json& json_;
};

}  // namespace tidepool::model
