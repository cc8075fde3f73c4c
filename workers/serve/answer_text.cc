#include "workers/serve/answer_text.h"

#include <algorithm>
#include <utility>

#include "core/text/held_suffix.h"

namespace tidepool::workers {

AnswerText::AnswerText(const text::Tokenizer& tokenizer, std::vector<std::string> stop)
    : detokenizer_(tokenizer, /*skip_special=*/true), stop_(std::move(stop)) {}

std::string AnswerText::Push(std::span<const int32_t> ids) {
  for (const int32_t id : ids) held_ += detokenizer_.Push(id);
  return Release(false);
}

std::string AnswerText::Finish() {
  held_ += detokenizer_.Flush();
  return Release(true);
}

std::string AnswerText::Release(bool all) {
  if (!stopped_by_.empty()) {
    held_.clear();
    return {};
  }
  // The one that ends first, as the engine has it; of those the one that begins first.
  size_t begin = std::string::npos, end = std::string::npos;
  for (const std::string& stop : stop_) {
    const size_t at = held_.find(stop);
    if (at == std::string::npos || at + stop.size() > end || (at + stop.size() == end && at >= begin))
      continue;
    begin = at;
    end = at + stop.size();
    stopped_by_ = stop;
  }
  size_t keep = begin == std::string::npos ? 0 : held_.size() - begin;
  if (begin == std::string::npos && !all) {
    for (const std::string& stop : stop_) keep = std::max(keep, text::HeldSuffix(held_, stop));
  }
  std::string text = held_.substr(0, held_.size() - keep);
  held_.erase(0, text.size());
  if (!stopped_by_.empty()) held_.clear();
  return text;
}

}  // namespace tidepool::workers
