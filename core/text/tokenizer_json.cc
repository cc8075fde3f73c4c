// Reading tokenizer.json. Everything that is not supported is refused here, by name.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/hash.h"
#include "core/base/json_text.h"
#include "core/files/mapped_file.h"
#include "core/text/byte_alphabet.h"
#include "core/text/tokenizer.h"
#include "core/text/unicode.h"

namespace tidepool::text {
namespace {

using Json = nlohmann::json;

constexpr int64_t kFileBytesMax = int64_t{256} << 20;
constexpr int64_t kIdMax = int64_t{16} << 20;  // ids index a table

const Json& Get(const Json& json, const char* key) {
  static const Json null;
  if (!json.is_object()) return null;
  const auto found = json.find(key);
  return found == json.end() ? null : *found;
}
bool Flag(const Json& json, const char* key) {
  const Json& value = Get(json, key);
  return value.is_boolean() && value.get<bool>();
}
std::string TypeOf(const Json& json) {
  const Json& type = Get(json, "type");
  return type.is_string() ? type.get<std::string>() : std::string("(no type)");
}
bool IsId(const Json& json) {
  return json.is_number_integer() && json.get<int64_t>() >= 0 && json.get<int64_t>() < kIdMax;
}

// Only decoders that turn symbols back into bytes.
Status CheckDecoder(const Json& json, const std::string& where, int depth) {
  if (json.is_null()) return OkStatus();
  const std::string type = TypeOf(json);
  if (type == "ByteLevel" || type == "Fuse") return OkStatus();
  if (type == "Sequence" && depth < 8 && Get(json, "decoders").is_array()) {
    for (const Json& part : Get(json, "decoders")) TP_RETURN_IF_ERROR(CheckDecoder(part, where, depth + 1));
    return OkStatus();
  }
  return Unimplemented(where + ": decoder " + type + "; only ByteLevel is supported");
}

}  // namespace

StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& folder) {
  const std::string path = folder + "/tokenizer.json";
  TP_ASSIGN_OR_RETURN(const std::string text, files::ReadSmallFile(path, kFileBytesMax));
  return FromJson(text, path);
}

StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(std::string_view text, const std::string& where) {
  if (const std::string problem = JsonTextProblem(text); !problem.empty())
    return InvalidArgument(where + ": " + problem);
  try {  // the JSON library's exceptions stop here
    const Json json = Json::parse(text);
    auto tokenizer = std::unique_ptr<Tokenizer>(new Tokenizer());
    TP_RETURN_IF_ERROR(tokenizer->Parse(json, where));
    tokenizer->digest_ = Hash64(text);
    return tokenizer;
  } catch (const std::exception& e) {
    return InvalidArgument(where + ": is no JSON: " + e.what());
  }
}

Status Tokenizer::Parse(const Json& json, const std::string& where) {
  if (!json.is_object()) return InvalidArgument(where + ": is no JSON object");
  TP_RETURN_IF_ERROR(ParseNormalizer(Get(json, "normalizer"), where, 0));
  TP_ASSIGN_OR_RETURN(pre_tokenizer_, PreTokenizer::FromJson(Get(json, "pre_tokenizer"), where));
  TP_RETURN_IF_ERROR(CheckDecoder(Get(json, "decoder"), where, 0));
  TP_RETURN_IF_ERROR(ParseModel(Get(json, "model"), where));
  if (!pre_tokenizer_->byte_level()) {
    return Unimplemented(where +
                         ": the pre_tokenizer has no ByteLevel; only byte-level BPE is supported, "
                         "SentencePiece-style BPE is not");
  }
  TP_RETURN_IF_ERROR(ParseAddedTokens(Get(json, "added_tokens"), where));
  return ParsePostProcessor(Get(json, "post_processor"), where, 0);
}

Status Tokenizer::ParseNormalizer(const Json& json, const std::string& where, int depth) {
  if (json.is_null()) return OkStatus();
  const std::string type = TypeOf(json);
  if (type == "NFC") {
    nfc_ = true;
    return OkStatus();
  }
  if (type == "Sequence" && depth < 8 && Get(json, "normalizers").is_array()) {
    for (const Json& part : Get(json, "normalizers"))
      TP_RETURN_IF_ERROR(ParseNormalizer(part, where, depth + 1));
    return OkStatus();
  }
  return Unimplemented(where + ": normalizer " + type + "; NFC and none are supported");
}

