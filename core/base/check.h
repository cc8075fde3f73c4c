#pragma once
// Broken invariants: TP_CHECK prints the condition, the place and what is streamed into it, and
// ends the process. A worker that stops is an event for the scheduler; going on with wrong state
// is not. Use Status (core/base/status.h) for what will happen in practice.
//
//   TP_CHECK(row < rows) << "row " << row << " of " << rows;

#include <sstream>

namespace tidepool {

class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

// Lets `TP_CHECK(x) << y` be one expression of type void.
struct CheckVoidify {
  void operator&(std::ostream&) const {}
};

}  // namespace tidepool

#define TP_CHECK(condition) \
  (condition)               \
      ? (void)0             \
      : ::tidepool::CheckVoidify() & ::tidepool::CheckFailure(__FILE__, __LINE__, #condition).stream()
