
#include <nlohmann/json.hpp>

#include "framework/data/tokenizers/tokenizer.h"
#include "tests/data/data_files.h"

namespace anymesh {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

std::string layout(const std::string& name) { return data_fixture("tokenizers/" + name + ".json"); }

// Layouts of well-known models, and what the tokenizers package makes of texts
// (tests/interop/hf_tokenizers.py).
class Layout : public ::testing::TestWithParam<const char*> {};

TEST_P(Layout, EqualsThePackage) {
  const auto tokenizer = make_tokenizer("HFTokenizer", "", "", layout(GetParam()));
  const Json golden = Json::parse(read_file(layout(std::string(GetParam()) + ".golden")));
  ASSERT_GT(golden.size(), 100u);
  for (int pass = 0; pass < 2; ++pass) {  // the second from the cache
    for (const auto& row : golden) {
      const Ids ids = tokenizer->encode(row[0].get<std::string>());
      EXPECT_EQ(ids, row[1].get<Ids>()) << row[0];
      EXPECT_EQ(tokenizer->decode(ids), row[2].get<std::string>()) << row[0];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HuggingFace, Layout,
                         ::testing::Values("gpt2", "llama2", "llama3", "qwen2", "smollm", "neox",
                                           "gemma", "mistral", "nemo", "t5", "xlnet",
                                           "bytes_unigram", "deepseek", "falcon", "words"),
                         [](const auto& info) { return std::string(info.param); });

// A package of transformers with one of the layouts.
class HuggingFacePackage : public ::testing::Test {
 protected:
  HuggingFacePackage() { use("llama3"); }

  void use(const std::string& name) {
    tokenizer = Json::parse(read_file(layout(name)));
    write_file(folder / "tokenizer.json", tokenizer.dump());
  }
  std::unique_ptr<Tokenizer> open() { return make_tokenizer("HFTokenizer", "", "", folder / ""); }
  // Returns the refusal of the layout with one value changed.
  std::string with(const std::string& pointer, const Json& value) {
    Json changed = tokenizer;
    changed[Json::json_pointer(pointer)] = value;
    write_file(folder / "tokenizer.json", changed.dump());
    return message_of([&] { open(); });
  }

  ScratchFolder folder;
  Json tokenizer;
};

TEST_F(HuggingFacePackage, IsAFolderOrItsFile) {
  for (const char* type : {"HFTokenizer", "HuggingFaceTokenizer"})
    for (const char* name : {"", "tokenizer.json"})
      EXPECT_EQ(make_tokenizer(type, "", "", folder / name)->vocab_size(), 802);
  std::filesystem::remove(folder / "tokenizer.json");
  EXPECT_REFUSES(open(), "tokenizer.json: cannot open", "--tokenizer-model");
}

TEST_F(HuggingFacePackage, NamesItsSpecialTokens) {
  const int32_t begin = 0, end = 1, eot = 800;  // of the fixture
  EXPECT_EQ(open()->eod(), end);
  EXPECT_EQ(open()->bos(), begin);
  EXPECT_THAT(open()->around_text().before, ElementsAre(begin));
  EXPECT_THAT(open()->text_ends(), ElementsAre(end));

  write_file(folder / "generation_config.json", R"({"eos_token_id": [1, 800, 70000]})");
  EXPECT_THAT(open()->text_ends(), ElementsAre(end, eot));
  write_file(folder / "special_tokens_map.json", R"({"eos_token": {"content": "<|eot_id|>"}})");
  EXPECT_EQ(open()->eod(), eot);
  EXPECT_THAT(open()->text_ends(), ElementsAre(eot, end));
  write_file(folder / "tokenizer_config.json",
             R"({"eos_token": "<|end_of_text|>", "bos_token": "a", "add_bos_token": false,
                 "added_tokens_decoder": {}})");
  EXPECT_EQ(open()->eod(), end);
  EXPECT_EQ(open()->bos(), begin);  // as the post-processor has it
  EXPECT_THAT(open()->around_text().before, ElementsAre(begin));
  write_file(folder / "special_tokens_map.json", "{}");
  write_file(folder / "tokenizer_config.json", R"({"eos_token": "none"})");
  EXPECT_EQ(open()->eod(), 802);  // a new one
  write_file(folder / "tokenizer_config.json", R"({"eos_token": 7})");
  EXPECT_REFUSES(open(), "tokenizer_config.json: eos_token is 7, expected a text");
}

// As AutoTokenizer does; tests/interop/hf_tokenizers.py compares with it.
TEST_F(HuggingFacePackage, HasTheTokensThatTheFilesBesideItName) {
  use("gpt2");
  const int32_t size = open()->vocab_size();
  const auto ids = [&](const std::string& text) { return open()->encode(text); };
  const int32_t a = ids("a")[0], b = ids("b")[0], space = ids(" ")[0];
  const char* plain[] = {
      R"("additional_special_tokens": ["<x>", "<y>"])",
      R"("extra_special_tokens": ["<x>", {"content": "<y>", "special": true}])",
      R"("extra_special_tokens": {"y_token": "<x>", "x_token": "<y>"})",
      R"("z_token": "<x>", "y_token": "<y>")",
      R"("pad_token": "<x>", "mask_token": {"__type": "AddedToken", "content": "<y>"})",
      R"("bos_token": "<x>", "cls_token": "<x>", "additional_special_tokens": ["<y>", "<x>"])",
      R"("added_tokens_decoder": {"9001": {"content": "<y>"}, "9000": {"content": "<x>"}})"};
  for (const std::string config : plain) {
    write_file(folder / "tokenizer_config.json", "{" + config + "}");
    EXPECT_EQ(open()->vocab_size(), size + 2) << config;
    EXPECT_THAT(ids("a<x>b<y> "), ElementsAre(a, size, b, size + 1, space)) << config;
    EXPECT_EQ(open()->decode(Ids{size, a, size + 1}), "<x>a<y>") << config;
  }
  write_file(folder / "tokenizer_config.json",
             R"({"pad_token": "a", "added_tokens_decoder": {"0": {"content": "<x>", "rstrip": true},
                 "1": {"content": "<y>", "lstrip": true, "special": true, "normalized": true}}})");
  EXPECT_THAT(ids("b<x> <y>b <y>"), ElementsAre(b, size, size + 1, b, size + 1));
  EXPECT_EQ(ids("ba" + std::string("na")).size(), 4u);  // "a" stands alone
  write_file(folder / "tokenizer_config.json",
             R"({"split_special_tokens": true, "eos_token": "<z>",
                 "added_tokens_decoder": {"0": {"content": "<x>"}}})");
  EXPECT_THAT(ids("a<x>"), ElementsAre(a, size));
  EXPECT_EQ(open()->eod(), size + 1);
  EXPECT_GT(ids("a<z>").size(), 3u);
}

