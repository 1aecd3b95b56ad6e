#include "tools/hf/gpt/families/families.h"

namespace anymesh {
namespace {

void refuse_scaling(const Keys& keys, const GptConfig& gpt) {
  const char* const name = keys.find("rope_scaling").is_null() ? "rope_parameters" : "rope_scaling";
  if (gpt.use_rope_scaling || gpt.rope_type != "rope" ||
      gpt.rotary_seq_len_interpolation_factor != 1)
    keys.fail(name, keys.find(name),
              "no scaling: transformers takes \"yarn\" as \"longrope\" in a Phi 3, which "
              "pretrain_gpt lacks, and knows no other");
}

}  // namespace

// Phi 3 and 4: a Llama whose q, k, v are one matrix, and its gate and up another.
const Family& phi3_family() {
  static const Family kFamily{
      .name = "Phi 3",
      .model_type = "phi3",
      .architecture = "Phi3ForCausalLM",
      .defaults = class_defaults(llama_family().defaults, R"({
        "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0})"),
      .read =
          [](const Keys& keys, GptConfig& gpt) {
            read_llama(keys, gpt, "partial_rotary_factor");
            refuse_scaling(keys, gpt);
            read_dropout(keys, "embd_pdrop", "resid_pdrop", gpt);
            read_window(keys, gpt);
            keys.find("original_max_position_embeddings");  // of longrope, which is refused
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
