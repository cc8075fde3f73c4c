#pragma once
// What the forms of requests have in common (openai_request.h). Each function refuses through `fields`.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json_text.h"
#include "core/base/status.h"
#include "workers/serve/openai_request.h"
#include "workers/serve/request_fields.h"

namespace tidepool::workers {

inline constexpr int64_t kChoicesMost = 128;      // of one request
inline constexpr int64_t kCompletionTokens = 16;  // where max_tokens is missing, as OpenAI and vLLM have it
inline constexpr int64_t kStopsMost = 64;
inline constexpr double kTemperatureMost = 100;
// Of a server of requests. A conversation is text: what a model of a million positions reads has a few
// megabytes.
inline constexpr int64_t kBodyBytesMost = int64_t{8} << 20, kBodiesBytesMost = 16 * kBodyBytesMost;
inline constexpr int64_t kConnectionsMost = 1024;
inline constexpr int64_t kKeysMost = 256;  // of one object: 8 MiB of such objects are read in a second or so

// The object that the text is, which a caller wrote.
inline StatusOr<nlohmann::ordered_json> ReadObject(std::string_view text, const std::string& where) {
  if (const std::string problem = JsonTextProblem(text); !problem.empty())
    return InvalidArgument(where + ": " + problem);
  if (!JsonKeysWithin(text, kKeysMost))
    return InvalidArgument(where + ": an object may have " + std::to_string(kKeysMost) + " keys");
  return ParseJsonObject<nlohmann::ordered_json>(text, where);
}

// "messages", 2 -> "messages[2]"
inline std::string At(const std::string& list, size_t i) { return list + "[" + std::to_string(i) + "]"; }

// Stop strings: a text or a list of them.
void TakeStop(RequestFields& fields, const std::string& name, const ServedModel& model,
              down::ChunkSampling* sampling);
// temperature, top_p, and from what is missing the rest of a turn with one answer.
void TakeDrawing(RequestFields& fields, const ServedModel& model, Turn* turn);
// The model is this one, or is not named.
void TakeModelName(RequestFields& fields, const ServedModel& model);

// max_tokens, which `max_name` has said; nullopt: `otherwise`, or with 0 all that there is room for behind
// the prompts, which are at `name`.
void CheckRoom(RequestFields& fields, const std::string& name, const std::string& max_name,
               const ServedModel& model, std::optional<int64_t> max_tokens, int64_t otherwise, Turn* turn);
StatusOr<std::vector<int32_t>> EncodedPrompt(const ServedModel& model, const std::string& text, bool special);

// A conversation of so many messages at `name` may be worth reading. False: it is refused.
bool MayAskTemplate(RequestFields& fields, const std::string& name, const ServedModel& model,
                    size_t messages);
// The conversation becomes the turn's prompt.
void AskTemplate(RequestFields& fields, const std::string& name, const std::string& max_name,
                 const ServedModel& model, const nlohmann::ordered_json& messages, text::ChatOptions options,
                 std::optional<int64_t> max_tokens, AskedTurn* asked);
// The most tokens of an answer; nullopt: it is not said. Of a run's endpoint always: its turns have theirs.
std::optional<int64_t> TakeMaxTokens(RequestFields& fields, const std::string& name,
                                     const ServedModel& model);

// Other forms than OpenAI's chat, for ReadRequest.
void ReadResponses(RequestFields& fields, const ServedModel& model, AskedTurn* asked);
void ReadMessages(RequestFields& fields, const ServedModel& model, AskedTurn* asked);

}  // namespace tidepool::workers
