// Fuzzes a file of tiktoken, as lines or JSON, and a text through it.
#include "framework/data/tokenizers/tokenizer.h"
#include "tests/fuzz/target.h"

namespace anymesh {

void fuzz(std::span<const std::byte> input) {
  const ScratchFile file(".tiktoken", input);
  std::unique_ptr<Tokenizer> tokenizer;
  try {
    tokenizer = make_tiktoken_tokenizer(file.path(), {.special_tokens = 7});
  } catch (const std::runtime_error& error) {
    require_name(error, file.path());
    return;
  }
  const std::string text = "The cat's  12 mice\n\n  \u00e9\u0301 \u4e2d\u6587 </s>";
  require(tokenizer->decode(tokenizer->encode(text)) == text, "a text does not come back");
}

}  // namespace anymesh
