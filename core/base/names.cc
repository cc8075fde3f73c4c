#include "core/base/names.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <numeric>

namespace tidepool {

std::string Nearest(std::string_view word, const std::vector<std::string>& candidates) {
  const auto distance = [](std::string_view a, std::string_view b) {
    std::vector<int64_t> row(b.size() + 1);  // Levenshtein, one row at a time
    std::iota(row.begin(), row.end(), int64_t{0});
    for (size_t i = 1; i <= a.size(); ++i) {
      int64_t diagonal = row[0];
      row[0] = static_cast<int64_t>(i);
      for (size_t j = 1; j <= b.size(); ++j) {
        const int64_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
      }
    }
    return row.back();
  };
  if (word.empty() || word.size() > 100) return {};
  const auto lower = [](std::string_view text) {
    std::string out(text);
    for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return out;
  };
  const std::string asked = lower(word);
  std::string best;
  // A third of the letters may be wrong, of 4 or 5 letters two; beyond that it was probably something else.
  int64_t best_distance =
      std::max<int64_t>(word.size() < 4 ? 1 : 2, static_cast<int64_t>(word.size()) / 3) + 1;
  for (const std::string& candidate : candidates) {
    const int64_t d = distance(asked, lower(candidate));
    if (d < best_distance) {
      best_distance = d;
      best = candidate;
    }
  }
  if (!best.empty() || word.size() < 2) return best;
  // An abbreviation, "lr" of learning_rate: its letters in order, the first one first.
  for (const std::string& candidate : candidates) {
    const std::string name = lower(candidate);
    size_t found = 0;
    for (const char c : name) found += found < asked.size() && c == asked[found] ? 1 : 0;
    if (name.empty() || name.front() != asked.front() || found < asked.size()) continue;
    if (best.empty() || candidate.size() < best.size()) best = candidate;
  }
  return best;
}

std::string DidYouMean(std::string_view word, const std::vector<std::string>& names) {
  const std::string near = Nearest(word, names);
  return near.empty() ? "there are " + Listed(names) : "did you mean '" + near + "'?";
}

bool LooksLikeHubName(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == 0 || slash == std::string_view::npos || slash + 1 == text.size()) return false;
  const std::string_view name = text.substr(slash + 1);
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_';
  };
  if (!plain(text.front())) return false;
  if (!std::ranges::all_of(name, [&](char c) { return plain(c) || c == '.'; })) return false;
  // What follows the last point of a file's name is letters alone; names on a hub have versions
  // (Qwen2.5-0.5B).
  const size_t point = name.rfind('.');
  return point == std::string_view::npos || !std::ranges::all_of(name.substr(point + 1), [](char c) {
           return std::isalpha(static_cast<unsigned char>(c)) != 0;
         });
}

}  // namespace tidepool
