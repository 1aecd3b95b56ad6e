#include "framework/data/tokenizers/tokenizer.h"
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

std::unique_ptr<Tokenizer> make_byte_level_tokenizer() {
  return std::make_unique<ByteLevelTokenizer>();
}

}  // namespace anymesh
