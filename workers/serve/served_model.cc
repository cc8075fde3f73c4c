#include "workers/serve/served_model.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/model/hugging_face.h"

namespace tidepool::workers {

StatusOr<std::unique_ptr<ServedModel>> ServedModel::Load(const std::string& dir, std::string name,
                                                         int64_t kv_tokens) {
  auto served = std::make_unique<ServedModel>();
  served->name = std::move(name);
  TP_ASSIGN_OR_RETURN(const model::ModelSpec spec, model::ReadSpec(dir));
  served->vocab_size = spec.vocab_size;
  served->max_tokens = std::min(spec.max_position, kv_tokens);
  TP_ASSIGN_OR_RETURN(served->tokenizer, text::Tokenizer::Load(dir));
  auto chat = text::ChatTemplate::Load(dir);
  if (chat.ok()) {
    served->template_text = *std::move(chat);
    served->tools = text::ToolFormatOf(*served->template_text);
  } else if (chat.status().code() != StatusCode::kNotFound) {
    return chat.status();
  }
  served->created_unix_s =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  return served;
}

}  // namespace tidepool::workers
