#include "workers/cli/table.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string_view>

#include "core/base/utf8.h"

namespace tidepool::workers {
std::string TableText(const std::vector<Cells>& rows) {
  std::vector<int64_t> widths;
  for (const Cells& row : rows) {
    widths.resize(row.size());
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], CharacterCount(row[i]));
  }
  std::string text;
  for (const Cells& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += row[i];
      if (i + 1 < row.size()) text.append(static_cast<size_t>(widths[i] - CharacterCount(row[i]) + 2), ' ');
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  return text;
}

std::vector<std::string> FitTable(std::vector<Cells>& rows, size_t width,
                                  const std::vector<std::string>& least) {
  const auto fits = [&] {
    const std::string text = TableText(rows);
    for (std::string_view left = text; !left.empty(); left.remove_prefix(left.find('\n') + 1)) {
      if (CharacterCount(std::string(left.substr(0, left.find('\n')))) > static_cast<int64_t>(width))
        return false;
    }
    return true;
  };
  std::vector<std::string> gone;
  for (const std::string& name : least) {
    if (fits()) break;
    const auto at = std::ranges::find(rows.front(), name) - rows.front().begin();
    for (Cells& row : rows) row.erase(row.begin() + at);
    gone.push_back(name);
  }
  return gone;
}

std::string WithoutControls(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    const bool high = c == 0xC2U && next >= 0x80U && next < 0xA0U;  // U+0080 to U+009F
    out += (c < 0x20U && c != '\n') || c == 0x7FU || high ? '?' : text[i];
    if (high) ++i;
  }
  return out;
}

std::string Formatted(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

}  // namespace tidepool::workers
