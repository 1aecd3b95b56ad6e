
#include <map>
#include <nlohmann/json.hpp>

#include "framework/data/tokenizers/base64.h"
#include "framework/data/tokenizers/characters.h"
#include "framework/data/tokenizers/tokenizer.h"
#include "tests/data/data_files.h"

namespace anymesh {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

std::string base64(std::string_view bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    const size_t size = std::min<size_t>(3, bytes.size() - i);
    for (size_t j = 0; j < 3; ++j)
      bits = bits << 8 | (j < size ? static_cast<unsigned char>(bytes[i + j]) : 0);
    for (size_t j = 0; j < 4; ++j) text += j <= size ? kDigits[bits >> (18 - 6 * j) & 63] : '=';
  }
  return text;
}

TEST(Base64, IsDecodedWhole) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(decode_base64(base64(all)), all);
    all += static_cast<char>(byte);
  }
  for (const char* text : {"A", "AAA", "A=AA", "AA-A", "AAAA\n"}) EXPECT_FALSE(decode_base64(text));
}

// A file of tiktoken with the vocabulary of tests/fixtures/data/tokenizers/nemo.json, whose regular
// expression is Megatron's v2, and whose merges are in the order of its tokens.
class Tiktoken : public ::testing::Test {
 protected:
  static constexpr int kOwnSpecial = 5;  // of nemo.json

  Tiktoken() {
    const Json nemo = Json::parse(read_file(data_fixture("tokenizers/nemo.json")));
    std::map<int, std::string> tokens;
    for (const auto& [token, id] : nemo["model"]["vocab"].items()) tokens[id.get<int>()] = token;
    for (const auto& [id, token] : tokens)
      if (id >= kOwnSpecial) ranks.push_back(spelled_bytes(token).value());
    write_file(folder / "t", lines());
  }
  std::string lines() const {
    std::string text;
    for (size_t rank = 0; rank < ranks.size(); ++rank)
      text += base64(ranks[rank]) + " " + std::to_string(rank) + "\n";
    return text;
  }
  std::unique_ptr<Tokenizer> open(const TiktokenOptions& options = {}) {
    return make_tokenizer("TikTokenizer", "", "", folder / "t", options);
  }
  std::string refusal(const std::string& text, const TiktokenOptions& options = {}) {
    write_file(folder / "t", text);
    return message_of([&] { open(options); });
  }

  ScratchFolder folder;
  std::vector<std::string> ranks;
};

TEST_F(Tiktoken, MergesByRank) {
  const auto tokenizer = open();
  EXPECT_EQ(tokenizer->vocab_size(), 1000 + std::ssize(ranks));
  int compared = 0;
  for (const auto& row : Json::parse(read_file(data_fixture("tokenizers/nemo.golden.json")))) {
    const auto text = row[0].get<std::string>();
    if (text.find("INST]") != std::string::npos || text == "<mask>") continue;
    Ids expected = row[1];
    for (int32_t& id : expected)
      if (id >= kOwnSpecial) id += 1000 - kOwnSpecial;
    EXPECT_EQ(tokenizer->encode(text), expected) << row[0];
    EXPECT_EQ(tokenizer->decode(expected), text);
    ++compared;
  }
  EXPECT_GT(compared, 100);
}

TEST_F(Tiktoken, PutsTheSpecialTokensFirst) {
  const auto tokenizer = open({.special_tokens = 9});
  EXPECT_EQ(tokenizer->encode("<unk><s></s><mask><pad><cls><sep><SPECIAL_7><SPECIAL_8>"),
            (Ids{0, 1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(tokenizer->decode(Ids{2, 8}), "</s><SPECIAL_8>");
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eod(), 2);
  EXPECT_THAT(tokenizer->around_text().before, IsEmpty());
  EXPECT_GT(tokenizer->encode("<SPECIAL_9>").size(), 1u);
  EXPECT_EQ(open({.vocab_size = 1256})->vocab_size(), 1256);
}

TEST_F(Tiktoken, SplitsByTheChosenExpression) {
  ranks.push_back("xW");
  write_file(folder / "t", lines());
  EXPECT_EQ(open({.pattern = "v1"})->encode("xW").size(), 1u);
  EXPECT_EQ(open({.pattern = "v2"})->encode("xW").size(), 2u);  // a capital begins a word
  EXPECT_REFUSES(open({.pattern = "v3"}), "--tiktoken-pattern v3");
}

TEST_F(Tiktoken, ReadsMegatronsJsonToo) {
  Json json;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    json.push_back({{"rank", rank}, {"token_bytes", base64(ranks[rank])}, {"token_str", ""}});
  const auto expected = open()->encode("Some text, and more.");
  write_file(folder / "t", json.dump());
  EXPECT_EQ(open()->encode("Some text, and more."), expected);
  json[3]["rank"] = 4;
  EXPECT_THAT(refusal(json.dump()), HasSubstr("t: [3].rank is 4, expected a whole number from 3"));
  json[3] = {{"rank", 3}, {"token_bytes", "?"}};
  EXPECT_THAT(refusal(json.dump()), HasSubstr("t: [3].token_bytes is \"?\", expected base64"));
}

TEST_F(Tiktoken, RefusesDamagedFiles) {
  const std::string whole = lines();
  EXPECT_EQ(refusal(whole), "");
  EXPECT_THAT(refusal(whole + "?? 1\n"),
              AllOf(HasSubstr("t:" + std::to_string(ranks.size() + 1) + ": ?? 1, expected")));
  EXPECT_THAT(refusal(whole + base64("zzz") + " 1\n"), HasSubstr("expected \"base64 "));
  EXPECT_THAT(refusal(whole + base64("a") + " " + std::to_string(ranks.size())),
              HasSubstr("is there twice"));
  EXPECT_THAT(refusal(whole.substr(0, whole.find('\n', 500) + 1)), HasSubstr("does not fit"));
  EXPECT_THAT(refusal(whole, {.vocab_size = 1 << 20}), HasSubstr("does not fit"));
  EXPECT_THAT(refusal(whole, {.special_tokens = 3}),
              HasSubstr("--tiktoken-num-special-tokens 3: expected 7 to"));
  ranks[40] = "two";
  EXPECT_THAT(refusal(lines()), HasSubstr("lacks a token for the byte"));
}

}  // namespace
}  // namespace anymesh
