#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "framework/data/tokenizers/flat_map.h"
#include "framework/data/tokenizers/json_node.h"
#include "framework/data/tokenizers/vocabulary.h"

namespace anymesh {

// Turns one piece of text into ids: BPE or Unigram. One object serves one thread.
class TokenModel {
 public:
  virtual ~TokenModel() = default;
  virtual void encode(std::string_view piece, std::vector<int32_t>& ids) = 0;
};

// Reads the "model" of a tokenizer.json, and its tokens into `vocabulary`. A "vocab" that is an
// object comes as its text, `vocab`: a JsonFile takes seconds for a million members. With `bytes`,
// pieces are bytes that the tokens spell (characters.h). Throws a UserError for a type that is not
// supported.
std::unique_ptr<TokenModel> read_token_model(const JsonNode& node, std::string_view vocab,
                                             bool bytes, Vocabulary& vocabulary);

// A byte-pair encoding's ways beside merging. The names are of tokenizer.json.
struct BpeOptions {
  bool bytes = false;          // the units of a piece are bytes, not characters
  bool ignore_merges = false;  // a piece that is a token is that token
  bool byte_fallback = false;  // a character without a token is its bytes' tokens <0xE2>
  bool fuse_unk = false;       // several unknown units in a row are one unk_token
  std::optional<int32_t> unk;  // stands for a unit without a token; none: it is dropped
  // Every occurrence of a pair is merged before a pair that results, whatever its rank is. So does
  // GPT-2's own code. Others merge the pair of the lowest rank at any time.
  bool whole_passes = false;
};

// A byte-pair encoding: a piece's units are merged two by two, the pair of the lowest rank first.
class Bpe final : public TokenModel {
 public:
  Bpe(const Vocabulary& vocabulary, BpeOptions options);

  // Merges of a pair that has one already replace it.
  void add_merge(int32_t left, int32_t right, uint32_t rank, int32_t result);

  void encode(std::string_view piece, std::vector<int32_t>& ids) override;

 private:
  struct Merge {
    uint32_t rank;
    int32_t result;
  };
  // A token of a piece while it is being merged; removed ones have id -1.
  struct Symbol {
    int32_t id;
    uint32_t previous, next;
  };

  void add_symbols(std::string_view piece);
  void add_symbol(int32_t id);
  bool add_fallback(std::string_view unit);
  int32_t unit_at(std::string_view rest, size_t& size) const;
  const Merge* merge_at(uint32_t left) const;
  void push_candidate(uint32_t left);
  void push_neighbours(uint32_t left);
  void merge_symbols();

  BpeOptions options_;
  StringMap<int32_t> words_;  // every token, for ignore_merges
  std::array<int32_t, 256> byte_units_;
  std::array<int32_t, 256> byte_tokens_;  // <0x00> to <0xFF>
  FlatMap<int32_t> characters_;
  FlatMap<Merge> merges_;
  std::vector<int32_t> results_;  // by rank

  std::vector<Symbol> symbols_;
  std::vector<uint64_t> candidates_;  // a heap of rank << 32 | left symbol
  std::vector<uint32_t> deferred_;    // symbols whose neighbours wait for the pass to end
};

// A unigram language model: a piece becomes the tokens whose scores have the greatest sum. Among
// several such ways, the one whose last token is longest wins. `scores` are by id. A character
// without a token scores 10 less than the least; several such in a row are one `unk`, or with
// `byte_fallback` their bytes' tokens. Without `unk`, encode() throws a UserError for one.
std::unique_ptr<TokenModel> make_unigram(const Vocabulary& vocabulary, std::vector<double> scores,
                                         std::optional<int32_t> unk, bool byte_fallback);

}  // namespace anymesh
