#include "core/tasks/row_shapes.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/json_text.h"
#include "core/base/names.h"
#include "core/base/utf8.h"

namespace tidepool::tasks {
namespace {

using nlohmann::json;

constexpr const char* kTaughtShapes =
    "; a row of sft has messages, prompt and answer, prompt and completion, or text";
constexpr const char* kPairShapes =
    "; a row of pairs has prompt, chosen and rejected, or chosen and rejected that begin with the same turns "
    "(each a text, or a list of {role, content})";

constexpr const char* kOfShareGpt =
    ", as in ShareGPT; write role (human is user, gpt is assistant) and content in their place";

// Shapes of known data sets that are told what to become, because more than one thing could be meant.
struct KnownShape {
  std::vector<const char*> fields;  // that the row has
  const char *rl, *sft, *pair;      // what to write for each kind of row; null: no word on it
};
const KnownShape kKnown[] = {
    {{"question", "answer"},
     "as in GSM8K; write the question as prompt, and as answer what a reward compares with (there, what "
     "follows ####)",
     "as in GSM8K; write the question as prompt",
     nullptr},
    {{"instruction", "output"},
     "as in Alpaca; write the instruction, with the input below it, as prompt, and the output as answer",
     "as in Alpaca; write the instruction, with the input below it, as prompt, and the output as answer",
     nullptr},
    {{"conversations"},
     "as in ShareGPT; write the turns up to where the model is to answer as prompt: [{role, content}, ...], "
     "human is user and gpt is assistant",
     "as in ShareGPT; write messages: [{role, content}, ...], human is user and gpt is assistant",
     "as in ShareGPT; write them as prompt: [{role, content}, ...], human is user and gpt is assistant"},
    {{"messages"},
     "which sft learns; of rl, prompt: [{role, content}, ...] has the turns up to where the model is to "
     "answer",
     nullptr,
     "which sft learns; of a pair, write their prompt, and its two answers as chosen and rejected"},
    {{"chosen", "rejected"},
     "which dpo and reward_model learn; rl has no answers to learn from",
     "which dpo and reward_model learn; of sft, write the chosen one as answer",
     nullptr},
};

std::string AsText(const json& value) {
  return value.is_string() ? value.get<std::string>()
                           : value.dump(-1, ' ', false, json::error_handler_t::replace);
}

StatusOr<std::vector<Message>> ReadMessages(const json& list, const std::string& name) {
  if (!list.is_array() || list.empty()) return InvalidArgument(name + " is no list of {role, content}");
  std::vector<Message> out;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = name + "[" + std::to_string(i) + "]";
    const json& item = list[i];
    if (item.is_object() && !item.contains("role") && item.contains("from"))
      return InvalidArgument(where + " has from and value" + kOfShareGpt);
    if (!item.is_object() || !item.contains("role") || !item["role"].is_string())
      return InvalidArgument(where + " has no role");
    if (!item.contains("content") || !item["content"].is_string()) {
      return InvalidArgument(where + ".content is no text; only text messages can be read");
    }
    Message message{item["role"].get<std::string>(), item["content"].get<std::string>()};
    if (message.role != "system" && message.role != "user" && message.role != "assistant" &&
        message.role != "tool") {
      return InvalidArgument(where + ".role is '" + message.role +
                             "'; expected system, user, assistant or tool");
    }
    out.push_back(std::move(message));
  }
  return out;
}

bool HasAssistant(std::span<const Message> messages) {
  return std::ranges::any_of(messages, [](const Message& m) { return m.role == "assistant"; });
}

std::string LastUserText(const std::vector<Message>& messages) {
  const auto it =
      std::find_if(messages.rbegin(), messages.rend(), [](const Message& m) { return m.role == "user"; });
  return it == messages.rend() ? messages.back().content : it->content;
}

// Reads one row; what it has looked at is not one of the further fields.
class Reader {
 public:
  Reader(const json& row, RowKind kind) : row_(row), kind_(kind) {}

