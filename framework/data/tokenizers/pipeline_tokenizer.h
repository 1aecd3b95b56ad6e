#pragma once

#include <memory>
#include <string>
#include <vector>

#include "framework/data/tokenizers/added_tokens.h"
#include "framework/data/tokenizers/decoder.h"
#include "framework/data/tokenizers/pre_tokenizer.h"
#include "framework/data/tokenizers/token_model.h"
#include "framework/data/tokenizers/tokenizer.h"

namespace anymesh {

// A tokenizer of exchangeable parts. A text goes through them in this order; each may be absent,
// except the model:
//
//   added_tokens     are found, and become their ids
//   normalizer       rewrites the text between them
//   pre_tokenizers   cut it into pieces
//   model            turns each piece into ids
//
// and ids become text through the vocabulary and the decoder.
struct TokenizerParts {
  Vocabulary vocabulary;
  AddedTokens added_tokens;
  std::unique_ptr<Normalizer> normalizer;
  std::vector<std::unique_ptr<PreTokenizer>> pre_tokenizers;
  std::unique_ptr<TokenModel> model;
  std::unique_ptr<Decoder> decoder;  // null: the tokens, with a space between two
  bool any_bytes = false;  // the parts take bytes that are no UTF-8; else U+FFFD stands for each
  int32_t eod = 0, bos = 0;
  AroundText around;
  std::vector<int32_t> text_ends;
};

// Models may refer to the vocabulary, so the parts stay where they are.
std::unique_ptr<Tokenizer> make_pipeline_tokenizer(std::unique_ptr<TokenizerParts> parts);

}  // namespace anymesh
