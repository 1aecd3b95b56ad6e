#include "framework/data/tokenizers/tokenizer.h"

#include "framework/config/config.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

class ByteLevelTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text) override {
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    return {bytes, bytes + text.size()};
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id < 0 || id > eod()) throw_error("token ", id, " is outside [0, 257)");
      if (id == eod())
        text += "<|endoftext|>";
      else
        text += static_cast<char>(id);
    }
    return text;
  }

  int32_t vocab_size() const override { return 257; }
  int32_t eod() const override { return 256; }
};

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& type, const std::string& vocab_file,
                                          const std::string& merge_file,
                                          const std::string& tokenizer_model,
                                          const TiktokenOptions& tiktoken) {
  const bool two_files = !vocab_file.empty() || !merge_file.empty();
  if (takes_tokenizer_model(type)) {
    if (tokenizer_model.empty() || two_files)
      throw_error("--tokenizer-type ", type,
                  " takes --tokenizer-model, and no vocabulary or merge file");
    if (type == "TikTokenizer") return make_tiktoken_tokenizer(tokenizer_model, tiktoken);
    if (type.starts_with("H")) return make_huggingface_tokenizer(tokenizer_model);
    return make_sentencepiece_tokenizer(tokenizer_model, type);
  }
  if (!tokenizer_model.empty())
    throw_error("--tokenizer-type ", type, " takes no --tokenizer-model: that is for ",
                "HFTokenizer, TikTokenizer, and those of SentencePiece");
  if (type == "ByteLevelTokenizer") {
    if (two_files)
      throw_error("--tokenizer-type ByteLevelTokenizer takes no --vocab-file and no --merge-file");
    return std::make_unique<ByteLevelTokenizer>();
  }
  if (type == "GPT2BPETokenizer") {
    if (vocab_file.empty() || merge_file.empty())
      throw_error("--tokenizer-type GPT2BPETokenizer needs --vocab-file and --merge-file");
    return make_gpt2_tokenizer(vocab_file, merge_file);
  }
  throw_error("--tokenizer-type ", type, ": expected ByteLevelTokenizer, GPT2BPETokenizer, ",
              "SentencePieceTokenizer, GPTSentencePieceTokenizer, Llama2Tokenizer, HFTokenizer or ",
              "TikTokenizer");
}

}  // namespace anymesh
