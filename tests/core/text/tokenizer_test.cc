#include "core/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/base/rng.h"
#include "core/text/byte_alphabet.h"
#include "core/text/unicode.h"
#include "tests/core/files/test_folder.h"

namespace tidepool::text {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// All 256 bytes (id = byte), then " t" and "he", " the", and "12"; single digits as SmolLM2 has them.
json Base() {
  json vocab = json::object();
  for (int byte = 0; byte < 256; ++byte)
    vocab[std::string(ByteSymbol(static_cast<unsigned char>(byte)))] = byte;
  const std::string space(ByteSymbol(' '));
  vocab[space + "t"] = 256;
  vocab["he"] = 257;
  vocab[space + "the"] = 258;
  vocab["12"] = 259;
  vocab[space + space] = 260;
  return {{"added_tokens",
           {{{"id", 261}, {"content", "<|end|>"}, {"special", true}},
            {{"id", 262}, {"content", "<left>"}, {"lstrip", true}},
            {{"id", 263}, {"content", "<right>"}, {"rstrip", true}},
            {{"id", 264}, {"content", "word"}, {"single_word", true}},
            {{"id", 265}, {"content", "<|end|>>"}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "Sequence"},
            {"pretokenizers",
             {{{"type", "Digits"}, {"individual_digits", true}},
              {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}}}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"vocab", vocab},
            {"merges", {space + " t", "h e", space + "t he", "1 2", space + " " + space}}}}};
}

std::unique_ptr<Tokenizer> Make(const json& j) {
  auto tokenizer = Tokenizer::FromJson(j.dump(), "t");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  return tokenizer.ok() ? std::move(*tokenizer) : nullptr;
}
std::string ErrorOf(const json& j) { return Tokenizer::FromJson(j.dump(), "t").status().ToString(); }

std::vector<int32_t> Ids(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options = {}) {
  auto ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status().ToString();
  return ids.ok() ? *ids : std::vector<int32_t>();
}

TEST(TokenizerTest, DigitsAreSplitBeforeSpacesJoinThem) {
  const auto tokenizer = Make(Base());
  // With GPT-2's pattern alone this would be " ", " 12": the digits splitter comes first, so both spaces
  // stay together and each digit stands alone.
  EXPECT_THAT(Ids(*tokenizer, "  12"), ElementsAre(260, '1', '2'));
  EXPECT_THAT(Ids(*tokenizer, "a the"), ElementsAre('a', 258));
}

TEST(TokenizerTest, AddedTokensTakeWhatTheirFlagsSay) {
  const auto tokenizer = Make(Base());
  EXPECT_THAT(Ids(*tokenizer, "a<|end|>b"), ElementsAre('a', 261, 'b'));
  EXPECT_THAT(Ids(*tokenizer, "<|end|>>"), ElementsAre(265));  // the longest wins
  EXPECT_THAT(Ids(*tokenizer, "a  <left> b"), ElementsAre('a', 262, ' ', 'b'));
  EXPECT_THAT(Ids(*tokenizer, "a <right>  b"), ElementsAre('a', ' ', 263, 'b'));
  EXPECT_THAT(Ids(*tokenizer, "word,word"), ElementsAre(264, ',', 264));
  EXPECT_THAT(Ids(*tokenizer, "swords"), ElementsAre('s', 'w', 'o', 'r', 'd', 's'));
  EXPECT_THAT(Ids(*tokenizer, "<right> \n<left>"), ElementsAre(263, 262));
  EXPECT_THAT(Ids(*tokenizer, ""), IsEmpty());
}

// As the reference library, which drops what is left of the second match: nothing.
TEST(TokenizerTest, WhiteSpaceTakenByOneAddedTokenIsNoOther) {
  json j = Base();
  j["added_tokens"].push_back({{"id", 266}, {"content", "  "}, {"lstrip", true}, {"rstrip", true}});
  const auto tokenizer = Make(j);
  EXPECT_THAT(Ids(*tokenizer, "a     b"), ElementsAre('a', 266, 'b'));
  EXPECT_THAT(Ids(*tokenizer, "<right>    b"), ElementsAre(263, 'b'));
}

