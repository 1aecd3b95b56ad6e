#include "tools/hf/gpt/families/families.h"

namespace anymesh {

// A Llama with a window of tokens that attention reaches back to. With layer_types, which
// transformers calls a Ministral, some layers may have none.
const Family& mistral_family() {
  static const Family kFamily{.name = "Mistral",
                              .model_type = "mistral",
                              .architecture = "MistralForCausalLM",
                              .defaults = class_defaults(llama_family().defaults, R"({
        "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "sliding_window": 4096})"),
                              .read =
                                  [](const Keys& keys, GptConfig& gpt) {
                                    read_llama(keys, gpt);
                                    read_layer_windows(keys, gpt, /*full=*/0);
                                  },
                              .write =
                                  [](const GptConfig& gpt, Json& json) {
                                    write_llama(gpt, json);
                                    write_window(gpt, json);
                                  },
                              .tensors = llama_tensors(),
                              .buffers = llama_family().buffers};
  return kFamily;
}

}  // namespace anymesh
