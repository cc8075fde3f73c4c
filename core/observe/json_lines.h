#pragma once
// Files of JSON values, one a line.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/base/status.h"

namespace tidepool::observe {

// Calls `row` with each line of `text`, discarded where it is no JSON, and its number from 1; an error of it
// ends the walk. `half`: a last line that has no end is a row, too.
template <typename Row>
Status ForEachJsonLine(std::string_view text, bool half, const Row& row) {
  for (int64_t line = 1; !text.empty(); ++line) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos && !half) break;
    TP_RETURN_IF_ERROR(
        row(line, nlohmann::json::parse(text.substr(0, end), nullptr, /*allow_exceptions=*/false)));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return OkStatus();
}

}  // namespace tidepool::observe