TEST(TokenizerTest, NormalizedAddedTokensDecodeAsTheirNormalizedText) {
  json j = Base();
  j["normalizer"] = {{"type", "NFC"}};
  j["added_tokens"].push_back({{"id", 266}, {"content", "e\u0301z"}, {"normalized", true}});
  j["added_tokens"].push_back({{"id", 267}, {"content", "i\u0301z"}, {"normalized", false}});
  const auto tokenizer = Make(j);
  // U+00E9 is the symbol of byte 0xE9, which alone is no UTF-8; what is not normalized decodes as it stands.
  EXPECT_EQ(tokenizer->Decode({{266}}), "\uFFFDz");
  EXPECT_EQ(tokenizer->Decode({{267}}), "i\u0301z");
}

TEST(TokenizerTest, NormalizedAddedTokensAreFoundInNormalizedText) {
  json j = Base();
  j["normalizer"] = {{"type", "NFC"}};
  j["added_tokens"].push_back({{"id", 266}, {"content", "caf\u00e9"}, {"normalized", true}});
  const auto tokenizer = Make(j);
  EXPECT_THAT(Ids(*tokenizer, "cafe\u0301!"), ElementsAre(266, '!'));
  j["added_tokens"].back()["normalized"] = false;
  EXPECT_THAT(Ids(*Make(j), "cafe\u0301"), ElementsAre('c', 'a', 'f', 0xC3, 0xA9));
}

// The reference library's rule; checked against it by tests/interop/tokenizer_differential.py.
TEST(TokenizerTest, AddedTokensOfTheVocabularyKeepTheirIdAndOthersFollowIt) {
  json j = Base();
  j["added_tokens"] = {{{"id", 300}, {"content", "<x>"}},
                       {{"id", 400}, {"content", "12"}},
                       {{"id", 500}, {"content", "<y>"}},
                       {{"id", 600}, {"content", "<x>"}}};
  EXPECT_THAT(Ids(*Make(j), "<x>12<y>"), ElementsAre(261, 259, 262));
}

TEST(TokenizerTest, MergesMayBePairs) {
  json j = Base();
  json pairs = json::array();
  for (const json& merge : j["model"]["merges"]) {
    const auto text = merge.get<std::string>();
    pairs.push_back({text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)});
  }
  j["model"]["merges"] = pairs;
  EXPECT_THAT(Ids(*Make(j), " the"), ElementsAre(258));
}

TEST(TokenizerTest, DecodeReplacesBytesThatAreNoUtf8) {
  const auto tokenizer = Make(Base());
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{0xE2, 0x82, 'a', 0xFF, 0xE2, 0x82, 0xAC}),
            "\uFFFDa\uFFFD\u20AC");
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{258, 261, 99999, -1}), " the<|end|>");
  EXPECT_EQ(tokenizer->Decode(std::vector<int32_t>{258, 261, 262}, /*skip_special=*/true), " the<left>");
}

TEST(TokenizerTest, AnyTextComesBack) {
  const auto tokenizer = Make(Base());
  Rng rng(4);
  for (int i = 0; i < 500; ++i) {
    std::string text;
    for (int64_t k = rng.Below(30); k > 0; --k) {
      auto c = static_cast<char32_t>(rng.Below(rng.Chance(0.7) ? 0x80 : 0x20000));
      if (c >= 0xD800 && c <= 0xDFFF) c = ' ';
      AppendUtf8(c, &text);
    }
    EXPECT_EQ(tokenizer->Decode(Ids(*tokenizer, text)), text);
  }
}

TEST(TokenizerTest, TextThatIsNoUtf8IsRefused) {
  EXPECT_THAT(Make(Base())->Encode("ab\xFFz").status().message(), HasSubstr("byte 2"));
}

TEST(TokenizerTest, PostProcessorAddsSpecialTokensOnRequest) {
  json j = Base();
  j["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<|end|>"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
        {{"SpecialToken", {{"id", "x"}, {"type_id", 0}}}}}},
      {"special_tokens",
       {{"<|end|>", {{"id", "<|end|>"}, {"ids", {261}}}}, {"x", {{"id", "x"}, {"ids", {1, 2}}}}}}};
  const auto tokenizer = Make(j);
  EXPECT_THAT(Ids(*tokenizer, "a", {.add_special = true}), ElementsAre(261, 'a', 1, 2));
  EXPECT_THAT(Ids(*tokenizer, "a"), ElementsAre('a'));
}

