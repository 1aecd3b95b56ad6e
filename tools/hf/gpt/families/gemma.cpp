#include "tools/hf/gpt/families/families.h"

namespace anymesh {

// Gemma 1: a Llama with GeGLU, norms of 1 + weight and embeddings scaled by the root of their width.
const Family& gemma_family() {
  static const Family kFamily{
      .name = "Gemma",
      .model_type = "gemma",
      .architecture = "GemmaForCausalLM",
      .defaults = class_defaults(llama_family().defaults, R"({
        "vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16,
        "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 8192,
        "tie_word_embeddings": true})"),
      .read =
          [](const Keys& keys, GptConfig& gpt) {
            gpt.geglu = gpt.apply_layernorm_1p = gpt.apply_embedding_scaling = true;
            read_llama(keys, gpt);
            // transformers 5 reads hidden_act alone, older versions hidden_activation first.
            if (keys.find("hidden_act") == "gelu") {
              keys.note(
                  "config.json has hidden_act \"gelu\", which means gelu_pytorch_tanh in a "
                  "Gemma, as transformers reads it");
            } else {
              activation_of(keys, "hidden_act", {"gelu_pytorch_tanh"});
            }
            if (!keys.find("hidden_activation").is_null())
              activation_of(keys, "hidden_activation", {"gelu_pytorch_tanh"});
            keys.one_of("use_bidirectional_attention", {false});
            gpt.add_attention_linear_bias = keys.is_true("attention_bias");
          },
      .write =
          [](const GptConfig& gpt, Json& json) {
            write_llama(gpt, json);
            json["hidden_act"] = json["hidden_activation"] = "gelu_pytorch_tanh";
            json["attention_bias"] = gpt.attention_output_bias();
          },
      .tensors = llama_tensors(),
      .buffers = llama_family().buffers};
  return kFamily;
}

}  // namespace anymesh
