#include "workers/data/turn_text.h"

#include <vector>

namespace tidepool::workers {

StatusOr<std::string> TextBehindAnswer(const text::ChatTemplate& chat, const text::Tokenizer& tokenizer,
                                       std::span<const int32_t> ends, const nlohmann::ordered_json& before,
                                       const nlohmann::ordered_json& after, text::ChatOptions options) {
  // No message has it: one could name it otherwise, and be cut there.
  std::string reply = "TIDEPOOL-REPLY";
  while (after.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).find(reply) !=
         std::string::npos)
    reply += "-X";
  nlohmann::ordered_json list = before;
  list.push_back({{"role", "assistant"}, {"content", reply}});
  for (const auto& message : after) list.push_back(message);
  options.add_generation_prompt = true;
  TP_ASSIGN_OR_RETURN(const std::string rendered, chat.Render(list, options));
  const size_t said = rendered.rfind(reply);
  if (said == std::string::npos)
    return InvalidArgument(
        "the model's chat template does not show a conversation turn by turn, so an environment cannot speak "
        "after the model");
  const std::string behind = rendered.substr(said + reply.size());
  for (const int32_t end : ends) {
    const std::string text = tokenizer.Decode(std::vector<int32_t>{end}, /*skip_special=*/false);
    if (!text.empty() && behind.starts_with(text)) return behind.substr(text.size());
  }
  return InvalidArgument(
      "the model's chat template does not close the model's turns with an end token of the model, so turns "
      "cannot be told apart");
}

}  // namespace tidepool::workers
