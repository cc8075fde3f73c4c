#pragma once
// The text of an answer from its tokens, as they come: no character is cut, and nothing of a stop string is
// shown, nor what comes behind it. Special tokens are left out. Not thread-safe; the tokenizer outlives it.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/text/tokenizer.h"

namespace tidepool::workers {

class AnswerText {
 public:
  AnswerText(const text::Tokenizer& tokenizer, std::vector<std::string> stop);
  // What may be shown by now and was not yet.
  std::string Push(std::span<const int32_t> ids);
  std::string Finish();  // nothing more comes
  // The stop string that was met; empty: none was.
  [[nodiscard]] const std::string& stopped_by() const { return stopped_by_; }

 private:
  std::string Release(bool all);

  text::Detokenizer detokenizer_;
  const std::vector<std::string> stop_;
  std::string held_;
  std::string stopped_by_;
};

}  // namespace tidepool::workers
