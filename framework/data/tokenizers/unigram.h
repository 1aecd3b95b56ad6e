#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "framework/data/tokenizers/byte_trie.h"
#include "framework/data/tokenizers/token_model.h"

namespace anymesh {

// A unigram language model: a piece becomes the tokens whose scores have the greatest sum.
// several such ways, the one whose last token is longest wins.
class Unigram final : public TokenModel {
 public:
  // `scores` are by id. A character without a token scores 10 less than the least; several such in
  // a row are one `unk`, or with `byte_fallback` their bytes' tokens.
  Unigram(const Vocabulary& vocabulary, std::vector<double> scores, std::optional<int32_t> unk,
          bool byte_fallback);

  // Throws a UserError for a character without a token if there is no `unk`.
  void encode(std::string_view piece, std::vector<int32_t>& ids) override;

 private:
  // The best way to a place in the piece.
  struct Step {
    double score = 0;
    size_t from = 0;
    int32_t token = -1;  // the last one; -1: no way leads here
  };

  void find_ways(std::string_view piece);
  void append(std::string_view text, std::vector<int32_t>& ids) const;

  const Vocabulary& vocabulary_;
  std::vector<double> scores_;
  double unk_score_ = 0;
  std::optional<int32_t> unk_;
  bool byte_fallback_;
  ByteTrie trie_;
  std::vector<Step> steps_;               // by byte of the piece
  std::vector<std::string_view> tokens_;  // the last piece's, from its end
};

}  // namespace anymesh
