#include "tools/hf/gpt/families/families.h"

namespace anymesh {

// A Llama with a window of tokens that attention reaches back to.
const Family& mistral_family() {
  static const Family kFamily{.name = "Mistral",
                              .model_type = "mistral",
                              .architecture = "MistralForCausalLM",
                              .read =
                                  [](const Keys& keys, GptConfig& gpt) {
                                    read_llama(keys, gpt);
                                    if (!keys.contains("num_key_value_heads"))
                                      gpt.num_key_value_heads = 8;
                                    read_window(keys, gpt, 4096);
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
