// The GPT's own settings, with their flags and rules. A fork brings a file like this one, and no
// other flag code.
//
//   add_flags(flags, gpt);                     beside the framework's add_flags(flags, config)
//   gpt.vocab_size = tokenizer->vocab_size();  this field and eod_token are no flag's
//   validate(config, gpt, world_size);         all rules: the framework's, then the GPT's
//   gpt = resolved(gpt);                       with every default filled in, for files
#pragma once

#include <string>
#include <vector>

#include "framework/config/config.h"
#include "framework/config/flags.h"

namespace anymesh {

// Constants of --use-rope-scaling, as in Megatron. kLlama3Context is the context that Llama 3 was
// trained with before its wavelengths were scaled. A wavelength that fits into it less often than
// the low frequency is scaled in full; more often than the high one, not at all.
inline constexpr int kLlama3Context = 8192;
inline constexpr int kLlama3LowFrequency = 1, kLlama3HighFrequency = 4;

struct GptConfig {
  int num_layers = 0;  // required, as are the next four
  int hidden_size = 0;
  int num_attention_heads = 0;
  int seq_length = 0;
  int max_position_embeddings = 0;  // rows of the learned position table, >= seq_length
  int ffn_hidden_size = 0;          // 0 = see ffn_size()
  int make_vocab_size_divisible_by = 128;
  bool no_pipeline_parallel = false;  // the names in checkpoints, see gpt_parameters.h
  double init_method_std = 0.02;
  double attention_dropout = 0.1, hidden_dropout = 0.1;
  double layernorm_epsilon = 1e-5;
  bool untie_embeddings_and_output_weights = false;
  bool bias_gelu_fusion = true;  // see activation()
  int vocab_size = 0;            // true vocabulary, from the tokenizer; 0 until it is known
  int eod_token = -1;            // the one that ends documents

  // See documents.h.
  bool reset_position_ids = false, reset_attention_mask = false, eod_mask_loss = false;
  bool separates_documents() const { return reset_position_ids || reset_attention_mask; }

  // Other architectures. Each option is one that some family of models has.
  int kv_channels = 0;                  // width of a head, see head_dim()
  int num_key_value_heads = 0;          // 0 = num_attention_heads; see key_value_heads()
  bool group_query_attention = false;   // Megatron-Core's switch for the line above
  bool qk_layernorm = false;            // normalize each head of q and k, before it is rotated
  bool qk_layernorm_all_heads = false;  // or all heads of q together, and all of k
  std::string window_size = "-1,0";     // see window()
  bool add_bias_linear = true;
  bool add_qkv_bias = false, add_attention_linear_bias = false;  // beside --disable-bias-linear
  bool swiglu = false, geglu = false, relu = false;              // see activation()
  std::string normalization = "layernorm";                       // or rmsnorm, in any case
  bool apply_layernorm_1p = false;
  bool embed_layernorm = false;
  bool apply_embedding_scaling = false;
  bool use_parallel_residual = false;

  // Mixtures of experts, see experts.h
  int num_experts = 0;                    // in a layer; 0 and 1: all layers have an MLP
  std::vector<int> moe_layer_freq = {1};  // see has_experts(): N, or a 0 or 1 for each layer
  int moe_ffn_hidden_size = 0;            // of an expert; 0 = ffn_size()
  int moe_router_topk = 2;
  std::string moe_router_score_function = "softmax";  // or sigmoid
  bool moe_router_pre_softmax = false;
  double moe_router_topk_scaling_factor = 1;
  bool moe_router_enable_expert_bias = false;  // with the next
  double moe_router_bias_update_rate = 1e-3;
  double moe_aux_loss_coeff = 0, moe_z_loss_coeff = 0;
  bool moe_per_layer_logging = false;           // of the tokens of each expert
  int moe_shared_expert_intermediate_size = 0;  // of an MLP for all tokens beside them; 0: none
  bool moe_shared_expert_gate = false;
  bool has_experts(int layer) const;
  int moe_ffn_size() const { return moe_ffn_hidden_size != 0 ? moe_ffn_hidden_size : ffn_size(); }

  std::vector<std::string> recompute_modules;  // parts of a layer, by Megatron's names
  bool recomputes(const std::string& module) const;

  // Positions
  std::string position_embedding_type = "absolute";  // see alibi(), rotary(), learned_positions()
  bool add_position_embedding = true;
  int position_embedding_offset = 0;  // rows of the learned table before that of position 0
  bool use_rotary_position_embeddings = false;
  double rotary_percent = 1.0;
  Number rope_theta = 10000;
  bool use_rope_scaling = false;  // Llama 3.1's, see kLlama3Context
  double rope_scaling_factor = 8;
  Number rotary_seq_len_interpolation_factor = 1;  // divides positions; 1 = as they are
  std::string rope_type = "rope";  // rope | yarn | dynamic, which have the next four
  double rotary_scaling_factor = 1;
  int original_max_position_embeddings = 0;
  double beta_fast = 32, beta_slow = 1;

  // Adapters, see lora.h
  int lora_rank = 0;  // 0: none; else nothing but them is trained
  Number lora_alpha = 8;
  std::vector<std::string> lora_target;  // empty = q_proj v_proj; see lora_targets()
  double lora_dropout = 0;

  int head_dim() const {
    return kv_channels != 0 ? kv_channels : hidden_size / num_attention_heads;
  }
  int key_value_heads() const {
    return num_key_value_heads != 0 ? num_key_value_heads : num_attention_heads;
  }
  int window() const;  // keys that a query sees, the last its own; 0 = all
  bool qkv_bias() const { return add_bias_linear || add_qkv_bias || add_attention_linear_bias; }
  bool attention_output_bias() const { return add_bias_linear || add_attention_linear_bias; }
  bool rms_norm() const { return normalization == "rmsnorm" || normalization == "RMSNorm"; }

  // The MLP's non-linearity. Gated ones have a second matrix of the same width.
  enum class Activation { kGeluTanh, kGeluErf, kRelu, kSwiglu, kGeglu };
  Activation activation() const;
  bool gated() const { return swiglu || geglu; }
  int ffn_size() const;  // Megatron's default: 4 h, with SwiGLU 8/3 h down to a multiple of 64

  bool alibi() const { return position_embedding_type == "alibi"; }
  bool rotary() const {
    return use_rotary_position_embeddings || position_embedding_type == "rope";
  }
  bool learned_positions() const {
    return add_position_embedding && !rotary() && !alibi() && position_embedding_type != "none";
  }
  int rotary_width() const { return static_cast<int>(head_dim() * rotary_percent); }

  // The standard deviation of matrices that write to the residual stream. 2 * num_layers of them
  // add up there.
  double residual_std() const;
};

void add_flags(FlagTable& flags, GptConfig& gpt);

// Returns the settings with all derived fields filled in, as Megatron stores them in files.
GptConfig resolved(GptConfig gpt);

// Throws UserError unless such a model can exist.
void validate(const GptConfig& gpt);

// Throws UserError unless this model can be trained with this config on `world_size` ranks.
void validate(const Config& config, const GptConfig& gpt, int world_size);

// Returns Megatron's padded vocabulary: the smallest multiple of make_vocab_size_divisible_by * tp
// that holds vocab_size. The padding is masked. Per-rank files hold it; universal ones never do.
int64_t padded_vocab_size(const GptConfig& gpt, int tp);

// Returns the model's sizes, and the flags that decide its shape and its maths.
ModelFacts model_facts(const GptConfig& gpt, int tp);

}  // namespace anymesh