TEST_F(HuggingFacePackage, OfAnOlderVersionHasItsTokensInMoreFiles) {
  use("gpt2");
  const int32_t size = open()->vocab_size();
  write_file(folder / "added_tokens.json", R"({"<y>": 9001, "<x>": 9000})");
  write_file(folder / "special_tokens_map.json",
             R"({"eos_token": {"content": "<z>", "lstrip": true},
                 "additional_special_tokens": ["<x>", "<w>"]})");
  write_file(folder / "tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  EXPECT_THAT(open()->encode("<x><y> <z><w>"), ElementsAre(size, size + 1, size + 2, size + 3));
  EXPECT_EQ(open()->eod(), size + 2);
  write_file(folder / "tokenizer_config.json", R"({"added_tokens_decoder": {}})");
  EXPECT_EQ(open()->vocab_size(), size);  // the other two count for nothing now
}

TEST_F(HuggingFacePackage, BeginsWithASpaceAsItsClassSays) {
  use("gpt2");
  const auto tokens = [&](const char* config) {
    write_file(folder / "tokenizer_config.json", config);
    return open()->encode("The");
  };
  const Ids without = tokens("{}"), with_space = open()->encode(" The");
  EXPECT_EQ(tokens(R"({"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": true})"),
            with_space);
  EXPECT_EQ(tokens(R"({"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": true})"),
            without);
  tokenizer["pre_tokenizer"]["add_prefix_space"] = true;
  write_file(folder / "tokenizer.json", tokenizer.dump());
  EXPECT_EQ(tokens(R"({"tokenizer_class": "PreTrainedTokenizerFast"})"), with_space);
  EXPECT_EQ(tokens(R"({"tokenizer_class": "GPT2Tokenizer"})"), without);
}

TEST_F(HuggingFacePackage, PutsAroundTextsWhatItsTemplateHas) {
  auto& single = tokenizer["post_processor"]["processors"][1]["single"];
  const Json begin = single[0], text = single[1];
  single = {begin, begin, text, begin};
  write_file(folder / "tokenizer.json", tokenizer.dump());
  EXPECT_THAT(open()->around_text().before, ElementsAre(0, 0));
  EXPECT_THAT(open()->around_text().behind, ElementsAre(0));
  for (const Json& parts : {Json::array({begin}), Json::array({text, begin, text})})
    EXPECT_THAT(with("/post_processor/processors/1/single", parts), HasSubstr("the Sequence A"));
}

