#pragma once
// Errors that will happen: a worker dies, a file is missing, a config is wrong.
//
// The codes carry the numbers of grpc::StatusCode, so nothing is lost on the wire. Both types are
// [[nodiscard]]; pass errors up with TP_RETURN_IF_ERROR and TP_ASSIGN_OR_RETURN. A message says
// where, what was found, what was expected and what to do. Broken invariants are not errors but
// bugs: see core/base/check.h. Value types; thread-compatible.

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/check.h"

namespace tidepool {

enum class StatusCode : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

// "INVALID_ARGUMENT" and so on.
std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  [[nodiscard]] bool ok() const { return code_ == StatusCode::kOk; }
  [[nodiscard]] StatusCode code() const { return code_; }
  [[nodiscard]] const std::string& message() const { return message_; }
  // "NOT_FOUND: models/x: no config.json; ..." or "OK".
  [[nodiscard]] std::string ToString() const;
  // The same error with `where` put in front of its message ("where: message"); ok stays ok.
  [[nodiscard]] Status At(std::string_view where) const;

  friend bool operator==(const Status&, const Status&) = default;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() { return {}; }
Status InvalidArgument(std::string message);
Status NotFound(std::string message);
Status AlreadyExists(std::string message);
Status FailedPrecondition(std::string message);
Status DataLoss(std::string message);
Status Unavailable(std::string message);
Status DeadlineExceeded(std::string message);
Status ResourceExhausted(std::string message);
Status Unimplemented(std::string message);
Status Internal(std::string message);
Status Aborted(std::string message);
Status PermissionDenied(std::string message);
Status Unauthenticated(std::string message);

template <typename T>
class [[nodiscard]] StatusOr {
 public:
  StatusOr(Status status) : status_(std::move(status)) {  // NOLINT: implicit on purpose
    TP_CHECK(!status_.ok()) << "a StatusOr without a value needs an error";
  }
  StatusOr(T value) : value_(std::move(value)) {}  // NOLINT: implicit on purpose

  [[nodiscard]] bool ok() const { return value_.has_value(); }
  [[nodiscard]] const Status& status() const { return status_; }

  // requires ok()
  T& value() & { return Checked(), *value_; }
  const T& value() const& { return Checked(), *value_; }
  // By value: a reference into a temporary would dangle in `for (x : *f())`.
  T value() && { return Checked(), *std::move(value_); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void Checked() const { TP_CHECK(ok()) << status_.ToString(); }

  Status status_;
  std::optional<T> value_;
};

}  // namespace tidepool

#define TP_STATUS_CONCAT_INNER(a, b) a##b
#define TP_STATUS_CONCAT(a, b) TP_STATUS_CONCAT_INNER(a, b)

#define TP_RETURN_IF_ERROR(expr)             \
  do {                                       \
    ::tidepool::Status tp_status_ = (expr);  \
    if (!tp_status_.ok()) return tp_status_; \
  } while (false)

#define TP_ASSIGN_OR_RETURN(lhs, expr) \
  TP_ASSIGN_OR_RETURN_IMPL(TP_STATUS_CONCAT(tp_status_or_, __LINE__), lhs, expr)
#define TP_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                             \
  if (!tmp.ok()) return tmp.status();            \
  lhs = std::move(tmp).value()
