#include "core/model/config_reader.h"

#include <limits>

#include "core/base/json_text.h"
#include "core/files/mapped_file.h"

namespace tidepool::model {
namespace {

using Json = nlohmann::json;

constexpr int64_t kConfigBytesMax = int64_t{16} << 20;

}  // namespace

StatusOr<Json> ReadJsonObject(const std::string& path) {
  TP_ASSIGN_OR_RETURN(const std::string text, files::ReadSmallFile(path, kConfigBytesMax));
  return ParseJsonObject<Json>(text, path);
}

const Json* ConfigReader::Find(const char* key) const {
  const auto it = json_.find(key);
  return it == json_.end() || it->is_null() ? nullptr : &*it;
}

Status ConfigReader::Int(const char* key, int64_t fallback, int64_t& out) const {
  out = fallback;
  const Json* v = Find(key);
  if (v == nullptr) return OkStatus();
  if (!v->is_number_integer()) return Wrong(key, "an integer", *v);
  if (v->is_number_unsigned() &&
      v->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return Wrong(key, "a smaller integer", *v);
  }
  out = v->get<int64_t>();
  return OkStatus();
}

Status ConfigReader::Number(const char* key, double fallback, double& out) const {
  out = fallback;
  const Json* v = Find(key);
  if (v == nullptr) return OkStatus();
  if (!v->is_number()) return Wrong(key, "a number", *v);
  out = v->get<double>();
  return OkStatus();
}

Status ConfigReader::Bool(const char* key, bool fallback, bool& out) const {
  out = fallback;
  const Json* v = Find(key);
  if (v == nullptr) return OkStatus();
  if (!v->is_boolean()) return Wrong(key, "true or false", *v);
  out = v->get<bool>();
  return OkStatus();
}

Status ConfigReader::Text(const char* key, const std::string& fallback, std::string& out) const {
  out = fallback;
  const Json* v = Find(key);
  if (v == nullptr) return OkStatus();
  if (!v->is_string()) return Wrong(key, "a string", *v);
  out = v->get<std::string>();
  return OkStatus();
}

Status ConfigReader::TokenIds(const char* key, std::vector<int32_t>& out) const {
  out.clear();
  const Json* v = Find(key);
  if (v == nullptr) return OkStatus();
  const auto add = [&](const Json& id) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 ||
        id.get<int64_t>() > std::numeric_limits<int32_t>::max())
      return false;
    out.push_back(static_cast<int32_t>(id.get<int64_t>()));
    return true;
  };
  if (v->is_array()) {
    for (const Json& id : *v) {
      if (!add(id)) return Wrong(key, "token ids", id);
    }
    return OkStatus();
  }
  if (v->is_number_integer() && v->get<int64_t>() == -1) return OkStatus();
  return add(*v) ? OkStatus() : Wrong(key, "a token id or a list of them", *v);
}

Status ConfigReader::FirstTokenId(const char* key, int32_t& out) const {
  std::vector<int32_t> ids;
  TP_RETURN_IF_ERROR(TokenIds(key, ids));
  if (!ids.empty()) out = ids.front();
  return OkStatus();
}

Status ConfigReader::Wrong(const std::string& key, const std::string& expected, const Json& found) const {
  return InvalidArgument(path_ + ": " + key + ": found " +
                         found.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 80) +
                         ", expected " + expected);
}

Status ConfigReader::Missing(const std::string& what) const {
  return Unimplemented(path_ + ": " + what + " is not implemented");
}

}  // namespace tidepool::model
