#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "core/files/mapped_file.h"
#include "core/text/byte_alphabet.h"
#include "core/text/tokenizer.h"

namespace tidepool::text {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kSpecial[] = {"<pad>", "<bos>", "<eos>"};

// The assistant's parts are marked as generated, so that a supervised loss can be limited to them.
constexpr char kChatTemplate[] =
    "{{- bos_token }}\n"
    "{%- for message in messages %}\n"
    "    {%- if message['role'] == 'assistant' %}\n"
    "        {%- generation %}{{- message['content'] + eos_token }}{%- endgeneration %}\n"
    "    {%- else %}\n"
    "        {{- message['content'] }}\n"
    "    {%- endif %}\n"
    "{%- endfor %}\n";

}  // namespace

Status WriteCharacterTokenizer(const std::string& alphabet, const std::string& folder) {
  if (alphabet.empty()) return InvalidArgument("the alphabet is empty; name at least one character");
  OrderedJson added = OrderedJson::array();
  OrderedJson vocab = OrderedJson::object();
  for (int id = 0; id < 3; ++id) {
    vocab[kSpecial[id]] = id;
    added.push_back({{"id", id},
                     {"content", kSpecial[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  std::set<char> seen;
  for (const char c : alphabet) {
    if (static_cast<unsigned char>(c) >= 0x80) {
      return InvalidArgument("the alphabet has a character outside ASCII; a token here is one byte");
    }
    if (!seen.insert(c).second) {
      return InvalidArgument(std::string("the alphabet has the character '") + c + "' twice");
    }
    vocab[std::string(ByteSymbol(static_cast<unsigned char>(c)))] = static_cast<int>(2 + seen.size());
  }
  const auto byte_level = [](bool prefix) {
    return OrderedJson{
        {"type", "ByteLevel"}, {"add_prefix_space", prefix}, {"trim_offsets", true}, {"use_regex", false}};
  };
  const OrderedJson text_part = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const OrderedJson bos_part = {{"SpecialToken", {{"id", "<bos>"}, {"type_id", 0}}}};
  OrderedJson post = {
      {"type", "TemplateProcessing"},
      {"single", OrderedJson::array({bos_part, text_part})},
      {"pair", OrderedJson::array({bos_part, text_part, {{"Sequence", {{"id", "B"}, {"type_id", 1}}}}})},
      {"special_tokens", {{"<bos>", {{"id", "<bos>"}, {"ids", {1}}, {"tokens", {"<bos>"}}}}}}};
  const OrderedJson tokenizer = {{"version", "1.0"},
                                 {"truncation", nullptr},
                                 {"padding", nullptr},
                                 {"added_tokens", added},
                                 {"normalizer", nullptr},
                                 {"pre_tokenizer", byte_level(false)},
                                 {"post_processor", post},
                                 {"decoder", byte_level(true)},
                                 {"model",
                                  {{"type", "BPE"},
                                   {"dropout", nullptr},
                                   {"unk_token", nullptr},
                                   {"continuing_subword_prefix", nullptr},
                                   {"end_of_word_suffix", nullptr},
                                   {"fuse_unk", false},
                                   {"byte_fallback", false},
                                   {"ignore_merges", false},
                                   {"vocab", vocab},
                                   {"merges", OrderedJson::array()}}}};
  const OrderedJson config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                              {"pad_token", "<pad>"},
                              {"bos_token", "<bos>"},
                              {"eos_token", "<eos>"},
                              {"clean_up_tokenization_spaces", false},
                              {"chat_template", kChatTemplate}};
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return FileError(error.value(), "create folder", folder);
  TP_RETURN_IF_ERROR(files::WriteSmallFile(folder + "/tokenizer.json", tokenizer.dump(1) + "\n"));
  TP_RETURN_IF_ERROR(files::WriteSmallFile(folder + "/tokenizer_config.json", config.dump(2) + "\n"));
  return files::WriteSmallFile(folder + "/chat_template.jinja", kChatTemplate);
}

}  // namespace tidepool::text
