#pragma once
// Finds stop strings in the bytes of generated tokens, across token borders.
// Value type; thread-compatible.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace tidepool::engine {

// The bytes that a token adds to the text; special tokens usually add none.
using TokenBytes = std::function<std::string(int32_t id)>;

class StopStrings {
 public:
  StopStrings() = default;
  // requires non-empty strings; `bytes` is needed if there are any.
  explicit StopStrings(std::vector<std::string> strings);

  [[nodiscard]] bool empty() const { return strings_.empty(); }
  // Takes up tokens of earlier chunks, in which nothing was found.
  void Resume(std::span<const int32_t> generated, const TokenBytes& bytes);
  // Adds one token; true if a stop string ends within its bytes.
  bool Append(int32_t id, const TokenBytes& bytes);

 private:
  std::vector<std::string> strings_;
  size_t longest_ = 0;
  std::string tail_;  // the last longest_ - 1 bytes
};

}  // namespace tidepool::engine
