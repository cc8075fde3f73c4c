#include "core/observe/json_lines.h"

#include <algorithm>
#include <string_view>

#include "core/base/real_file_system.h"

namespace tidepool::observe {

Status ForEachPiece(const std::string& path, bool half,
                    const std::function<StatusOr<bool>(const std::string& lines)>& take, int64_t from) {
  constexpr int64_t kPiece = 4 << 20;
  constexpr size_t kLineMax = size_t{1} << 30;
  TP_ASSIGN_OR_RETURN(const auto file, RealFileSystem().OpenForRead(path));
  std::string lines, rest;
  for (int64_t at = from;;) {
    TP_ASSIGN_OR_RETURN(const std::string more, file->ReadAt(at, kPiece));
    at += static_cast<int64_t>(more.size());
    const bool end = more.empty();
    const size_t newline = more.rfind('\n');
    lines = std::move(rest);
    lines += more;
    // What follows the last line's end; at the end of the file that is a line or it is left out.
    const size_t behind = newline == std::string::npos ? lines.size() : more.size() - newline - 1;
    rest = end ? "" : lines.substr(lines.size() - behind);
    if (!end || !half) lines.resize(lines.size() - behind);
    if (!lines.empty()) {
      TP_ASSIGN_OR_RETURN(const bool on, take(lines));
      if (!on) return OkStatus();
    }
    if (end) return OkStatus();
    if (rest.size() > kLineMax)
      return DataLoss(path + ": has a line of more than 1 GiB; is it the right file?");
  }
}

Status ForEachJsonLine(const std::string& path, bool half,
                       const std::function<StatusOr<bool>(int64_t line, const nlohmann::json& value)>& take) {
  int64_t line = 0;
  return ForEachPiece(path, half, [&](const std::string& lines) -> StatusOr<bool> {
    for (std::string_view left = lines; !left.empty();) {
      const size_t end = std::min(left.find('\n'), left.size());
      TP_ASSIGN_OR_RETURN(const bool on, take(++line, nlohmann::json::parse(left.substr(0, end), nullptr,
                                                                            /*allow_exceptions=*/false)));
      if (!on) return false;
      left.remove_prefix(std::min(end + 1, left.size()));
    }
    return true;
  });
}

}  // namespace tidepool::observe
