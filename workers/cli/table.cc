#include "workers/cli/table.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>

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

std::string Formatted(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

}  // namespace tidepool::workers
