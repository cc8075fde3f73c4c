#include "core/text/tokenizer.h"

#include <array>
#include <cstdio>

#include "core/base/utf8.h"
#include "core/text/unicode.h"

namespace tidepool::text {
namespace {

// 'é' (U+00E9); a control character or a space by its number alone.
std::string NameOfCharacter(std::string_view text, size_t at) {
  const CodePoint c = DecodeAt(text, at);
  std::array<char, 16> number{};
  std::snprintf(number.data(), number.size(), "U+%04X", static_cast<unsigned>(c.value));
  if (!IsPrintable(c.value) || IsSpace(c.value)) return number.data();
  return "'" + std::string(text.substr(at, c.bytes)) + "' (" + number.data() + ")";
}

}  // namespace

StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, EncodeOptions options) const {
  if (text.size() > (size_t{1} << 30)) {
    return InvalidArgument("a text of " + std::to_string(text.size()) +
                           " bytes; at most 1 GiB is encoded at once");
  }
  if (const size_t at = FindInvalidUtf8(text); at != std::string_view::npos) {
    return InvalidArgument("the text is no UTF-8 at byte " + std::to_string(at) + "; convert it first");
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  if (options.add_special) {
    // The reference library loads such a file too, and gives out an id that no token has.
    for (const std::vector<int32_t>* around : {&prefix_, &suffix_}) {
      for (const int32_t id : *around) {
        if (id >= vocab_size() || !tokens_[static_cast<size_t>(id)].exists) {
          return InvalidArgument("tokenizer.json: the post_processor puts the id " + std::to_string(id) +
                                 " around a text, but no token has it; correct special_tokens there");
        }
      }
    }
    ids.insert(ids.end(), prefix_.begin(), prefix_.end());
  }

  std::vector<Segment> segments;
  if (raw_finder_.empty()) {
    if (!text.empty()) segments.push_back({text, -1});
  } else {
    raw_finder_.Find(text, &segments);
  }
  Pieces pieces;
  std::vector<std::string_view> scratch;
  std::vector<Segment> inner;
  for (const Segment& segment : segments) {
    if (segment.id >= 0) {
      ids.push_back(segment.id);
      continue;
    }
    std::string normalized;
    std::string_view rest = segment.text;
    if (nfc_ && !IsCertainlyNfc(rest)) rest = normalized = Nfc(rest);
    if (normalized_finder_.empty()) {
      TP_RETURN_IF_ERROR(EncodeSegment(rest, options, &pieces, &scratch, &ids));
      continue;
    }
    inner.clear();
    normalized_finder_.Find(rest, &inner);
    for (const Segment& part : inner) {
      if (part.id >= 0) {
        ids.push_back(part.id);
      } else {
        TP_RETURN_IF_ERROR(EncodeSegment(part.text, options, &pieces, &scratch, &ids));
      }
    }
  }
  if (options.add_special) ids.insert(ids.end(), suffix_.begin(), suffix_.end());
  return ids;
}

Status Tokenizer::EncodeSegment(std::string_view text, const EncodeOptions& options, Pieces* pieces,
                                std::vector<std::string_view>* scratch, std::vector<int32_t>* ids) const {
  TP_RETURN_IF_ERROR(pre_tokenizer_->Split(text, pieces, scratch));
  for (const std::string_view piece : pieces->views) {
    const size_t left_out = bpe_->Encode(piece, ids);
    if (left_out == std::string_view::npos || options.leave_out) continue;
    return NotFound("the character " + NameOfCharacter(piece, CharacterStart(piece, left_out)) +
                    " has no token");
  }
  return OkStatus();
}

std::set<std::string> Tokenizer::Unknown(std::string_view text) const {
  std::set<std::string> seen, unknown;
  for (const std::string& character : Characters(text)) {
    if (seen.insert(character).second && Encode(character).status().code() == StatusCode::kNotFound)
      unknown.insert(NameOfCharacter(character, 0));
  }
  return unknown;
}

bool Tokenizer::TakesAnyText() const {
  for (int byte = 0; byte < 0xF5; ++byte) {
    const bool in_utf8 = byte != 0xC0 && byte != 0xC1;  // 0xF5 and on are not, either
    if (in_utf8 && !bpe_->Takes(static_cast<unsigned char>(byte))) return false;
  }
  return true;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (skip_special && IsSpecial(id)) continue;
    bytes += TokenBytes(id);
  }
  return FindInvalidUtf8(bytes) == std::string_view::npos ? bytes : ReplaceInvalidUtf8(bytes);
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= tokens_.size()) return {};
  return tokens_[static_cast<size_t>(id)].bytes;
}

std::optional<int32_t> Tokenizer::TokenId(std::string_view token) const {
  const auto found = by_text_.find(std::string(token));
  if (found == by_text_.end()) return std::nullopt;
  return found->second;
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < tokens_.size() && tokens_[static_cast<size_t>(id)].special;
}

std::string Detokenizer::Push(int32_t id) {
  if (skip_special_ && tokenizer_.IsSpecial(id)) return {};
  pending_ += tokenizer_.TokenBytes(id);
  const size_t complete = CompleteUtf8Prefix(pending_);
  std::string text = ReplaceInvalidUtf8(std::string_view(pending_).substr(0, complete));
  pending_.erase(0, complete);
  return text;
}

std::string Detokenizer::Flush() {
  std::string text = ReplaceInvalidUtf8(pending_);
  pending_.clear();
  return text;
}

}  // namespace tidepool::text
