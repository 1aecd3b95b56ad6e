#pragma once

#include <memory>
#include <string>

#include "framework/data/tokenizer.h"

namespace anymesh {

// Megatron's two tokenizers over a SentencePiece model (--tokenizer-model):
//
//   GPTSentencePieceTokenizer   the model's pieces; documents end with its </s>
//   SentencePieceTokenizer      those, then such of <CLS> <SEP> <EOD> <MASK> <PAD> <BOS> <EOS> as
//                               the model has no piece for; documents end with <EOD>. These and
//                               the model's own pad, <s> and </s> are also found in the text.
//
// decode(encode(x)) is x as the model normalises it: spaces, Unicode forms, and what it has no
// piece for are the model's affair. A file that is no model, and one without </s> for the first of
// them, is refused.
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string& model_file);
std::unique_ptr<Tokenizer> make_gpt_sentencepiece_tokenizer(const std::string& model_file);

}  // namespace anymesh