TEST(TokenizerTest, LooksUpTokens) {
  const auto tokenizer = Make(Base());
  EXPECT_EQ(tokenizer->TokenId("<|end|>"), 261);
  EXPECT_EQ(tokenizer->TokenId("nothing"), std::nullopt);
  EXPECT_TRUE(tokenizer->IsSpecial(261));
  EXPECT_FALSE(tokenizer->IsSpecial(262));
  EXPECT_EQ(tokenizer->vocab_size(), 266);
  EXPECT_EQ(tokenizer->TokenBytes(258), " the");
}

TEST(TokenizerTest, WhatIsNotSupportedIsRefusedByName) {
  const auto with = [](const char* path, const json& value) {
    json j = Base();
    j[json::json_pointer(path)] = value;
    return ErrorOf(j);
  };
  EXPECT_THAT(with("/model/type", "Unigram"), HasSubstr("Unigram"));
  EXPECT_THAT(with("/model/type", "WordPiece"), HasSubstr("WordPiece"));
  EXPECT_THAT(with("/model/byte_fallback", true), HasSubstr("SentencePiece"));
  EXPECT_THAT(with("/model/continuing_subword_prefix", "##"), HasSubstr("continuing_subword_prefix"));
  EXPECT_THAT(with("/model/dropout", 0.1), HasSubstr("dropout"));
  EXPECT_THAT(with("/normalizer", {{"type", "Lowercase"}}), HasSubstr("Lowercase"));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "Metaspace"}}), HasSubstr("Metaspace"));
  EXPECT_THAT(with("/pre_tokenizer", nullptr), HasSubstr("ByteLevel"));
  EXPECT_THAT(with("/decoder", {{"type", "WordPiece"}}), HasSubstr("decoder WordPiece"));
  EXPECT_THAT(with("/post_processor", {{"type", "Strange"}}), HasSubstr("Strange"));
}

TEST(TokenizerTest, MalformedFilesAreErrors) {
  const auto with = [](const char* path, const json& value) {
    json j = Base();
    j[json::json_pointer(path)] = value;
    return ErrorOf(j);
  };
  EXPECT_THAT(Tokenizer::FromJson("{", "t").status().message(), HasSubstr("t: is no JSON"));
  EXPECT_THAT(Tokenizer::FromJson("[]", "t").status().message(), HasSubstr("no JSON object"));
  EXPECT_THAT(with("/model/vocab/a", -1), HasSubstr("\"a\""));
  EXPECT_THAT(with("/model/vocab/a", 1 << 30), HasSubstr("\"a\""));
  EXPECT_THAT(with("/model/vocab/a", 3), HasSubstr("two tokens"));
  EXPECT_THAT(with("/model/vocab", json::array()), HasSubstr("vocab"));
  EXPECT_THAT(with("/model/merges/0", "abc"), HasSubstr("merges[0]"));
  EXPECT_THAT(with("/model/merges/0", "z q"), HasSubstr("merges[0]"));
  EXPECT_THAT(with("/model/merges/0", 3), HasSubstr("merges[0]"));
  EXPECT_THAT(with("/added_tokens/0/id", -3), HasSubstr("added_tokens[0]"));
  EXPECT_THAT(with("/added_tokens/0/content", 3), HasSubstr("added_tokens[0]"));
  EXPECT_EQ(Tokenizer::Load("/nowhere").status().code(), StatusCode::kNotFound);
}

TEST(DetokenizerTest, JoinedPiecesEqualDecodeAndNoneEndsWithinACharacter) {
  const auto tokenizer = Make(Base());
  Rng rng(9);
  for (int i = 0; i < 1000; ++i) {
    std::vector<int32_t> ids;
    std::string joined;
    Detokenizer detokenizer(*tokenizer);
    for (int64_t k = rng.Below(20); k > 0; --k) {
      ids.push_back(static_cast<int32_t>(rng.Chance(0.6) ? rng.InRange(0x80, 0xF8) : rng.Below(262)));
      const std::string piece = detokenizer.Push(ids.back());
      EXPECT_EQ(FindInvalidUtf8(piece), std::string::npos);
      joined += piece;
    }
    joined += detokenizer.Flush();
    ASSERT_EQ(joined, tokenizer->Decode(ids));
  }
}