// Values below some depth were once left out.
TEST_F(HuggingFacePackage, IsReadToTheDepthThatMessagesState) {
  use("gpt2");
  const auto nested = [&](int levels) {
    Json normalizer = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "b"}};
    for (int i = 0; i < levels; ++i)
      normalizer = {{"type", "Sequence"}, {"normalizers", Json::array({normalizer})}};
    return with("/normalizer", normalizer);
  };
  const int32_t b = open()->encode("b")[0];
  for (const int levels : {4, 60}) {
    EXPECT_EQ(nested(levels), "");
    EXPECT_EQ(open()->encode("a"), Ids{b});
  }
  EXPECT_THAT(nested(64), HasSubstr("tokenizer.json: is JSON that nests deeper than 128 levels"));
}

TEST_F(HuggingFacePackage, WithRulesThatDoubleATextEndsWithAnError) {
  use("gpt2");
  const Json doubled = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}},
             long_one = {{"type", "Replace"},
                         {"pattern", {{"Regex", "a|^"}}},
                         {"content", std::string(1 << 16, 'a')}};
  const Json spelled = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const std::pair<const char*, Json> cases[] = {
      {"/normalizer", {{"type", "Sequence"}, {"normalizers", Json(40, doubled)}}},
      {"/normalizer", long_one},
      {"/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", Json(40, spelled)}}},
      {"/decoder", {{"type", "Sequence"}, {"decoders", Json(40, doubled)}}}};
  for (const auto& [pointer, value] : cases) {
    use("gpt2");
    EXPECT_EQ(with(pointer, value), "");
    const auto opened = open();
    const std::string text = "\u00e9" + std::string(100, 'a');
    EXPECT_REFUSES(opened->decode(opened->encode(text)), "the tokenizer's rules make ") << pointer;
  }
  tokenizer["added_tokens"].push_back({{"id", 800}, {"content", "a"}, {"normalized", true}});
  EXPECT_THAT(with("/normalizer", cases[0].second),
              HasSubstrs("tokenizer.json: added_tokens[", "rules make "));
}

TEST_F(HuggingFacePackage, WithoutATemplateBeginsWithNothing) {
  use("gpt2");
  EXPECT_EQ(open()->bos(), open()->eod());
  EXPECT_THAT(open()->around_text().before, IsEmpty());
  write_file(folder / "tokenizer_config.json", R"({"bos_token": "!", "add_bos_token": true})");
  EXPECT_EQ(open()->bos(), open()->encode("!")[0]);
  EXPECT_THAT(open()->around_text().before, IsEmpty());
}

TEST_F(HuggingFacePackage, WithoutAnEndIsRefused) {
  use("words");
  tokenizer["added_tokens"].erase(1);
  tokenizer["model"]["vocab"].erase("</s>");
  EXPECT_THAT(with("/decoder", nullptr), HasSubstr("nothing says which token ends a document"));
}

