#pragma once
// Byte-level BPE tokenizers from a Hugging Face tokenizer.json: text to ids and back.
//
// Encoding: added tokens are found, the rest is normalised (NFC or not at all), cut into words by the
// pre-tokeniser and merged. Ids equal those of the `tokenizers` library (tests/interop compares).
// Decoding joins the tokens' bytes; bytes that are no UTF-8 become U+FFFD, one for each maximal
// invalid part. No clean-up of spaces. What is not supported (Unigram, WordPiece, SentencePiece-style
// BPE, other normalisers) is refused by name when loading. Immutable once loaded; thread-safe.

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/status.h"
#include "core/text/added_tokens.h"
#include "core/text/bpe.h"
#include "core/text/pre_tokenizer.h"

namespace tidepool::text {

struct EncodeOptions {
  bool add_special = false;  // what the post-processor puts around a text, such as <bos>
  // Characters that have no token, and no unknown token stands for them, are left out, as the reference
  // library does; else they are an error.
  bool leave_out = false;
};

class Tokenizer {
 public:
  // Reads `folder`/tokenizer.json. kNotFound, kInvalidArgument (malformed) or kUnimplemented.
  static StatusOr<std::unique_ptr<Tokenizer>> Load(const std::string& folder);
  // `where` opens each message.
  static StatusOr<std::unique_ptr<Tokenizer>> FromJson(std::string_view json, const std::string& where);

  // kInvalidArgument if `text` is no UTF-8 or longer than 1 GiB; kNotFound: a character of it, which the
  // message names, has no token. Special tokens that are written in the text are recognised.
  [[nodiscard]] StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                                      EncodeOptions options = {}) const;

  // The characters of `text` that no token stands for, each once: "'é' (U+00E9)".  requires valid UTF-8
  [[nodiscard]] std::set<std::string> Unknown(std::string_view text) const;
  // Every text of characters can be encoded: each byte of UTF-8 has a token, or an unknown token stands for
  // it.
  [[nodiscard]] bool TakesAnyText() const;

  // Ids without a token are passed over.
  [[nodiscard]] std::string Decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // The token's bytes, possibly half a character; empty for an id without a token.
  [[nodiscard]] std::string_view TokenBytes(int32_t id) const;
  // The id of an added token, or of a token as written in the file ("Ġthe"); none if there is none.
  [[nodiscard]] std::optional<int32_t> TokenId(std::string_view token) const;
  [[nodiscard]] bool IsSpecial(int32_t id) const;
  // One more than the largest id, added tokens included. A model's vocabulary may be larger.
  [[nodiscard]] int32_t vocab_size() const { return static_cast<int32_t>(tokens_.size()); }
  [[nodiscard]] const std::vector<AddedToken>& added_tokens() const { return added_; }
  [[nodiscard]] uint64_t digest() const { return digest_; }  // of its file

 private:
  struct Token {
    std::string bytes;
    bool special = false;
    bool exists = false;
  };

  Tokenizer() = default;
  Status Parse(const nlohmann::json& json, const std::string& where);
  Status ParseModel(const nlohmann::json& json, const std::string& where);
  Status ParseAddedTokens(const nlohmann::json& json, const std::string& where);
  Status ParseNormalizer(const nlohmann::json& json, const std::string& where, int depth);
  Status ParsePostProcessor(const nlohmann::json& json, const std::string& where, int depth);
  Status EncodeSegment(std::string_view text, const EncodeOptions& options, Pieces* pieces,
                       std::vector<std::string_view>* scratch, std::vector<int32_t>* ids) const;

  std::vector<Token> tokens_;                         // by id
  std::unordered_map<std::string, int32_t> by_text_;  // as written in the file
  int64_t model_tokens_ = 0;
  std::vector<AddedToken> added_;
  AddedTokenFinder raw_finder_;
  AddedTokenFinder normalized_finder_;
  bool nfc_ = false;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  std::unique_ptr<Bpe> bpe_;
  std::vector<int32_t> prefix_;  // what add_special puts before and after
  std::vector<int32_t> suffix_;
  uint64_t digest_ = 0;
};

// Text from ids as they come, for streaming: what Push and Flush return, joined, is Decode of all ids,
// and no piece ends within a character. Not thread-safe; the tokenizer outlives it.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = false)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}
  std::string Push(int32_t id);
  std::string Flush();  // what is left, a half character as U+FFFD; then it starts afresh

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::string pending_;  // at most three bytes between calls
};

// Writes tokenizer.json, tokenizer_config.json and chat_template.jinja for a model that is made from
// the config: ids 0 <pad>, 1 <bos>, 2 <eos>, then one for each character of `alphabet`, in order; a text
// with other characters cannot be encoded. The chat template is <bos>, the messages' contents one after
// another, and <eos> after each answer of the assistant.
// kInvalidArgument if the alphabet is empty, has a character twice or one outside ASCII.
Status WriteCharacterTokenizer(const std::string& alphabet, const std::string& folder);

}  // namespace tidepool::text
