// Converts text to token ids and back.
//
//   auto tokenizer = make_tokenizer("GPT2BPETokenizer", "vocab.json", "merges.txt");
//   std::vector<int32_t> ids = tokenizer->encode("Hello world");   // {15496, 995}
//   ids.push_back(tokenizer->eod());                               // <|endoftext|>
//
//   ByteLevelTokenizer   no files; id = byte value, 256 = <|endoftext|>, vocabulary 257
//   GPT2BPETokenizer     GPT-2's byte-level BPE over --vocab-file and --merge-file
//   SentencePieceTokenizer, GPTSentencePieceTokenizer
//                        a --tokenizer-model, see make_sentencepiece_tokenizer()
//
// For the first two, "<|endoftext|>" inside a text is ordinary text. Bytes that are not UTF-8 are
// kept as they are, so decode(encode(x)) is x for every x. Vocabularies that lack a byte, a merge's
// result or <|endoftext|> throw. So do vocabularies of tokenizers that split text in another way
// (tokenizer_files.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace anymesh {

// Caches the words it has seen, so one object serves one thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::vector<int32_t> encode(std::string_view text) = 0;
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  virtual int32_t vocab_size() const = 0;
  virtual int32_t eod() const = 0;  // ends a document
  // The token that a text begins behind: SentencePiece's <s>, else the end of the document before.
  virtual int32_t bos() const { return eod(); }
};

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& type, const std::string& vocab_file,
                                          const std::string& merge_file,
                                          const std::string& tokenizer_model = "");

// Megatron's two tokenizers over a SentencePiece model (--tokenizer-model):
//
//   GPTSentencePieceTokenizer   the model's pieces; documents end with its </s>
//   SentencePieceTokenizer      adds each of <CLS> <SEP> <EOD> <MASK> <PAD> <BOS> <EOS> that the
//                               model has no piece for; documents end with <EOD>. These and the
//                               model's own pad, <s> and </s> are also found in the text.
//
// decode(encode(x)) is x as the model normalises it: it decides on spaces, Unicode forms, and
// text without a piece. Throws for a file that is no model, and for a model without </s>
// if the type is GPTSentencePieceTokenizer.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string& model_file,
                                                        bool special_tokens);

// Returns the length of the word at the front of a non-empty text, by GPT-2's pre-tokenizer:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// A byte that is not part of valid UTF-8 counts as punctuation.
size_t next_word(std::string_view text);

}  // namespace anymesh