TEST_F(HuggingFacePackage, OfUnsupportedPartsIsRefusedByName) {
  const std::tuple<const char*, Json, const char*> cases[] = {
      {"/model/type", "WordPiece", "model.type is WordPiece, a model that is not supported"},
      {"/model/dropout", 0.1, "model.dropout is not 0"},
      {"/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix is set"},
      {"/model/continuing_subword_prefix", "##", "model.continuing_subword_prefix is set"},
      {"/normalizer", {{"type", "BertNormalizer"}}, "normalizer.type is BertNormalizer"},
      {"/pre_tokenizer", {{"type", "BertPreTokenizer"}}, "pre_tokenizer.type is BertPreTok"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "[a[bc]]",
       "pre_tokenizer.pretokenizers[0].pattern.Regex is refused: the regular expression [a[bc]] "
       "has a class inside a class at byte 2"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "[a-z&&[^b]]", "an intersection"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "a{2,3}+", "a {n,m}+"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "(?m:a.)", "the group (?m"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\h", "has \\h"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "(a", "is none: missing closing"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\p{Nope}", "is none: unknown property"},
      {"/pre_tokenizer/pretokenizers/0/pattern", {{"String", ""}}, "String is empty"},
      {"/post_processor", {{"type", "Else"}}, "post_processor.type is Else"},
      {"/decoder", {{"type", "CTC"}}, "decoder.type is CTC, a decoder that is not supported"}};
  for (const auto& [pointer, value, expected] : cases)
    EXPECT_THAT(with(pointer, value), HasSubstrs("tokenizer.json: ", expected));
}

TEST_F(HuggingFacePackage, ThatIsDamagedIsRefusedWithThePlace) {
  const std::tuple<const char*, Json, const char*> cases[] = {
      {"/model", nullptr, "model is null, expected an object"},
      {"/model/vocab", {{"a", 1}, {"b", 1}}, "model.vocab has b with the id 1 of another token"},
      {"/model/vocab/a", -1, "of the token \"a\" is -1, expected a whole number from 0 to"},
      {"/model/vocab/a", 1 << 30, "of the token \"a\" is 1073741824, expected"},
      {"/model/vocab/a", 1.5, "of the token \"a\" is 1.5, expected a whole number"},
      {"/model/merges/3", "a", "model.merges[3] is \"a\", expected two tokens"},
      {"/model/merges/3", "a b c", "model.merges[3] is \"a b c\", expected two tokens"},
      {"/model/merges/3", {"a", "qqq"}, "model.merges[3] needs the token qqq, which is not in"},
      {"/model/merges/3", 7, "model.merges[3] is 7, expected a text"},
      {"/model/unk_token", "?!?", "model.unk_token is ?!?, which is not in model.vocab"},
      {"/model/ignore_merges", 1, "model.ignore_merges is 1, expected true or false"},
      {"/added_tokens/0/id", 5, "added_tokens[0].id is 5, expected 0, which the token"},
      {"/added_tokens/0/content", nullptr, "added_tokens[0].content is null, expected a text"},
      {"/added_tokens", "x", "added_tokens is \"x\", expected a list"},
      {"/pre_tokenizer/pretokenizers", nullptr, "pre_tokenizer.pretokenizers is null, expected a"},
      {"/pre_tokenizer/pretokenizers/0/behavior", "Merged", "behavior is \"Merged\", expected"},
      {"/decoder",
       {{"type", "Strip"}, {"content", "ab"}, {"start", 1}, {"stop", 0}},
       "decoder.content is \"ab\", expected one character"},
      {"/decoder", {{"type", "Sequence"}, {"decoders", {nullptr}}}, "decoders[0] is null"},
      {"/post_processor/processors/1/special_tokens/<|begin_of_text|>/ids/0", 99999,
       "post_processor has the id 99999 of no token"}};
  for (const auto& [pointer, value, expected] : cases)
    EXPECT_THAT(with(pointer, value), HasSubstrs("tokenizer.json: ", expected));
  write_file(folder / "tokenizer.json", R"({"added_tokens": [], "pre_tokenizer": nul)");
  EXPECT_REFUSES(open(), "tokenizer.json: is no JSON");
  const std::string brackets(100000, '['), closed(100000, ']');
  write_file(folder / "tokenizer.json",
             R"({"added_tokens": [], "pre_tokenizer": )" + brackets + closed + "}");
  EXPECT_REFUSES(open(), "nests deeper than 128 levels");
}

TEST_F(HuggingFacePackage, WithACatastrophicExpressionEndsWithAnError) {
  const std::string text = std::string(1 << 12, 'a') + "!b";
  for (const char* pattern : {"(a*)*b", "(a|aa)+b", "(?:(?:a?)+)+b"}) {
    EXPECT_EQ(with("/pre_tokenizer/pretokenizers/0/pattern/Regex", pattern), "");
    EXPECT_REFUSES(open()->encode(text), pattern, "takes too long on a text of 4098 bytes");
  }
}

TEST_F(HuggingFacePackage, TakesLongTextsInLinearTime) {
  for (const char* name : {"llama2", "llama3", "t5"}) {
    use(name);
    const auto opened = open();
    for (const std::string piece : {"e", " ", "\n", "1", "\u4e2d", "!?"}) {
      std::string text;
      while (text.size() < 1 << 20) text += piece;
      EXPECT_GT(opened->encode(text + "x").size(), 1u);
    }
  }
}

TEST_F(HuggingFacePackage, ReplacesBytesThatAreNoUtf8) {
  const auto opened = open();
  EXPECT_EQ(opened->encode("a\xff\xe2\x82z"), opened->encode("a\ufffd\ufffd\ufffdz"));
  // A token may be a part of a character: decoding keeps its bytes.
  std::string bytes;
  for (const int32_t id : opened->encode("\U0001d4d0")) bytes += opened->decode(Ids{id});
  EXPECT_EQ(bytes, "\U0001d4d0");
  EXPECT_REFUSES(opened->decode(Ids{802}), "outside [0, 802)");
}

}  // namespace
}  // namespace anymesh
