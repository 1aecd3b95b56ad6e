#include "tools/hf/gpt/families/families.h"

namespace anymesh {

// Phi 3 and 4: a Llama whose q, k, v are one matrix, and its gate and up another.
const Family& phi3_family() {
  static const Family kFamily{
      .name = "Phi 3",
      .model_type = "phi3",
      .architecture = "Phi3ForCausalLM",
      .read =
          [](const Keys& keys, GptConfig& gpt) {
            read_llama(keys, gpt, "partial_rotary_factor");
            if (!keys.contains("rms_norm_eps")) gpt.layernorm_epsilon = 1e-5;
            read_dropout(keys, "embd_pdrop", "resid_pdrop", 0, gpt);
            read_window(keys, gpt, Json());
            keys.find({"original_max_position_embeddings"});  // of longrope, which is refused
          },
      .write =
          [](const GptConfig& gpt, Json& json) {
            write_llama(gpt, json);
            json["partial_rotary_factor"] = gpt.rotary_percent;
            json["resid_pdrop"] = json["embd_pdrop"] = gpt.hidden_dropout;
            write_window(gpt, json);
            // The class pads with token 32000 unless it is told otherwise.
            if (gpt.vocab_size <= 32000) json["pad_token_id"] = nullptr;
          },
      .tensors =
          [] {
            Family::Tensors tensors = llama_tensors();
            tensors.qkv = {"self_attn.qkv_proj"};
            tensors.mlp_in = {"mlp.gate_up_proj"};
            return tensors;
          }(),
      .buffers = llama_family().buffers};
  return kFamily;
}

}  // namespace anymesh
