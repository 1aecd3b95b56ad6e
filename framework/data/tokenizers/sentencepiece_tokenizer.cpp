#include <sentencepiece_processor.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "framework/data/tokenizers/tokenizer.h"
#include "framework/data/tokenizers/tokenizer_files.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::string& model_file, const std::string& type)
      : begins_with_bos_(type == "Llama2Tokenizer") {
    const auto status = model_.LoadFromSerializedProto(
        read_tokenizer_file(model_file, TokenizerFile::kSentencePiece));
    if (!status.ok())
      throw_error(model_file,
                  ": cannot read the SentencePiece model (--tokenizer-model): ", status.ToString());
    vocab_size_ = model_.GetPieceSize();
    if (type == "SentencePieceTokenizer") {
      add_special_tokens();
      eod_ = special_.at("<EOD>");
      bos_ = special_.at(piece_or(model_.bos_id(), "<BOS>"));
    } else if (model_.eos_id() < 0) {
      throw_error(model_file, ": the model has no </s> to end documents with; use ",
                  "--tokenizer-type SentencePieceTokenizer");
    } else if (begins_with_bos_ && model_.bos_id() < 0) {
      throw_error(model_file, ": the model has no <s> to begin texts with; use ",
                  "--tokenizer-type GPTSentencePieceTokenizer");
    } else {
      eod_ = model_.eos_id();
      bos_ = model_.bos_id() >= 0 ? model_.bos_id() : eod_;
    }
  }

  std::vector<int32_t> encode(std::string_view text) override {
    std::vector<int32_t> ids;
    std::vector<std::pair<size_t, Special::const_iterator>> next;  // where each special token is
    for (auto token = special_.begin(); token != special_.end(); ++token)
      next.emplace_back(text.find(token->first), token);
    for (size_t begin = 0;;) {
      const auto first = std::ranges::min_element(next, {}, [](auto& each) { return each.first; });
      const bool last = first == next.end() || first->first == std::string_view::npos;
      append(text.substr(begin, last ? std::string_view::npos : first->first - begin), ids);
      if (last) return ids;
      ids.push_back(first->second->second);
      begin = first->first + first->second->first.size();
      for (auto& [where, token] : next)
        if (where < begin) where = text.find(token->first, begin);
    }
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    std::vector<int> pieces;  // between special tokens
    for (const int32_t id : ids) {
      if (id < 0 || id >= vocab_size_)
        throw_error("token ", id, " is outside [0, ", vocab_size_, ")");
      const auto special = special_text_.find(id);
      if (special == special_text_.end()) {
        pieces.push_back(id);
        continue;
      }
      text += model_.DecodeIds(std::exchange(pieces, {})) + special->second;
    }
    return text + model_.DecodeIds(pieces);
  }

  int32_t vocab_size() const override { return vocab_size_; }
  int32_t eod() const override { return eod_; }
  int32_t bos() const override { return bos_; }
  AroundText around_text() const override {
    return begins_with_bos_ ? AroundText{.before = {bos_}, .behind = {}} : AroundText{};
  }

 private:
  using Special = std::map<std::string, int32_t>;

  void add_special_tokens() {
    const auto add = [this](const std::string& token) {
      const int id = model_.PieceToId(token);
      const bool has_piece = model_.IdToPiece(id) == token;  // an unknown piece has <unk>'s id
      if (special_.contains(token)) return;
      special_[token] = has_piece ? id : vocab_size_++;
      special_text_[special_[token]] = token;
    };
    for (const char* token : {"<CLS>", "<SEP>", "<EOD>", "<MASK>"}) add(token);
    add(piece_or(model_.pad_id(), "<PAD>"));
    add(piece_or(model_.bos_id(), "<BOS>"));
    add(piece_or(model_.eos_id(), "<EOS>"));
  }

  std::string piece_or(int id, const char* otherwise) const {
    return id >= 0 ? model_.IdToPiece(id) : otherwise;
  }

  void append(std::string_view text, std::vector<int32_t>& ids) const {
    std::vector<int> pieces;
    const auto status = model_.Encode({text.data(), text.size()}, &pieces);
    if (!status.ok()) throw_error("SentencePiece: ", status.ToString());
    ids.insert(ids.end(), pieces.begin(), pieces.end());
  }

  sentencepiece::SentencePieceProcessor model_;
  bool begins_with_bos_;
  int32_t vocab_size_ = 0;
  int32_t eod_ = 0, bos_ = 0;
  Special special_;
  std::map<int32_t, std::string> special_text_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string& model_file,
                                                        const std::string& type) {
  return std::make_unique<SentencePieceTokenizer>(model_file, type);
}

}  // namespace anymesh
