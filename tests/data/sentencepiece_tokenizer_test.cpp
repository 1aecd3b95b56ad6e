#include <sentencepiece_trainer.h>

#include <map>

#include "framework/data/tokenizers/tokenizer.h"
#include "tests/data/data_files.h"

namespace anymesh {
namespace {

// A model of 400 pieces trained on the licence texts, with <unk> 0, <s> 1, </s> 2 unless told
// otherwise.
class SentencePiece : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { plain_ = train(""); }

  static std::string train(const std::string& more) {
    std::string model;
    const auto status = sentencepiece::SentencePieceTrainer::Train(
        "--input=" + data_fixture("text.jsonl") +
            " --vocab_size=400 --model_type=bpe --byte_fallback=true --minloglevel=2 " + more,
        nullptr, &model);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return model;
  }

  std::unique_ptr<Tokenizer> open(const std::string& type, const std::string& model) {
    write_file(folder_ / "m.model", model);
    return make_tokenizer(type, "", "", folder_ / "m.model");
  }
  std::unique_ptr<Tokenizer> special() { return open("SentencePieceTokenizer", plain_); }
  std::unique_ptr<Tokenizer> gpt() { return open("GPTSentencePieceTokenizer", plain_); }

  static std::string plain_;
  ScratchFolder folder_;
};

std::string SentencePiece::plain_;

TEST_F(SentencePiece, OfGptHasThePiecesOfTheModel) {
  const auto tokenizer = gpt();
  EXPECT_EQ(tokenizer->vocab_size(), 400);
  EXPECT_EQ(tokenizer->eod(), 2);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(open("GPTSentencePieceTokenizer", train("--bos_id=-1 --eos_id=1"))->bos(), 1);
  const std::string text = "The License is granted, \xc3\xa9\xf0\x9f\x90\x8d included.";
  const auto ids = tokenizer->encode(text);
  EXPECT_LT(ids.size(), text.size());
  EXPECT_EQ(tokenizer->decode(ids), text);
  EXPECT_THAT(tokenizer->encode(""), IsEmpty());
  EXPECT_EQ(tokenizer->decode({}), "");
  // Marks in a text are text.
  EXPECT_GT(tokenizer->encode("</s>").size(), 1u);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("a</s>b<EOD>")), "a</s>b<EOD>");
}

TEST_F(SentencePiece, OfLlama2BeginsTextsWithItsMark) {
  const auto tokenizer = open("Llama2Tokenizer", plain_);
  EXPECT_THAT(tokenizer->around_text().before, ElementsAre(1));
  EXPECT_THAT(gpt()->around_text().before, IsEmpty());
  EXPECT_THAT(special()->around_text().before, IsEmpty());
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eod(), 2);
  EXPECT_THAT(tokenizer->text_ends(), ElementsAre(2));
  EXPECT_EQ(tokenizer->encode("The License"), gpt()->encode("The License"));
  EXPECT_REFUSES(open("Llama2Tokenizer", train("--bos_id=-1 --eos_id=1")),
                 "the model has no <s> to begin texts with; use --tokenizer-type GPTSent");
}

TEST_F(SentencePiece, DecodesWhatTheModelNormalised) {
  const auto tokenizer = gpt();
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("  two  spaces ")), "two spaces");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("\xef\xac\x81x")), "fix");    // a ligature, by NFKC
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("a\xff")), "a\xef\xbf\xbd");  // no UTF-8: U+FFFD
}

TEST_F(SentencePiece, WithSpecialTokensAddsThoseThatTheModelLacks) {
  const auto tokenizer = special();
  EXPECT_EQ(tokenizer->vocab_size(), 405);  // CLS SEP EOD MASK PAD; <s> and </s> are pieces
  EXPECT_EQ(tokenizer->eod(), 402);
  EXPECT_EQ(tokenizer->bos(), 1);
  auto expected = tokenizer->encode("one");
  const auto two = tokenizer->encode("two");
  expected.insert(expected.end(), {402, 1, 404});
  expected.insert(expected.end(), two.begin(), two.end());
  expected.push_back(2);
  const std::string text = "one<EOD><s><PAD>two</s>";
  EXPECT_EQ(tokenizer->encode(text), expected);
  EXPECT_EQ(tokenizer->decode(expected), text);
  EXPECT_THAT(tokenizer->encode("<CLS><SEP><MASK>"), ElementsAre(400, 401, 403));
}

TEST_F(SentencePiece, UsesTheModelsOwnSpecialTokens) {
  const auto own = open("SentencePieceTokenizer",
                        train("--user_defined_symbols=<EOD> --pad_id=3 --bos_id=-1 --eos_id=-1"));
  EXPECT_EQ(own->eod(), own->encode("<EOD>").front());
  EXPECT_LT(own->eod(), 400);
  EXPECT_EQ(own->vocab_size(), 405);  // CLS SEP MASK BOS EOS
  EXPECT_THAT(own->encode("<pad><BOS><EOS>"), ElementsAre(3, 403, 404));
}

TEST_F(SentencePiece, RefusesWhatIsNoModelOrHasNoEnd) {
  const auto opening = [&](const std::string& type, const std::string& model) {
    return message_of([&] { open(type, model); });
  };
  for (const std::string& bytes : {std::string(), std::string("text"), std::string(100, '\xff'),
                                   plain_.substr(0, plain_.size() / 2)}) {
    EXPECT_THAT(opening("GPTSentencePieceTokenizer", bytes),
                HasSubstr("m.model: cannot read the SentencePiece model (--tokenizer-model): "));
  }
  EXPECT_THAT(opening("GPTSentencePieceTokenizer", train("--eos_id=-1")),
              HasSubstr("the model has no </s> to end documents with"));
  EXPECT_REFUSES(make_tokenizer("SentencePieceTokenizer", "", "", "/no/m"),
                 "/no/m: cannot open: No such file or directory (--tokenizer-model)");
  const auto tokenizer = special();
  EXPECT_REFUSES(tokenizer->decode(std::vector<int32_t>{405}), "token 405 is outside [0, 405)");
  EXPECT_REFUSES(tokenizer->decode(std::vector<int32_t>{-1}), "token -1");
}

}  // namespace
}  // namespace anymesh
