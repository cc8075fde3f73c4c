#pragma once
// A regular expression (PCRE2, UTF-8, "." takes line ends, too) with a bound on backtracking, so that no
// response can stall a grader. Thread-safe.

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace tidepool::tasks {

class Pattern {
 public:
  // kInvalidArgument: "bad regular expression at character N: why".
  static StatusOr<std::shared_ptr<const Pattern>> Compile(const std::string& text);
  ~Pattern();
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  // What group 1 took in the first match, or where the pattern has none the whole match. Nothing: no match,
  // or the text is no UTF-8. kResourceExhausted: it backtracked too long.
  [[nodiscard]] StatusOr<std::optional<std::string_view>> Find(std::string_view text) const;

 private:
  struct Impl;
  explicit Pattern(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace tidepool::tasks
