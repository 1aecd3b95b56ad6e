#include "framework/data/tokenizers/tokenizer.h"

#include <nlohmann/json.hpp>
#include <random>

#include "framework/data/tokenizers/pipeline_tokenizer.h"
#include "tests/data/data_files.h"

namespace anymesh {
namespace {

std::unique_ptr<Tokenizer> trained_bpe() {
  return make_tokenizer("GPT2BPETokenizer", data_fixture("bpe/vocab.json"),
                        data_fixture("bpe/merges.txt"));
}

std::vector<std::string> words(std::string_view text) {
  Pieces pieces{.views = {text}};
  split_gpt2_words(pieces);
  return {pieces.views.begin(), pieces.views.end()};
}

TEST(Gpt2Words, EqualsTheRegularExpression) {
  for (const auto& row : nlohmann::json::parse(read_file(data_fixture("bpe/golden.json")))) {
    EXPECT_EQ(words(row["text"].get<std::string>()), row["words"].get<std::vector<std::string>>());
  }
}

TEST(Gpt2Words, TakesBytesThatAreNotUtf8ForPunctuation) {
  EXPECT_THAT(words("a\xff\xfe b"), ElementsAre("a", "\xff\xfe", " b"));
  EXPECT_THAT(words("\xc3"), ElementsAre("\xc3"));                          // cut short
  EXPECT_THAT(words("x\xe2\x82"), ElementsAre("x", "\xe2\x82"));            // cut short
  EXPECT_THAT(words("x\xc1\x81y"), ElementsAre("x", "\xc1\x81", "y"));      // an overlong A
  EXPECT_THAT(words("\xed\xa0\x80"), ElementsAre("\xed\xa0\x80"));          // a surrogate
  EXPECT_THAT(words("\xf4\x90\x80\x80"), ElementsAre("\xf4\x90\x80\x80"));  // past U+10FFFF
}

TEST(Gpt2Bpe, EqualsTheReference) {
  const auto tokenizer = trained_bpe();
  EXPECT_EQ(tokenizer->vocab_size(), 702);
  EXPECT_EQ(tokenizer->eod(), 701);
  for (int pass = 0; pass < 2; ++pass) {  // the second from the cache
    for (const auto& row : nlohmann::json::parse(read_file(data_fixture("bpe/golden.json")))) {
      const auto text = row["text"].get<std::string>();
      const auto ids = tokenizer->encode(text);
      EXPECT_EQ(ids, row["ids"].get<std::vector<int32_t>>()) << row["text"];
      EXPECT_EQ(tokenizer->decode(ids), text);
    }
  }
}

TEST(Gpt2Bpe, RoundTripsAnyBytes) {
  const auto tokenizer = trained_bpe();
  std::mt19937 rng(1);
  for (int i = 0; i < 200; ++i) {
    std::string text(rng() % 200, ' ');
    for (char& c : text) c = static_cast<char>(rng() % (i % 2 ? 256 : 128));
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
}

TEST(Gpt2Bpe, MergesEveryOccurrenceOfAPairBeforeTheNext) {
  // "abc" can be made in two ways. After the first (a, bc) the pair (abc, a) has the lowest rank,
  // but the second (a, bc) is merged before it.
  ScratchFolder folder;
  auto vocab = nlohmann::json::parse(read_file(data_fixture("v257.json")));
  for (const char* token : {"ab", "abc", "abca", "bc"}) vocab[token] = vocab.size();
  write_file(folder / "vocab.json", vocab.dump());
  write_file(folder / "merges.txt", "b c\nabc a\na bc\n");
  const auto tokenizer =
      make_tokenizer("GPT2BPETokenizer", folder / "vocab.json", folder / "merges.txt");
  EXPECT_THAT(tokenizer->encode("abcabc"), ElementsAre(258, 258));
}

TEST(Gpt2Bpe, LongWordsTakeNoQuadraticTime) {
  const auto tokenizer = trained_bpe();
  const std::string text(1 << 20, 'e');
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
}

TEST(Gpt2Bpe, EndOfTextInATextIsText) {
  const auto tokenizer = trained_bpe();
  const auto ids = tokenizer->encode("<|endoftext|>");
  EXPECT_GT(ids.size(), 1u);
  EXPECT_EQ(tokenizer->decode(std::vector{tokenizer->eod()}), "<|endoftext|>");
}

TEST(Gpt2Bpe, RefusesIdsOutsideTheVocabulary) {
  EXPECT_REFUSES(trained_bpe()->decode(std::vector<int32_t>{702}), "token 702 is outside [0, 702)");
  EXPECT_REFUSES(trained_bpe()->decode(std::vector<int32_t>{-1}), "token -1");
}

class DamagedVocabulary : public ::testing::Test {
 protected:
  std::string open(const std::string& vocab, const std::string& merges) {
    write_file(folder / "v.json", vocab);
    write_file(folder / "m.txt", merges);
    return message_of(
        [&] { make_tokenizer("GPT2BPETokenizer", folder / "v.json", folder / "m.txt"); });
  }

  ScratchFolder folder;
  const nlohmann::json whole = nlohmann::json::parse(read_file(data_fixture("v257.json")));
};

TEST_F(DamagedVocabulary, IsRefusedWithTheReason) {
  using Json = nlohmann::json;
  const auto with = [&](const char* token, const Json& id) {
    Json vocab = whole;
    vocab[token] = id;
    return vocab.dump();
  };
  Json shorter = whole, renamed = whole;
  shorter.erase("<|endoftext|>");
  renamed.erase("<|endoftext|>");
  renamed["other"] = 256;
  const std::tuple<std::string, const char*, const char*> cases[] = {
      {whole.dump(), "#version: 0.2\n\n", ""},
      {whole.dump(), "", ""},
      {with("!", 257), "", "v.json: token \"!\" has id 257, expected each of 0 to 256"},
      {with("!", 1), "", "has id 1, expected each of 0 to 256 once"},
      {with("!", -1), "", "has id -1"},
      {with("!", "x"), "", "has id \"x\""},
      {shorter.dump(), "", "lacks the token \"<|endoftext|>\""},
      {renamed.dump(), "", "lacks the token \"<|endoftext|>\""},
      {"[]", "", "expected one JSON object"},
      {"{\"a\"", "", "v.json: "},
      {"", "", "v.json: "},
      {whole.dump(), "#version: 0.2\na b\n", "m.txt:2: \"ab\" is not in the voc"},
      {whole.dump(), "a xyz\n", "m.txt:1: \"xyz\" is not in the vocabulary"},
      {whole.dump(), "a\n", "m.txt:1: expected two tokens"},
      {whole.dump(), "a b c\n", "m.txt:1: expected two tokens"}};
  for (const auto& [vocab, merges, expected] : cases) {
    const std::string message = open(vocab, merges);
    EXPECT_EQ(message.empty(), *expected == '\0') << message;
    EXPECT_THAT(message, HasSubstr(expected));
  }
}

// A package of transformers with vocab.json and merges.txt in GPT-2's form.
class Package : public ::testing::Test {
 protected:
  std::string open(const char* beside, const nlohmann::json& settings) {
    std::filesystem::remove(folder / "tokenizer.json");
    std::filesystem::copy_file(data_fixture("v257.json"), folder / "vocab.json",
                               std::filesystem::copy_options::skip_existing);
    write_file(folder / "merges.txt", "");
    write_file(folder / beside,
               settings.is_string() ? settings.get<std::string>() : settings.dump());
    return message_of(
        [&] { make_tokenizer("GPT2BPETokenizer", folder / "vocab.json", folder / "merges.txt"); });
  }

  ScratchFolder folder;
  const nlohmann::json gpt2 = {
      {"added_tokens", {{{"id", 256}, {"content", "<|endoftext|>"}}}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"model", {{"type", "BPE"}, {"end_of_word_suffix", ""}, {"vocab", {{"a", 1}}}}}};
};

TEST_F(Package, OfAnotherTokenizerIsRefusedByItsSetting) {
  EXPECT_EQ(open("tokenizer.json", gpt2), "");
  auto alone = gpt2;
  alone["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {gpt2["pre_tokenizer"]}}};
  EXPECT_EQ(open("tokenizer.json", alone), "");
  auto digits = alone;
  digits["pre_tokenizer"]["pretokenizers"].push_back({{"type", "Digits"}});
  EXPECT_THAT(open("tokenizer.json", digits),
              HasSubstrs("tokenizer.json says that this tokenizer does not split text as",
                         "its pre_tokenizer is {", "Digits",
                         "Use --tokenizer-type HFTokenizer --tokenizer-model /"));
  const std::tuple<const char*, const char*, nlohmann::json> changes[] = {
      {"/pre_tokenizer", "its pre_tokenizer is null", nullptr},
      {"/pre_tokenizer/use_regex", "its pre_tokenizer is", false},
      {"/pre_tokenizer/add_prefix_space", "its pre_tokenizer is", true},
      {"/normalizer", "its normalizer is {\"type\":\"NFC\"}", {{"type", "NFC"}}},
      {"/model/type", "its model.type is \"WordPiece\"", "WordPiece"},
      {"/model/ignore_merges", "its model.ignore_merges is true", true},
      {"/model/end_of_word_suffix", "its model.end_of_word_suffix is \"</w>\"", "</w>"}};
  for (const auto& [pointer, expected, value] : changes) {
    auto changed = gpt2;
    changed[nlohmann::json::json_pointer(pointer)] = value;
    EXPECT_THAT(open("tokenizer.json", changed), HasSubstr(expected));
  }
  EXPECT_THAT(open("tokenizer.json", "{"), HasSubstr("tokenizer.json: is no JSON"));
}

TEST_F(Package, WithoutATokenizerJsonIsKnownByItsClass) {
  EXPECT_EQ(open("tokenizer_config.json", {{"model_max_length", 1024}}), "");
  EXPECT_EQ(open("tokenizer_config.json", {{"tokenizer_class", "GPT2Tokenizer"}}), "");
  EXPECT_THAT(open("tokenizer_config.json", {{"tokenizer_class", "Qwen2Tokenizer"}}),
              HasSubstr("its tokenizer_class is \"Qwen2Tokenizer\""));
  EXPECT_THAT(open("tokenizer_config.json", {{"add_prefix_space", true}}),
              HasSubstr("its add_prefix_space is true"));
}

// Gives each file where another flag's belongs.
TEST(TokenizerFiles, OfAnotherKindAreRecognised) {
  const ScratchFolder folder;
  const auto file = [&](const char* name, const std::string& text) {
    write_file(folder / name, text);
    return folder / name;
  };
  const std::string model = data_fixture("sentencepiece.model"), vocab = data_fixture("v257.json"),
                    merges = file("m", "#version: 0.2\n"),
                    json = file("j", R"({"added_tokens": [], "pre_tokenizer": null, "model": {}})"),
                    tiktoken = file("t", "IQ== 0\nIg== 1\nIw== 2\n"),
                    list = file("l", "<unk>\t0\n<s>\t0\n"),
                    pointer = file("p", "version https://git-lfs.github.com/spec/v1\noid sha256:0"),
                    gzip = file("z", "\x1f\x8b\x08");
  const std::pair<std::string, const char*> others[] = {
      {json, "is a tokenizer.json of transformers; expected"},
      {tiktoken, "is a file of tiktoken; expected"},
      {list, "the list of a SentencePiece model's pieces; expected"},
      {pointer, "is a git-lfs pointer"},
      {gzip, "is compressed by gzip"},
      {folder / "", "is a folder, expected a file"},
      {"/dev/null", "is a device, expected a file"},
      {folder / "no", "cannot open: No such file"}};
  const auto bpe = [](const std::string& v, const std::string& m) {
    return message_of([&] { make_tokenizer("GPT2BPETokenizer", v, m); });
  };
  const auto pieces = [](const std::string& m) {
    return message_of([&] { make_tokenizer("GPTSentencePieceTokenizer", "", "", m); });
  };
  EXPECT_EQ(bpe(vocab, merges), "");
  EXPECT_EQ(pieces(model), "");
  for (const auto& [other, expected] : others) {
    EXPECT_THAT(bpe(other, merges), HasSubstr(expected));
    EXPECT_THAT(bpe(vocab, other), HasSubstr(expected));
    EXPECT_THAT(pieces(other), HasSubstr(expected));
  }
  EXPECT_THAT(bpe(model, merges),
              HasSubstr("is a SentencePiece model; expected GPT-2's vocab.json"));
  EXPECT_THAT(bpe(merges, vocab), HasSubstr("is a merges.txt; expected GPT-2's vocab.json"));
  EXPECT_THAT(bpe(vocab, vocab), HasSubstr("is a vocab.json; expected GPT-2's merges.txt"));
  EXPECT_THAT(pieces(vocab), HasSubstr("is a vocab.json; expected the .model file"));
  const auto model_of = [](const char* type, const std::string& m) {
    return message_of([&] { make_tokenizer(type, "", "", m); });
  };
  EXPECT_THAT(bpe(json, merges),
              HasSubstr("Give it as --tokenizer-model, with --tokenizer-type HFTokenizer"));
  EXPECT_THAT(bpe(tiktoken, merges), HasSubstr("with --tokenizer-type TikTokenizer"));
  EXPECT_THAT(model_of("HFTokenizer", model),
              HasSubstr("is a SentencePiece model; expected a tokenizer.json (--tokenizer-model)"));
  EXPECT_THAT(model_of("HFTokenizer", tiktoken), HasSubstr("is a file of tiktoken; expected"));
  EXPECT_THAT(model_of("TikTokenizer", vocab),
              HasSubstr("is a vocab.json; expected a file of tiktoken (--tokenizer-model)"));
}

TEST(ByteLevel, IdsAreBytes) {
  const auto tokenizer = make_tokenizer("ByteLevelTokenizer", "", "");
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->eod(), 256);
  EXPECT_EQ(tokenizer->bos(), 256);
  EXPECT_THAT(tokenizer->encode("A\xc3\xa9\n"), ElementsAre(65, 0xc3, 0xa9, 10));
  EXPECT_THAT(tokenizer->encode(""), IsEmpty());
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(all)), all);
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{72, 256}), "H<|endoftext|>");
  EXPECT_REFUSES(tokenizer->decode(std::vector<int32_t>{257}), "token 257 is outside [0, 257)");
}

TEST(MakeTokenizer, RefusesFlagsThatDoNotFit) {
  struct Case {
    const char *type, *vocab, *merges, *model, *expected;
  };
  const Case cases[] = {
      {"BertWordPieceCase", "", "", "", "--tokenizer-type BertWordPieceCase: expected"},
      {"GPT2BPETokenizer", "v", "", "", "needs --vocab-file and --merge-file"},
      {"GPT2BPETokenizer", "/no/v", "/no/m", "", "/no/v: cannot open"},
      {"ByteLevelTokenizer", "v", "", "", "takes no --vocab-file"},
      {"ByteLevelTokenizer", "", "", "m", "ByteLevelTokenizer takes no --tokenizer-model"},
      {"SentencePieceTokenizer", "", "", "", "SentencePieceTokenizer takes --tokenizer-model"},
      {"HFTokenizer", "v", "", "m", "takes --tokenizer-model, and no vocabulary or merge file"}};
  for (const Case& c : cases)  // clang 14 captures no structured bindings
    EXPECT_REFUSES(make_tokenizer(c.type, c.vocab, c.merges, c.model), c.expected);
}

}  // namespace
}  // namespace anymesh
