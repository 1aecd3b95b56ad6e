// Converts text to token ids and back.
//
//   auto tokenizer = make_tokenizer("GPT2BPETokenizer", "vocab.json", "merges.txt");
//   std::vector<int32_t> ids = tokenizer->encode("Hello world");   // {15496, 995}
//   ids.push_back(tokenizer->eod());                               // <|endoftext|>
//
//   ByteLevelTokenizer   no files; id = byte value, 256 = <|endoftext|>, vocabulary 257
//   GPT2BPETokenizer     GPT-2's byte-level BPE over --vocab-file and --merge-file
//   SentencePieceTokenizer, GPTSentencePieceTokenizer, Llama2Tokenizer
//                        a --tokenizer-model, see make_sentencepiece_tokenizer()
//   HFTokenizer, HuggingFaceTokenizer
//                        a tokenizer.json, see make_huggingface_tokenizer()
//   TikTokenizer         a file of tiktoken, see make_tiktoken_tokenizer()
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

// Tokens to put before and behind each text.
struct AroundText {
  std::vector<int32_t> before, behind;
};

// Caches the words it has seen, so one object serves one thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Adds no token of its own: around_text() has those.
  virtual std::vector<int32_t> encode(std::string_view text) = 0;
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  virtual int32_t vocab_size() const = 0;  // the last id + 1
  virtual int32_t eod() const = 0;         // ends a document
  // The token that a text begins behind: SentencePiece's <s>, else the end of the document before.
  virtual int32_t bos() const { return eod(); }
  // The tokens that calling Megatron's tokenizer puts around each text, be it empty.
  virtual AroundText around_text() const { return {}; }
  // The tokens that end a text when a model writes one: eod(), and those of generation_config.json.
  virtual std::vector<int32_t> text_ends() const { return {eod()}; }
};

// Where special tokens come from in the TikTokenizer, which a file of tiktoken does not say.
struct TiktokenOptions {
  std::string pattern = "v2";  // v1, v2: Megatron's names of its two regular expressions
  int64_t vocab_size = 0;      // with the special tokens; 0: all of the file
  int64_t special_tokens = 1000;
};

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& type, const std::string& vocab_file,
                                          const std::string& merge_file,
                                          const std::string& tokenizer_model = "",
                                          const TiktokenOptions& tiktoken = {});

std::unique_ptr<Tokenizer> make_gpt2_tokenizer(const std::string& vocab_file,
                                               const std::string& merge_file);

// Megatron's three tokenizers over a SentencePiece model (--tokenizer-model):
//
//   GPTSentencePieceTokenizer   the model's pieces; documents end with its </s>
//   Llama2Tokenizer             the same, and each text begins with the model's <s>
//   SentencePieceTokenizer      adds each of <CLS> <SEP> <EOD> <MASK> <PAD> <BOS> <EOS> that the
//                               model has no piece for; documents end with <EOD>. These and the
//                               model's own pad, <s> and </s> are also found in the text.
//
// decode(encode(x)) is x as the model normalises it: it decides on spaces, Unicode forms, and
// text without a piece. Throws for a file that is no model, and for a model without the <s> or </s>
// that the type needs.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string& model_file,
                                                        const std::string& type);

// A tokenizer.json, or the folder that has one. Ids and texts equal those of AutoTokenizer in
// transformers 5, but encode() leaves out the special tokens that it would add, and decode() keeps
// those that it would skip. There are two differences: bytes that are no UTF-8 are U+FFFD before
// encoding, and are kept after decoding by ByteLevel, since later tokens may complete them. The
// file's truncation and padding count for nothing. Unsupported parts are refused by name.
//
// The files beside a tokenizer.json (package_settings.h) add tokens, and say:
//
//   eod()          eos_token, else eos_token_id
//   bos()          the one token that the post_processor puts in front, else bos_token, else
//                  bos_token_id
//   around_text()  the post_processor's tokens: add_bos_token and add_eos_token count for nothing
//                  beside a tokenizer.json
//   text_ends()    eod(), and each eos_token_id
std::unique_ptr<Tokenizer> make_huggingface_tokenizer(const std::string& folder_or_file);

// A file of tiktoken with "base64 rank" lines, or Megatron's JSON list of {"rank", "token_bytes",
// "token_str"}. Ids are as in Megatron: first the special tokens <unk> <s> </s> <mask> <pad> <cls>
// <sep> <SPECIAL_7> <SPECIAL_8> and so on, which are also found in the text, then the ranks.
// Documents end with </s>.
std::unique_ptr<Tokenizer> make_tiktoken_tokenizer(const std::string& file,
                                                   const TiktokenOptions& options);

}  // namespace anymesh
