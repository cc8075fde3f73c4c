// Any bytes through a byte-level tokenizer: text that is UTF-8 comes back as it was, half characters never
// get out.
#include "core/text/tokenizer.h"
#include "tests/fuzz/scratch.h"

namespace {

// Every byte is a token; added tokens with flags; the pre-tokeniser of Qwen2.
std::string TokenizerJson() {
  std::string vocab;
  int next = 0;
  const auto add = [&](int code) {
    char utf8[4] = {};
    if (code < 0x80) {
      utf8[0] = static_cast<char>(code);
    } else {
      utf8[0] = static_cast<char>(0xC0 | code >> 6);
      utf8[1] = static_cast<char>(0x80 | (code & 0x3F));
    }
    std::string text = utf8;
    if (text == "\"" || text == "\\") text = "\\" + text;
    vocab += (vocab.empty() ? "\"" : ",\"") + text + "\":" + std::to_string(next++);
  };
  int moved = 0;
  for (int b = 0; b < 256; ++b) {
    const bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
    add(plain ? b : 256 + moved++);
  }
  return R"({"model":{"type":"BPE","vocab":{)" + vocab +
         R"(},"merges":[]},"decoder":{"type":"ByteLevel"},"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},"added_tokens":[{"id":256,"content":"<s>","special":true},{"id":257,"content":"<w>","single_word":true}]})";
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tidepool;
  static const auto tokenizer = text::Tokenizer::FromJson(TokenizerJson(), "byte tokenizer");
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().ToString().c_str());
    std::abort();
  }
  const std::string_view input = fuzz::View(data, size);
  const auto ids = (*tokenizer)->Encode(input);
  if (ids.ok() && (*tokenizer)->Decode(*ids) != input) std::abort();
  // The bytes as ids, decoded at once and piece by piece.
  std::vector<int32_t> raw;
  for (size_t i = 0; i < size; ++i) raw.push_back(data[i]);
  text::Detokenizer pieces(**tokenizer);
  std::string joined;
  for (const int32_t id : raw) joined += pieces.Push(id);
  joined += pieces.Flush();
  if (joined != (*tokenizer)->Decode(raw)) std::abort();
  return 0;
}
