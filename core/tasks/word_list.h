#pragma once
// A small list of common English words of 3 to 10 lower-case letters, each once, sorted by length
// and then by letter. Every length has at least 40.

#include <span>
#include <string_view>

namespace tidepool::tasks {

std::span<const std::string_view> WordList();

}  // namespace tidepool::tasks
