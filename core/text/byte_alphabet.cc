#include "core/text/byte_alphabet.h"

#include <array>

#include "core/text/unicode.h"

namespace tidepool::text {
namespace {

struct Alphabet {
  std::array<std::string, 256> symbols;
  std::array<int, 0x144> bytes;  // the last symbol is U+0143

  Alphabet() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const char32_t symbol = printable ? static_cast<char32_t>(byte) : next++;
      AppendUtf8(symbol, &symbols[static_cast<size_t>(byte)]);
      bytes[symbol] = byte;
    }
  }
};
const Alphabet& Table() {
  static const Alphabet table;
  return table;
}

}  // namespace

std::string_view ByteSymbol(unsigned char byte) { return Table().symbols[byte]; }

int ByteOfSymbol(char32_t symbol) {
  const auto& bytes = Table().bytes;
  return symbol < bytes.size() ? bytes[symbol] : -1;
}

std::optional<std::string> BytesOfSymbols(std::string_view token) {
  std::string result;
  for (size_t at = 0; at < token.size();) {
    const CodePoint c = DecodeAt(token, at);
    const int byte = ByteOfSymbol(c.value);
    if (byte < 0) return std::nullopt;
    result.push_back(static_cast<char>(byte));
    at += c.bytes;
  }
  return result;
}

}  // namespace tidepool::text
