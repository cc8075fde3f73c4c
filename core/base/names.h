#pragma once
// Names that people choose from and mistype.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tidepool {

// "a, b, c", of `name` of each item: a member, or a function of it.
template <typename Items, typename Name = std::identity>
std::string Listed(const Items& items, Name name = {}, std::string_view between = ", ") {
  std::string list;
  bool first = true;
  for (const auto& item : items) {
    if (!first) list += between;
    list += std::invoke(name, item);
    first = false;
  }
  return list;
}

// Nearest of `candidates` to `word` by edit distance, whatever the case, else the shortest that it
// abbreviates ("lr" of learning_rate); empty if none is close enough to be meant.
std::string Nearest(std::string_view word, const std::vector<std::string>& candidates);
// For a word that is not among them: "did you mean 'b'?" or "there are a, b, c".
std::string DidYouMean(std::string_view word, const std::vector<std::string>& names);

// "org/name", as models and data sets are called on a hub, and no path of a file ("data/rows.jsonl").
bool LooksLikeHubName(std::string_view text);

}  // namespace tidepool