Status Tokenizer::ParseModel(const Json& json, const std::string& where) {
  // Files written before 2020 leave the type of a BPE model out.
  const std::string type =
      json.is_object() && !json.contains("type") && json.contains("merges") ? "BPE" : TypeOf(json);
  if (type != "BPE") return Unimplemented(where + ": model " + type + "; only byte-level BPE is supported");
  if (Flag(json, "byte_fallback")) {
    return Unimplemented(where +
                         ": model.byte_fallback is true (SentencePiece-style BPE); only byte-level BPE is "
                         "supported");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& value = Get(json, key);
    if (value.is_string() && !value.get_ref<const std::string&>().empty()) {
      return Unimplemented(where + ": model." + key + " is not empty; it is not supported");
    }
  }
  if (const Json& dropout = Get(json, "dropout"); dropout.is_number() && dropout.get<double>() != 0.0) {
    return Unimplemented(where + ": model.dropout is not 0; random merges are not supported");
  }
  const Json& vocab = Get(json, "vocab");
  const Json& merges = Get(json, "merges");
  if (!vocab.is_object() || !merges.is_array()) {
    return InvalidArgument(where + ": model has no object \"vocab\" or no array \"merges\"");
  }
  std::vector<BpeToken> bpe_tokens;
  by_text_.reserve(vocab.size() * 2);
  for (const auto& [text, id_json] : vocab.items()) {
    if (!IsId(id_json)) {
      return InvalidArgument(where + ": model.vocab gives \"" + text + "\" no id from 0 to " +
                             std::to_string(kIdMax));
    }
    const auto id = id_json.get<int32_t>();
    if (static_cast<size_t>(id) >= tokens_.size()) tokens_.resize(static_cast<size_t>(id) + 1);
    Token& token = tokens_[static_cast<size_t>(id)];
    if (token.exists) {
      return InvalidArgument(where + ": model.vocab gives the id " + std::to_string(id) +
                             " to two tokens, one is \"" + text + "\"");
    }
    token.exists = true;
    by_text_.emplace(text, id);
    // A token with characters outside the byte alphabet cannot come from merging; it decodes as it stands.
    if (std::optional<std::string> bytes = BytesOfSymbols(text)) {
      token.bytes = *bytes;
      bpe_tokens.push_back({std::move(*bytes), id});
    } else {
      token.bytes = text;
    }
  }
  model_tokens_ = static_cast<int64_t>(vocab.size());

  std::vector<BpeMerge> bpe_merges;
  bpe_merges.reserve(merges.size());
  for (const Json& merge : merges) {
    const auto fail = [&](const char* what) {
      return InvalidArgument(where + ": model.merges[" + std::to_string(bpe_merges.size()) + "] " + what);
    };
    std::string left;
    std::string right;
    if (merge.is_string()) {  // "a b"
      const auto& text = merge.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
        return fail("is not two tokens with a space between them");
      }
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else {
      return fail("is neither a string nor a pair of strings");
    }
    const auto a = by_text_.find(left);
    const auto b = by_text_.find(right);
    const auto both = by_text_.find(left + right);
    if (a == by_text_.end() || b == by_text_.end() || both == by_text_.end()) {
      return fail("names a token that is not in the vocabulary, or its merged form is not");
    }
    bpe_merges.push_back({a->second, b->second, both->second});
  }

  BpeOptions options;
  options.ignore_merges = Flag(json, "ignore_merges");
  options.fuse_unknown = Flag(json, "fuse_unk");
  if (const Json& unknown = Get(json, "unk_token"); unknown.is_string()) {
    const auto found = by_text_.find(unknown.get_ref<const std::string&>());
    if (found != by_text_.end()) options.unknown_id = found->second;
  }
  bpe_ = Bpe::Create(std::move(bpe_tokens), bpe_merges, options);
  return OkStatus();
}

