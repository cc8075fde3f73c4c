#pragma once
// Files of JSON values, one a line, read some MB at a time: no file is too large.

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/status.h"

namespace tidepool::observe {

// Calls `take` with the lines of the file, whole ones, many at once; false or an error of it ends the walk.
// `half`: a last line that has no end is a line, too. `from`: where it begins, the start of a line. Codes as
// of FileSystem; kDataLoss: a line of more than 1 GiB.
Status ForEachPiece(const std::string& path, bool half,
                    const std::function<StatusOr<bool>(const std::string& lines)>& take, int64_t from = 0);

// As ForEachPiece, with each line, discarded where it is no JSON, and its number from 1.
Status ForEachJsonLine(const std::string& path, bool half,
                       const std::function<StatusOr<bool>(int64_t line, const nlohmann::json& value)>& take);

}  // namespace tidepool::observe
