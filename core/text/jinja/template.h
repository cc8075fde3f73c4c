#pragma once
// A compiled template and its rendering within limits.

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/text/jinja/ast.h"

namespace tidepool::text::jinja {

struct Limits {
  int64_t operations = 50'000'000;          // evaluated nodes and copied 64-byte blocks; some seconds
  int64_t heap_bytes = int64_t{512} << 20;  // of all values made
  int64_t output_bytes = int64_t{64} << 20;
};

struct RenderOptions {
  int64_t unix_time_s = 0;  // strftime_now, UTC
  Limits limits;
};

// Immutable; thread-safe.
class Template {
 public:
  static StatusOr<std::unique_ptr<Template>> Compile(std::string_view source);
  // `variables`: an object. kInvalidArgument: raise_exception, or an error in the template (with its
  // line); kResourceExhausted: a limit.
  [[nodiscard]] StatusOr<std::string> Render(const nlohmann::ordered_json& variables,
                                             const RenderOptions& options) const;

 private:
  Template() = default;
  Block block_;
};

}  // namespace tidepool::text::jinja
