#pragma once
// GPT-2's printable alphabet for bytes: tokenizer files write each byte of a token as one character
// (openai/gpt-2, encoder.py, bytes_to_unicode). Printable Latin-1 bytes stand for themselves, the
// other 68 for U+0100 on, in order; a space is U+0120.

#include <optional>
#include <string>
#include <string_view>

namespace tidepool::text {

// The character that stands for `byte`, as UTF-8.
std::string_view ByteSymbol(unsigned char byte);
// The byte that a character stands for, or -1.
int ByteOfSymbol(char32_t symbol);
// The bytes of a token as written in a file; nothing if a character is not in the alphabet.
// requires valid UTF-8
std::optional<std::string> BytesOfSymbols(std::string_view token);

}  // namespace tidepool::text
