#pragma once
// The shapes that a row of a JSONL file may have, for each kind of job. They are those of TRL's data sets,
// and a few that stood here before. Where a text or a list of {role, content} may stand, both may.
//
//   rl            prompt; answer (text or number) is optional
//   sft, distill  messages              assistant turns are learned
//                 prompt + answer       as text
//                 prompt + completion   text, or a list whose assistant turns are learned
//                 text                  learned whole, without a chat template
//   dpo,          prompt + chosen + rejected
//   reward_model  chosen + rejected     what they begin with is the prompt: their common turns, or as text
//                                       their common characters (then no chat template is put around it).
//                                       What follows the prompt may be several turns; the assistant's are
//                                       learned
//
// A prompt that is a text is one user message for a chat model. Any further field of a row is kept.

#include <string_view>

#include "core/base/status.h"
#include "core/tasks/task.h"

namespace tidepool::tasks {

enum class RowKind { kRl, kSft, kPair };

// One row from a JSON text. The chosen answer of a pair is its `answer`, the other fields["rejected"].
// kInvalidArgument: "what; what to do" (no place).
StatusOr<Question> ParseRow(std::string_view json_text, RowKind kind);

}  // namespace tidepool::tasks
