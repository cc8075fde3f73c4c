#include "core/engine/stop_strings.h"

#include <algorithm>
#include <utility>

namespace tidepool::engine {

StopStrings::StopStrings(std::vector<std::string> strings) : strings_(std::move(strings)) {
  for (const std::string& s : strings_) longest_ = std::max(longest_, s.size());
}

void StopStrings::Resume(std::span<const int32_t> generated, const TokenBytes& bytes) {
  tail_.clear();
  if (empty()) return;
  size_t first = generated.size();
  for (size_t have = 0; first > 0 && have + 1 < longest_;) have += bytes(generated[--first]).size();
  for (; first < generated.size(); ++first) tail_ += bytes(generated[first]);
  if (tail_.size() >= longest_) tail_.erase(0, tail_.size() - (longest_ - 1));
}

bool StopStrings::Append(int32_t id, const TokenBytes& bytes) {
  if (empty()) return false;
  tail_ += bytes(id);
  const bool found =
      std::ranges::any_of(strings_, [&](const std::string& s) { return tail_.find(s) != std::string::npos; });
  if (tail_.size() >= longest_) tail_.erase(0, tail_.size() - (longest_ - 1));
  return found;
}

}  // namespace tidepool::engine