  StatusOr<Question> Read() {
    TP_RETURN_IF_ERROR(kind_ == RowKind::kRl ? Asked() : kind_ == RowKind::kSft ? Taught() : Pair());
    for (const auto& [key, value] : row_.items()) {
      if (!read_.contains(key)) q_.fields[key] = AsText(value);
    }
    return std::move(q_);
  }

 private:
  // Null where the row has no such field, or null in it.
  const json* Find(const char* name) {
    const auto it = row_.find(name);
    return it == row_.end() || it->is_null() ? nullptr : &*it;
  }
  const json* Take(const char* name) {
    read_.insert(name);
    return Find(name);
  }

  // A row without the field `name`, that looks like something else perhaps.
  Status Lacks(const char* name, const char* shapes) {
    const auto has = [&](const char* field) { return Find(field) != nullptr; };
    for (const KnownShape& known : kKnown) {
      const char* advice = kind_ == RowKind::kRl ? known.rl : kind_ == RowKind::kSft ? known.sft : known.pair;
      if (advice == nullptr || !std::ranges::all_of(known.fields, has)) continue;
      return InvalidArgument(std::string("no ") + name + "; found " + Listed(known.fields, {}, " and ") +
                             ", " + advice);
    }
    std::vector<std::string> fields;
    for (const auto& [key, value] : row_.items()) fields.push_back(key);
    if (fields.size() > 8) fields.resize(8);
    return InvalidArgument(std::string("no ") + name + (fields.empty() ? "" : "; found " + Listed(fields)) +
                           shapes);
  }

  Status Prompt(const char* shapes) {
    const json* prompt = Take("prompt");
    if (prompt == nullptr) return Lacks("prompt", shapes);
    if (prompt->is_string()) {
      q_.prompt = prompt->get<std::string>();
      return q_.prompt.empty() ? InvalidArgument("prompt is empty") : OkStatus();
    }
    TP_ASSIGN_OR_RETURN(q_.messages, ReadMessages(*prompt, "prompt"));
    q_.prompt = LastUserText(q_.messages);
    return OkStatus();
  }

  Status Answer() {
    const json* answer = Take("answer");
    if (answer == nullptr) return OkStatus();
    if (answer->is_structured() || answer->is_boolean())
      return InvalidArgument("answer is neither text nor a number");
    q_.answer = AsText(*answer);
    return OkStatus();
  }

  Status Asked() {
    TP_RETURN_IF_ERROR(Prompt("; a row of rl has a prompt, and an answer where a reward needs one"));
    return Answer();
  }

  Status Taught() {
    if (Find("messages") != nullptr) {
      TP_ASSIGN_OR_RETURN(q_.messages, ReadMessages(*Take("messages"), "messages"));
      if (!HasAssistant(q_.messages))
        return InvalidArgument("messages has no assistant turn, so there is nothing to learn from");
      q_.prompt = LastUserText(q_.messages);
      q_.learned_from = 0;
      return Answer();
    }
    if (Find("prompt") == nullptr && Find("text") != nullptr) {
      const json& text = *Take("text");
      if (!text.is_string() || text.get<std::string>().empty()) return InvalidArgument("text is no text");
      q_.prompt = text.get<std::string>();
      q_.raw = true;
      return OkStatus();
    }
    TP_RETURN_IF_ERROR(Prompt(kTaughtShapes));
    TP_RETURN_IF_ERROR(Answer());
    if (!q_.answer.empty()) return OkStatus();
    const json* completion = Take("completion");
    if (completion == nullptr || (completion->is_string() && completion->get<std::string>().empty()))
      return InvalidArgument(std::string("a prompt without an answer") + kTaughtShapes);
    if (completion->is_string()) {
      q_.answer = completion->get<std::string>();
      return OkStatus();
    }
    TP_ASSIGN_OR_RETURN(const std::vector<Message> turns, ReadMessages(*completion, "completion"));
    if (!HasAssistant(turns))
      return InvalidArgument("completion has no assistant turn, so there is nothing to learn from");
    if (q_.messages.empty()) q_.messages = {{"user", q_.prompt}};
    q_.learned_from = static_cast<int64_t>(q_.messages.size());
    q_.messages.insert(q_.messages.end(), turns.begin(), turns.end());
    return OkStatus();
  }

