#include "workers/serve/answer_writer.h"

#include "workers/serve/block_answer.h"
#include "workers/serve/openai_answer.h"

namespace tidepool::workers {

std::unique_ptr<AnswerWriter> AnswerWriter::Make(const ServedModel& model, const AskedTurn& asked,
                                                 const std::string& id, int64_t unix_s) {
  switch (asked.style.form) {
    case AnswerForm::kResponses:
      return std::make_unique<ResponsesAnswer>(model, asked, id, unix_s);
    case AnswerForm::kMessages:
      return std::make_unique<MessagesAnswer>(model, asked, id, unix_s);
    default:
      return std::make_unique<OpenAiAnswer>(model, asked, id, unix_s);
  }
}

}  // namespace tidepool::workers
