#include <algorithm>
#include <limits>

#include "framework/data/tokenizers/byte_trie.h"
#include "framework/data/tokenizers/characters.h"
#include "framework/data/tokenizers/token_model.h"
#include "framework/util/errors.h"
#include "framework/util/utf8.h"

namespace anymesh {
namespace {

class Unigram final : public TokenModel {
 public:
  Unigram(const Vocabulary& vocabulary, std::vector<double> scores, std::optional<int32_t> unk,
          bool byte_fallback)
      : vocabulary_(vocabulary),
        scores_(std::move(scores)),
        unk_(unk),
        byte_fallback_(byte_fallback) {
    constexpr double kPenalty = 10;
    unk_score_ = std::numeric_limits<double>::infinity();
    for (int32_t id = 0; id < static_cast<int32_t>(scores_.size()); ++id) {
      unk_score_ = std::min(unk_score_, scores_[static_cast<size_t>(id)]);
      if (!vocabulary.token(id).empty()) trie_.insert(vocabulary.token(id), id);
    }
    unk_score_ -= kPenalty;
  }

  void encode(std::string_view piece, std::vector<int32_t>& ids) override {
    find_ways(piece);
    tokens_.clear();
    bool after_unk = false;
    for (size_t end = piece.size(); end > 0;) {
      const Step& step = steps_[end];
      const bool is_unk = unk_ && step.token == *unk_;
      if (is_unk && after_unk)
        tokens_.back() = piece.substr(step.from, tokens_.back().size() + end - step.from);
      else
        tokens_.push_back(piece.substr(step.from, end - step.from));
      after_unk = is_unk;
      end = step.from;
    }
    for (size_t i = tokens_.size(); i-- > 0;) append(tokens_[i], ids);
  }

 private:
  // The best way to a place in the piece.
  struct Step {
    double score = 0;
    size_t from = 0;
    int32_t token = -1;  // the last one; -1: no way leads here
  };

  void find_ways(std::string_view piece) {
    steps_.assign(piece.size() + 1, {});
    for (size_t from = 0; from < piece.size();) {
      const std::string_view rest = piece.substr(from);
      const size_t character = decode_utf8(rest).bytes;
      const double here = steps_[from].score;
      bool has_token = false;
      const auto offer = [&](size_t size, int32_t token, double score) {
        Step& step = steps_[from + size];
        if (step.token < 0 || here + score > step.score) step = {here + score, from, token};
        has_token |= size == character;
      };
      trie_.for_each_prefix(rest, [&](size_t size, int32_t token) {
        offer(size, token, scores_[static_cast<size_t>(token)]);
      });
      if (!has_token) {
        if (!unk_)
          throw_error("the tokenizer has no token for ", printable(rest.substr(0, character)));
        offer(character, *unk_, unk_score_);
      }
      from += character;
    }
  }

  void append(std::string_view text, std::vector<int32_t>& ids) const {
    if (const auto id = vocabulary_.find(text); id && *id < static_cast<int32_t>(scores_.size())) {
      ids.push_back(*id);
      return;
    }
    std::vector<int32_t> bytes;
    for (const char c : text)
      if (const auto id = vocabulary_.find(fallback_token(static_cast<uint8_t>(c))))
        bytes.push_back(*id);
    if (byte_fallback_ && bytes.size() == text.size())
      ids.insert(ids.end(), bytes.begin(), bytes.end());
    else
      ids.push_back(*unk_);
  }

  const Vocabulary& vocabulary_;
  std::vector<double> scores_;
  double unk_score_ = 0;
  std::optional<int32_t> unk_;
  bool byte_fallback_;
  ByteTrie trie_;
  std::vector<Step> steps_;               // by byte of the piece
  std::vector<std::string_view> tokens_;  // the last piece's, from its end
};

}  // namespace

std::unique_ptr<TokenModel> make_unigram(const Vocabulary& vocabulary, std::vector<double> scores,
                                         std::optional<int32_t> unk, bool byte_fallback) {
  return std::make_unique<Unigram>(vocabulary, std::move(scores), unk, byte_fallback);
}

}  // namespace anymesh