  Status Pair() {
    const json* chosen = Take("chosen");
    const json* rejected = Take("rejected");
    for (const auto& [name, value] : {std::pair("chosen", chosen), std::pair("rejected", rejected)}) {
      if (value == nullptr) return Lacks(name, kPairShapes);
      if ((!value->is_string() && !value->is_array()) || value->empty() ||
          (value->is_string() && value->get<std::string>().empty()))
        return InvalidArgument(std::string(name) + " is neither text nor a list of {role, content}" +
                               kPairShapes);
    }
    if (chosen->is_string() != rejected->is_string())
      return InvalidArgument(
          "of chosen and rejected one is text and one a list of messages; write both alike");
    if (*chosen == *rejected)
      return InvalidArgument("chosen and rejected are the same, so there is nothing to learn from");
    return chosen->is_string() ? PairOfTexts(chosen->get<std::string>(), rejected->get<std::string>())
                               : PairOfTurns(*chosen, *rejected);
  }

  Status PairOfTexts(std::string chosen, std::string rejected) {
    if (Find("prompt") != nullptr) {
      TP_RETURN_IF_ERROR(Prompt(kPairShapes));
    } else {
      // As TRL cuts them: a space before the first character that differs belongs to the answers, and each
      // answer has a character at least.
      const auto [at, other] = std::ranges::mismatch(chosen, rejected);
      auto cut = static_cast<size_t>(at - chosen.begin());
      if (cut == std::min(chosen.size(), rejected.size())) {
        --cut;
      } else if (cut > 0 && chosen[cut - 1] == ' ') {
        --cut;
      }
      cut = CharacterStart(chosen, cut);
      if (cut == 0)
        return InvalidArgument(std::string("no prompt, and chosen and rejected begin differently") +
                               kPairShapes);
      q_.prompt = chosen.substr(0, cut);
      q_.raw = true;
      chosen.erase(0, cut);
      rejected.erase(0, cut);
    }
    q_.answer = std::move(chosen);
    q_.fields["rejected"] = std::move(rejected);
    return OkStatus();
  }

  Status PairOfTurns(const json& chosen_list, const json& rejected_list) {
    TP_ASSIGN_OR_RETURN(const std::vector<Message> chosen, ReadMessages(chosen_list, "chosen"));
    TP_ASSIGN_OR_RETURN(const std::vector<Message> rejected, ReadMessages(rejected_list, "rejected"));
    const json* prompt = Find("prompt");
    const auto alike = static_cast<size_t>(std::ranges::mismatch(chosen, rejected).in1 - chosen.begin());
    size_t shared = 0;  // turns of both that are the prompt
    if (prompt != nullptr && (alike == 0 || prompt->is_array())) {
      TP_RETURN_IF_ERROR(Prompt(kPairShapes));
    } else if (alike == 0) {
      return InvalidArgument(std::string("no prompt, and chosen and rejected begin with different turns") +
                             kPairShapes);
    } else {  // a prompt as text beside them says the same once more, and stays a further field
      shared = alike;
      q_.messages.assign(chosen.begin(), chosen.begin() + static_cast<ptrdiff_t>(shared));
      q_.prompt = LastUserText(q_.messages);
    }
    for (const auto& [name, turns, after, text] :
         {std::tuple("chosen", &chosen, &q_.chosen_turns, &q_.answer),
          std::tuple("rejected", &rejected, &q_.rejected_turns, &q_.fields["rejected"])}) {
      after->assign(turns->begin() + static_cast<ptrdiff_t>(shared), turns->end());
      if (after->empty()) return InvalidArgument(std::string(name) + " has no turn after the prompt");
      for (const Message* turn : {&after->front(), &after->back()}) {
        if (turn->role == "assistant" && !turn->content.empty()) continue;
        return InvalidArgument(
            std::string("what follows the prompt in ") + name +
            (turn == &after->front() ? " begins" : " ends") + " with " +
            (turn->content.empty() ? "an empty turn" : "a turn of the " + turn->role) +
            "; expected an answer of the assistant, or several turns that begin and end with one");
      }
      *text = after->back().content;
    }
    if (q_.chosen_turns.size() == 1 && q_.rejected_turns.size() == 1) {
      q_.chosen_turns.clear();
      q_.rejected_turns.clear();
    }
    if (q_.chosen_turns.empty() && q_.answer == q_.fields["rejected"])
      return InvalidArgument("chosen and rejected are the same, so there is nothing to learn from");
    return OkStatus();
  }

