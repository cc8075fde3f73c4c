#pragma once
// What a chat template writes between two turns of the model. Pure; any thread.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "core/base/status.h"
#include "core/text/chat_template.h"
#include "core/text/tokenizer.h"

namespace tidepool::workers {

// The text behind an answer of the model that follows `before`, where `after` are the messages behind that
// answer, up to where the model speaks again. The end token that closes the model's turn is left out: the
// model says it itself. What the answer was plays no part, so it is never rendered or tokenised again.
// kInvalidArgument: the template refuses the messages, or does not show a conversation turn by turn, or
// closes a turn with another token than one of `ends`.
StatusOr<std::string> TextBehindAnswer(const text::ChatTemplate& chat, const text::Tokenizer& tokenizer,
                                       std::span<const int32_t> ends, const nlohmann::ordered_json& before,
                                       const nlohmann::ordered_json& after, text::ChatOptions options);

}  // namespace tidepool::workers