TEST(DetokenizerTest, HoldsBackHalfACharacter) {
  const auto tokenizer = Make(Base());
  Detokenizer detokenizer(*tokenizer, /*skip_special=*/true);
  EXPECT_EQ(detokenizer.Push('a'), "a");
  EXPECT_EQ(detokenizer.Push(0xE2), "");
  EXPECT_EQ(detokenizer.Push(0x82), "");
  EXPECT_EQ(detokenizer.Push(0xAC), "\u20AC");
  EXPECT_EQ(detokenizer.Push(261), "");
  EXPECT_EQ(detokenizer.Push(0xE2), "");
  EXPECT_EQ(detokenizer.Flush(), "\uFFFD");
}

TEST(CharacterTokenizerTest, OneTokenPerCharacterAfterThreeSpecialOnes) {
  TestFolder folder;
  ASSERT_TRUE(WriteCharacterTokenizer("0123456789 +-*/=?<>", folder.path() + "/t").ok());
  const auto tokenizer = Tokenizer::Load(folder.path() + "/t");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_THAT(Ids(**tokenizer, "10 + 2=?"), ElementsAre(4, 3, 13, 14, 13, 5, 18, 19));
  EXPECT_THAT(Ids(**tokenizer, "1<eos>", {.add_special = true}), ElementsAre(1, 4, 2));
  EXPECT_FALSE((*tokenizer)->TakesAnyText());
  // Others are an error, or left out where that is asked for.
  const auto refused = [&](const char* text) { return (*tokenizer)->Encode(text).status(); };
  EXPECT_EQ(refused("1z2").code(), StatusCode::kNotFound);
  EXPECT_EQ(refused("1z2").message(), "the character 'z' (U+007A) has no token");
  EXPECT_THAT(refused("12 \u00e92").message(), HasSubstr("'\u00e9' (U+00E9)"));
  EXPECT_THAT(refused("1\n2").message(), HasSubstr("character U+000A has"));
  EXPECT_THAT(Ids(**tokenizer, "1z\u00e92", {.leave_out = true}), ElementsAre(4, 5));
  EXPECT_THAT((*tokenizer)->Unknown("1za2z<eos>"),
              ElementsAre("'a' (U+0061)", "'e' (U+0065)", "'o' (U+006F)", "'s' (U+0073)", "'z' (U+007A)"));
  EXPECT_EQ((*tokenizer)->Decode(std::vector<int32_t>{1, 4, 13, 5, 2}, true), "1 2");
  EXPECT_EQ((*tokenizer)->vocab_size(), 22);
  EXPECT_EQ((*tokenizer)->TokenId("<pad>"), 0);
}

TEST(CharacterTokenizerTest, BadAlphabetsAreRefused) {
  TestFolder folder;
  EXPECT_THAT(WriteCharacterTokenizer("", folder.path()).message(), HasSubstr("empty"));
  EXPECT_THAT(WriteCharacterTokenizer("aba", folder.path()).message(), HasSubstr("'a' twice"));
  EXPECT_THAT(WriteCharacterTokenizer("\u00e9", folder.path()).message(), HasSubstr("ASCII"));
}

// Found by fuzzing: such an id went to the model.
TEST(TokenizerTest, PostProcessorWithAnIdThatNoTokenHasIsRefusedWhereItIsUsed) {
  const auto tokenizer = Tokenizer::FromJson(
      R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
          "decoder": {"type": "ByteLevel"}, "post_processor": {"type": "TemplateProcessing",
          "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
          "special_tokens": {"<s>": {"id": "<s>", "ids": [19], "tokens": ["<s>"]}}}})",
      "tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  EXPECT_TRUE((*tokenizer)->Encode("a").ok());
  const auto ids = (*tokenizer)->Encode("a", {.add_special = true});
  EXPECT_EQ(ids.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(ids.status().message().find("19"), std::string::npos);
}

}  // namespace
}  // namespace tidepool::text