  const json& row_;
  RowKind kind_;
  Question q_;
  std::set<std::string> read_;
};

// The line around a byte, whole characters that a terminal shows.
std::string Around(std::string_view text, size_t at) {
  constexpr size_t kBefore = 24, kAfter = 16;
  const size_t from = CharacterStart(text, at - std::min(at, kBefore));
  size_t to = std::min(at + kAfter, text.size());
  while (to < text.size() && ContinuesCharacter(text[to])) ++to;
  std::string piece(text.substr(from, to - from));
  for (char& c : piece) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  }
  // Of bytes that are no UTF-8 the library makes replacement characters.
  piece = json(piece).dump(-1, ' ', false, json::error_handler_t::replace);
  piece = piece.substr(1, piece.size() - 2);
  std::string plain;  // quotes as they stand in the line
  for (size_t i = 0; i < piece.size(); ++i) {
    if (piece[i] == '\\' && i + 1 < piece.size()) ++i;
    plain += piece[i];
  }
  return (from > 0 ? "..." : "") + plain + (to < text.size() ? "..." : "");
}

// Where the parser stopped, and what it says. Columns are characters, from 1.
std::string NoJson(std::string_view text, const json::exception& e) {
  const auto* parse = dynamic_cast<const json::parse_error*>(&e);
  if (parse == nullptr || text.empty()) return "no valid JSON; each line is one object, in UTF-8";
  size_t at = CharacterStart(text, std::min(parse->byte == 0 ? 0 : parse->byte - 1, text.size() - 1));
  std::string why = e.what();  // "[...] parse error at line 1, column 5: syntax error while ... - what; ..."
  for (const char* mark : {": ", " - "}) {
    if (const size_t end = why.find(mark); end != std::string::npos)
      why.erase(0, end + std::string_view(mark).size());
  }
  // It stopped at the end of a word or text that should not be there.
  const auto in_word = [&](size_t i) {
    return std::isalnum(static_cast<unsigned char>(text[i])) != 0 || text[i] == '.' || text[i] == '-';
  };
  if (why.starts_with("unexpected string") && text[at] == '"' && at > 0) {
    do --at;
    while (at > 0 && (text[at] != '"' || text[at - 1] == '\\'));
  } else if (why.starts_with("unexpected") && !why.starts_with("unexpected end")) {
    while (at > 0 && in_word(at) && in_word(at - 1)) --at;
  }
  // What it read last is shown by the line itself.
  if (const size_t read = why.find("; last read: '"); read != std::string::npos) {
    const size_t expected = why.find("; expected ", read);
    why.erase(read, expected == std::string::npos ? std::string::npos : expected - read);
  }
  return "no valid JSON at column " + std::to_string(CharacterCount(text.substr(0, at)) + 1) + ": " + why +
         ", in `" + Around(text, at) + "`; each line is one object, in UTF-8";
}

}  // namespace

StatusOr<Question> ParseRow(std::string_view json_text, RowKind kind) {
  if (const std::string problem = JsonTextProblem(json_text); !problem.empty())
    return InvalidArgument(problem);
  json row;
  try {
    row = json::parse(json_text);
  } catch (const json::exception& e) {
    return InvalidArgument(NoJson(json_text, e));
  }
  if (!row.is_object()) return InvalidArgument(std::string("expected an object; found ") + row.type_name());
  return Reader(row, kind).Read();
}

}  // namespace tidepool::tasks
