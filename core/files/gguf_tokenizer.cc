// tokenizer.json and its companions from GGUF metadata.

#include <nlohmann/json.hpp>
#include <set>

#include "core/files/gguf_hugging_face.h"

namespace tidepool::files {
namespace {

using Json = nlohmann::ordered_json;

// llama.cpp's token types.
enum TokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

// The published patterns of Llama 3 and Qwen2; their tokenizer.json files have these very strings.
constexpr char kLlama3Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen2Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

Json ByteLevel(bool use_regex) {
  return {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}
Json Split(const char* pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
}
Json Sequence(Json first, Json second) {
  return {{"type", "Sequence"}, {"pretokenizers", Json::array({std::move(first), std::move(second)})}};
}

struct Splitting {
  Json normalizer = nullptr;
  Json pre_tokenizer;
  bool ignore_merges = false;
};

StatusOr<Splitting> SplittingOf(std::string_view pre, const std::string& where) {
  Splitting result;
  if (pre == "smollm") {
    result.pre_tokenizer = Sequence({{"type", "Digits"}, {"individual_digits", true}}, ByteLevel(true));
  } else if (pre == "llama-bpe") {
    result.pre_tokenizer = Sequence(Split(kLlama3Pattern), ByteLevel(false));
    result.ignore_merges = true;
  } else if (pre == "qwen2") {
    result.normalizer = {{"type", "NFC"}};
    result.pre_tokenizer = Sequence(Split(kQwen2Pattern), ByteLevel(false));
  } else if (pre == "gpt-2" || pre == "default") {
    result.pre_tokenizer = ByteLevel(true);
  } else {
    return Unimplemented(where + ": tokenizer.ggml.pre is \"" + std::string(pre) +
                         "\"; smollm, llama-bpe, qwen2, gpt-2 and default can be imported");
  }
  return result;
}

Json AddedToken(int64_t id, std::string_view content, bool special) {
  return {{"id", id},
          {"content", std::string(content)},
          {"single_word", false},
          {"lstrip", false},
          {"rstrip", false},
          {"normalized", false},
          {"special", special}};
}

}  // namespace

Status WriteGgufTokenizer(const GgufFile& file, const std::string& out_folder) {
  const std::string& where = file.path();
  const std::string model(file.String("tokenizer.ggml.model").value_or("(none)"));
  if (model != "gpt2") {
    return Unimplemented(where + ": tokenizer.ggml.model is \"" + model +
                         "\"; only byte-level BPE (gpt2) can be imported");
  }
  TP_ASSIGN_OR_RETURN(const Splitting splitting,
                      SplittingOf(file.String("tokenizer.ggml.pre").value_or("default"), where));
  const auto* tokens = file.Strings("tokenizer.ggml.tokens");
  const auto* merges = file.Strings("tokenizer.ggml.merges");
  const auto* types = file.Ints("tokenizer.ggml.token_type");
  if (tokens == nullptr || merges == nullptr) {
    return InvalidArgument(where + ": tokenizer.ggml.tokens or tokenizer.ggml.merges is missing");
  }
  if (types != nullptr && types->size() != tokens->size()) {
    return InvalidArgument(where + ": tokenizer.ggml.token_type has " + std::to_string(types->size()) +
                           " values for " + std::to_string(tokens->size()) + " tokens");
  }
  const auto count = static_cast<int64_t>(tokens->size());

  // Built as text: an ordered_json object looks through all keys at each insertion.
  std::string vocab = "{";
  Json added = Json::array();
  Json decoder = Json::object();
  std::set<std::string_view> seen;
  try {
    for (int64_t id = 0; id < count; ++id) {
      const std::string_view token = (*tokens)[static_cast<size_t>(id)];
      if (!seen.insert(token).second) {
        return InvalidArgument(where + ": token " + std::to_string(id) + " repeats an earlier one");
      }
      const int64_t type = types == nullptr ? kNormal : (*types)[static_cast<size_t>(id)];
      // Padding tokens that the converter made up for rows of the embedding without a token.
      if (type == kUnused) continue;
      if (type == kByte) {
        return Unimplemented(where + ": token " + std::to_string(id) +
                             " is a byte-fallback token; only byte-level "
                             "BPE can be imported");
      }
      if (vocab.size() > 1) vocab += ',';
      vocab += Json(std::string(token)).dump() + ':' + std::to_string(id);
      if (type == kControl || type == kUserDefined || type == kUnknown) {
        added.push_back(AddedToken(id, token, type != kUserDefined));
        Json entry = added.back();
        entry.erase("id");
        decoder[std::to_string(id)] = std::move(entry);
      }
    }
    vocab += '}';
    std::string merge_list = "[";
    for (const std::string_view merge : *merges) {
      if (merge_list.size() > 1) merge_list += ',';
      merge_list += Json(std::string(merge)).dump();
    }
    merge_list += ']';

    const auto token_of = [&](const char* key) -> std::optional<std::string> {
      const std::optional<int64_t> id = file.Int(key);
      if (!id || *id < 0 || *id >= count) return std::nullopt;
      return std::string((*tokens)[static_cast<size_t>(*id)]);
    };
    const std::optional<std::string> bos = token_of("tokenizer.ggml.bos_token_id");
    const bool add_bos = file.Bool("tokenizer.ggml.add_bos_token").value_or(splitting.ignore_merges) && bos;

    Json post = nullptr;
    if (add_bos) {
      const Json sequence = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
      const Json special = {{"SpecialToken", {{"id", *bos}, {"type_id", 0}}}};
      Json template_processing = {
          {"type", "TemplateProcessing"},
          {"single", Json::array({special, sequence})},
          {"pair", Json::array({special, sequence, special, {{"Sequence", {{"id", "B"}, {"type_id", 1}}}}})},
          {"special_tokens",
           {{*bos,
             {{"id", *bos}, {"ids", {*file.Int("tokenizer.ggml.bos_token_id")}}, {"tokens", {*bos}}}}}}};
      post = std::move(template_processing);
    }
    const Json byte_level_decoder = {
        {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
    const std::string text =
        "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":" + added.dump() +
        ",\"normalizer\":" + splitting.normalizer.dump() +
        ",\"pre_tokenizer\":" + splitting.pre_tokenizer.dump() + ",\"post_processor\":" + post.dump() +
        ",\"decoder\":" + byte_level_decoder.dump() +
        ",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,"
        "\"end_of_word_suffix\":null,\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":" +
        (splitting.ignore_merges ? "true" : "false") + ",\"vocab\":" + vocab + ",\"merges\":" + merge_list +
        "}}\n";
    TP_RETURN_IF_ERROR(WriteSmallFile(out_folder + "/tokenizer.json", text));

    Json config;
    config["tokenizer_class"] = "PreTrainedTokenizerFast";
    config["add_bos_token"] = add_bos;
    config["add_prefix_space"] = false;
    config["clean_up_tokenization_spaces"] = false;
    if (!decoder.empty()) config["added_tokens_decoder"] = decoder;
    if (bos) config["bos_token"] = *bos;
    if (const auto token = token_of("tokenizer.ggml.eos_token_id")) config["eos_token"] = *token;
    if (const auto token = token_of("tokenizer.ggml.padding_token_id")) config["pad_token"] = *token;
    if (const auto token = token_of("tokenizer.ggml.unknown_token_id")) config["unk_token"] = *token;
    const std::string architecture(file.String("general.architecture").value_or(""));
    if (const auto context = file.Int(architecture + ".context_length"))
      config["model_max_length"] = *context;
    if (const auto chat_template = file.String("tokenizer.chat_template")) {
      config["chat_template"] = std::string(*chat_template);
      TP_RETURN_IF_ERROR(WriteSmallFile(out_folder + "/chat_template.jinja", *chat_template));
    }
    return WriteSmallFile(out_folder + "/tokenizer_config.json", config.dump(2) + "\n");
  } catch (const std::exception& e) {  // the JSON library's, for text that is no UTF-8
    return InvalidArgument(where + ": the tokenizer's metadata cannot be written as JSON: " + e.what());
  }
}

}  // namespace tidepool::files
