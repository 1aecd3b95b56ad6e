// Fuzzes a tokenizer.json: its parts, its regular expressions, and texts through it.
#include "framework/data/tokenizers/tokenizer.h"
#include "tests/fuzz/target.h"

namespace anymesh {

void fuzz(std::span<const std::byte> input) {
  const ScratchFile file(".json", input);
  std::unique_ptr<Tokenizer> tokenizer;
  try {
    tokenizer = make_huggingface_tokenizer(file.path());
  } catch (const std::runtime_error& error) {
    require_name(error, file.path());
    return;
  }
  for (const char* text :
       {"", " ", "The cat's  12 mice\n\n  \u00e9\u0301 \u4e2d\u6587\u2581x </s>",
        "\xff\xe2\x82 a<s>b<|endoftext|>", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!"}) {
    const auto ids = tokenizer->encode(text);
    for (const int32_t id : ids)
      require(id >= 0 && id < tokenizer->vocab_size(), "an id is outside the vocabulary");
    tokenizer->decode(ids);
  }
}

}  // namespace anymesh
