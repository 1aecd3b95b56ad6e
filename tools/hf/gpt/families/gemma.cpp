#include "tools/hf/gpt/families/families.h"

namespace anymesh {

// Gemma 1: a Llama with GeGLU, norms of 1 + weight and embeddings scaled by the root of their width.
const Family& gemma_family() {
  static const Family kFamily{
      .name = "Gemma",
      .model_type = "gemma",
      .architecture = "GemmaForCausalLM",
      .tied = true,
      .read =
          [](const Keys& keys, GptConfig& gpt) {
            gpt.geglu = gpt.apply_layernorm_1p = gpt.apply_embedding_scaling = true;
            read_llama(keys, gpt);
            if (!keys.contains("num_key_value_heads")) gpt.num_key_value_heads = 16;
            if (!keys.contains("head_dim")) gpt.kv_channels = 256;
            // Files from before hidden_activation have "gelu" and mean the tanh one, which versions
            // of transformers take in different ways.
            const bool told = !keys.find({"hidden_activation"}).is_null();
            keys.one_of(told ? "hidden_activation" : "hidden_act", {"gelu_pytorch_tanh"});
            keys.find({"hidden_act"});
            keys.one_of("use_bidirectional_attention", {false});
            gpt.add_attention_linear_bias = keys.is_true("attention_bias", false);
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
