#pragma once
// What a request is refused with, or what it failed with, as OpenAI's clients read it.

#include <nlohmann/json.hpp>
#include <string>

#include "core/base/status.h"
#include "workers/net/http_server.h"

namespace tidepool::workers {

struct ApiError {
  int status = 400;
  std::string message;
  std::string param = {};  // the field that is at fault: "stop", "messages[2].content"; empty: none is
};

inline std::string ApiErrorType(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

// {"error":{"message","type","param","code"}}
inline nlohmann::ordered_json ToJson(const ApiError& error) {
  return {{"error",
           {{"message", error.message},
            {"type", ApiErrorType(error.status)},
            {"param", error.param.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(error.param)},
            {"code", error.status}}}};
}

inline HttpResponse ToResponse(const ApiError& error) {
  HttpResponse response{
      .status = error.status,
      .type = "application/json",
      // What a caller wrote and is quoted here may be no UTF-8.
      .body = ToJson(error).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)};
  if (error.status == 429 || error.status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

// How a failure of what the request asked for is said.
inline ApiError ToApiError(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound:
      return {400, status.message()};
    case StatusCode::kResourceExhausted:
      return {429, status.message()};
    case StatusCode::kUnavailable:
    case StatusCode::kAborted:
      return {503, status.message()};
    case StatusCode::kDeadlineExceeded:
      return {504, status.message()};
    default:
      return {500, status.message()};
  }
}

}  // namespace tidepool::workers
