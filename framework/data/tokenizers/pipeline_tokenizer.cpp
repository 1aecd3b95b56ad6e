#include "framework/data/tokenizers/pipeline_tokenizer.h"

#include <unordered_map>
#include <utility>

#include "framework/data/tokenizers/characters.h"
#include "framework/data/tokenizers/pattern.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

// Remembers the ids of short pieces.
class PieceCache {
 public:
  // Appends the ids of a piece and returns whether it was known.
  bool append(std::string_view piece, std::vector<int32_t>& ids) const {
    if (piece.size() > kLongest) return false;
    const auto found = places_.find(piece);
    if (found == places_.end()) return false;
    const auto [begin, count] = found->second;
    ids.insert(ids.end(), ids_.begin() + begin, ids_.begin() + begin + count);
    return true;
  }

  void keep(std::string_view piece, std::span<const int32_t> ids) {
    if (piece.size() > kLongest || places_.size() == kMost) return;
    places_.emplace(piece, std::pair(std::ssize(ids_), std::ssize(ids)));
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }

 private:
  static constexpr size_t kMost = 1 << 18, kLongest = 64;
  StringMap<std::pair<std::ptrdiff_t, std::ptrdiff_t>> places_;
  std::vector<int32_t> ids_;
};

class PipelineTokenizer final : public Tokenizer {
 public:
  explicit PipelineTokenizer(std::unique_ptr<TokenizerParts> parts) : parts_(std::move(parts)) {
    for (const AddedToken& token : parts_->added_tokens.all())
      if (token.normalized) normal_texts_[token.id] = token.normal;
  }

  std::vector<int32_t> encode(std::string_view text) override {
    std::vector<int32_t> ids;
    if (parts_->any_bytes || is_utf8(text))
      encode_sections(text, ids);
    else
      encode_sections(replace_invalid_utf8(text), ids);
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::vector<std::string> parts;
    for (const int32_t id : ids) {
      if (id < 0 || id >= vocab_size())
        throw_error("token ", id, " is outside [0, ", vocab_size(), ")");
      if (parts_->vocabulary.contains(id)) parts.push_back(text_of(id));
    }
    if (parts_->decoder) parts_->decoder(parts);
    std::string text;
    for (size_t i = 0; i < parts.size(); ++i)
      text += (parts_->decoder || i == 0 ? "" : " ") + parts[i];
    return text;
  }

  int32_t vocab_size() const override { return parts_->vocabulary.size(); }
  int32_t eod() const override { return parts_->eod; }
  int32_t bos() const override { return parts_->bos; }
  AroundText around_text() const override { return parts_->around; }
  std::vector<int32_t> text_ends() const override { return parts_->text_ends; }

 private:
  // An added token's text is as the normalizer would leave it, since decoders undo that.
  const std::string& text_of(int32_t id) const {
    const auto found = normal_texts_.find(id);
    return found == normal_texts_.end() ? parts_->vocabulary.token(id) : found->second;
  }

  void encode_sections(std::string_view text, std::vector<int32_t>& ids) {
    std::vector<Section> sections;
    parts_->added_tokens.split(text, /*normalized=*/false, sections);
    for (const Section& section : sections) {
      if (section.id >= 0) {
        ids.push_back(section.id);
        continue;
      }
      bool at_start = section.text.data() == text.data();
      if (!parts_->normalizer) {
        encode_normalized(section.text, at_start, ids);
        continue;
      }
      std::string normalized(section.text);
      parts_->normalizer(normalized, at_start);
      encode_normalized(normalized, at_start, ids);
      check_growth(text.size(), ids.size());
    }
  }

  void encode_normalized(std::string_view text, bool at_start, std::vector<int32_t>& ids) {
    std::vector<Section> sections;
    parts_->added_tokens.split(text, /*normalized=*/true, sections);
    for (const Section& section : sections)
      if (section.id >= 0)
        ids.push_back(section.id);
      else
        encode_pieces(section.text, at_start && section.text.data() == text.data(), ids);
  }

  void encode_pieces(std::string_view text, bool at_start, std::vector<int32_t>& ids) {
    Pieces pieces{
        .views = {text}, .document = at_start ? text.data() : nullptr, .bytes = text.size()};
    for (const auto& step : parts_->pre_tokenizers) step(pieces);
    for (const std::string_view piece : pieces.views) {
      if (cache_.append(piece, ids)) continue;
      const size_t before = ids.size();
      parts_->model->encode(piece, ids);
      cache_.keep(piece, std::span(ids).subspan(before));
    }
  }

  std::unique_ptr<TokenizerParts> parts_;
  std::unordered_map<int32_t, std::string> normal_texts_;  // of added tokens
  PieceCache cache_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_pipeline_tokenizer(std::unique_ptr<TokenizerParts> parts) {
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

}  // namespace anymesh