Status Tokenizer::ParseAddedTokens(const Json& json, const std::string& where) {
  if (json.is_null()) return OkStatus();
  if (!json.is_array()) return InvalidArgument(where + ": added_tokens is no array");
  std::vector<AddedToken> raw;
  std::vector<AddedToken> normalized;
  int64_t fresh = 0;
  for (const Json& entry : json) {
    const Json& content = Get(entry, "content");
    const Json& id = Get(entry, "id");
    if (!content.is_string() || !IsId(id)) {
      return InvalidArgument(where + ": added_tokens[" + std::to_string(added_.size()) +
                             "] has no content or no id from 0 to " + std::to_string(kIdMax));
    }
    AddedToken token;
    token.content = content.get<std::string>();
    token.id = id.get<int32_t>();
    token.single_word = Flag(entry, "single_word");
    token.lstrip = Flag(entry, "lstrip");
    token.rstrip = Flag(entry, "rstrip");
    token.normalized = Flag(entry, "normalized");
    token.special = Flag(entry, "special");
    if (token.content.empty()) continue;

    // As the reference library: a token of the vocabulary, or one that was added before, keeps its id; others
    // get the ids after the vocabulary, in order, whatever the file says. (They agree in files that the
    // library wrote.)
    const auto known = by_text_.find(token.content);
    token.id = known != by_text_.end() ? known->second : static_cast<int32_t>(model_tokens_ + fresh++);
    if (static_cast<size_t>(token.id) >= tokens_.size()) tokens_.resize(static_cast<size_t>(token.id) + 1);
    Token& slot = tokens_[static_cast<size_t>(token.id)];
    if (slot.exists && known == by_text_.end()) {
      return InvalidArgument(where + ": the added token \"" + token.content + "\" has the id " +
                             std::to_string(token.id) + " of another token");
    }
    if (!slot.exists) {
      slot.exists = true;
      // The reference library knows a normalized token by its normalized text from then on.
      const std::string known_as = token.normalized && nfc_ ? Nfc(token.content) : token.content;
      slot.bytes = BytesOfSymbols(known_as).value_or(known_as);
      by_text_.emplace(token.content, token.id);
    }
    slot.special = token.special;
    added_.push_back(token);
    if (token.normalized && nfc_) token.content = Nfc(token.content);
    (token.normalized ? normalized : raw).push_back(std::move(token));
  }
  raw_finder_ = AddedTokenFinder(std::move(raw));
  normalized_finder_ = AddedTokenFinder(std::move(normalized));
  return OkStatus();
}

Status Tokenizer::ParsePostProcessor(const Json& json, const std::string& where, int depth) {
  if (json.is_null()) return OkStatus();
  const std::string type = TypeOf(json);
  if (type == "ByteLevel") return OkStatus();  // only moves offsets
  if (type == "Sequence" && depth < 8 && Get(json, "processors").is_array()) {
    for (const Json& part : Get(json, "processors"))
      TP_RETURN_IF_ERROR(ParsePostProcessor(part, where, depth + 1));
    return OkStatus();
  }
  std::vector<int32_t> before;
  std::vector<int32_t> after;
  if (type == "TemplateProcessing") {
    bool seen_text = false;
    for (const Json& part : Get(json, "single")) {
      if (!Get(part, "Sequence").is_null()) {
        seen_text = true;
        continue;
      }
      const Json& name = Get(Get(part, "SpecialToken"), "id");
      if (!name.is_string()) {
        return InvalidArgument(where +
                               ": post_processor TemplateProcessing has a part that is neither Sequence nor "
                               "SpecialToken");
      }
      const Json& ids =
          Get(Get(Get(json, "special_tokens"), name.get_ref<const std::string&>().c_str()), "ids");
      if (!ids.is_array() || !std::all_of(ids.begin(), ids.end(), IsId)) {
        return InvalidArgument(where + ": post_processor TemplateProcessing does not give the ids of \"" +
                               name.get<std::string>() + "\"");
      }
      for (const Json& id : ids) (seen_text ? after : before).push_back(id.get<int32_t>());
    }
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    for (const auto& [key, list] : {std::pair{"cls", &before}, std::pair{"sep", &after}}) {
      const Json& pair = Get(json, key);
      if (!pair.is_array() || pair.size() != 2 || !IsId(pair[1])) {
        return InvalidArgument(where + ": post_processor " + type + " has no pair \"" + key + "\"");
      }
      list->push_back(pair[1].get<int32_t>());
    }
  } else {
    return Unimplemented(
        where + ": post_processor " + type +
        "; TemplateProcessing, RobertaProcessing, BertProcessing and ByteLevel are supported");
  }
  // Processors of a sequence wrap what the ones before them made.
  prefix_.insert(prefix_.begin(), before.begin(), before.end());
  suffix_.insert(suffix_.end(), after.begin(), after.end());
  return OkStatus();
}

}  // namespace tidepool::text
