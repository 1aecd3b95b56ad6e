#include <string>
#include <vector>

#include "models/gpt/gpt_config.h"

namespace anymesh {
namespace {

void add_architecture_flags(FlagTable& flags, GptConfig& gpt) {
  flags.group("Architecture (other families of models)");
  flags.add("kv-channels", gpt.kv_channels, "width of an attention head",
            "--hidden-size / --num-attention-heads");
  flags.add("num-key-value-heads", gpt.num_key_value_heads,
            "key and value heads, each shared by a group of query heads", "--num-attention-heads");
  flags.alias("num-query-groups", "num-key-value-heads");
  flags.add("group-query-attention", gpt.group_query_attention,
            "Megatron-Core's switch for --num-query-groups");
  flags.add("qk-layernorm", gpt.qk_layernorm, "normalize each head of queries and keys");
  flags.add(
      "qk-layernorm-all-heads", gpt.qk_layernorm_all_heads,
      "with --qk-layernorm: one norm of all heads of queries, one of all heads of keys, as in "
      "OLMoE");
  flags.add("window-size", gpt.window_size,
            "N,0: a query sees the N tokens before it and itself; -1,0: all");
  flags.add("disable-bias-linear", gpt.add_bias_linear,
            "no biases in attention and MLP; makes GELU the erf one", "", "add_bias_linear");
  flags.add("add-qkv-bias", gpt.add_qkv_bias,
            "biases of queries, keys and values, beside --disable-bias-linear");
  flags.add("add-attention-linear-bias", gpt.add_attention_linear_bias,
            "biases of attention's two matrices, beside --disable-bias-linear");
  flags.add("swiglu", gpt.swiglu, "silu(gate) x up in place of GELU inside the MLP");
  flags.add("geglu", gpt.geglu, "gelu(gate) x up, with the tanh GELU");
  flags.add("relu", gpt.relu, "ReLU in place of GELU");
  flags.add("normalization", gpt.normalization, "layernorm or rmsnorm");
  flags.add("apply-layernorm-1p", gpt.apply_layernorm_1p,
            "scale norms by 1 + weight, so that weights begin at 0");
  flags.add("embed-layernorm", gpt.embed_layernorm, "normalize the word embeddings too");
  flags.add("apply-embedding-scaling", gpt.apply_embedding_scaling,
            "multiply the word embeddings by the square root of --hidden-size");
  flags.add("use-parallel-residual", gpt.use_parallel_residual,
            "attention and MLP both read a layer's input, in place of one after the other");
  flags.group("Mixtures of experts");
  flags.add("num-experts", gpt.num_experts,
            "experts in a layer, in place of its MLP; 0 or 1: none");
  flags.add("moe-layer-freq", gpt.moe_layer_freq,
            "layers 0, N, 2N, ... have experts; or a list with a 1 for each layer that has them, "
            "else a 0");
  flags.add("moe-ffn-hidden-size", gpt.moe_ffn_hidden_size, "width inside an expert",
            "--ffn-hidden-size");
  flags.add("moe-router-topk", gpt.moe_router_topk, "experts that a token goes to");
  flags.add("moe-router-score-function", gpt.moe_router_score_function,
            "scores of the experts: softmax, or sigmoid as DeepSeek-V3 has");
  flags.add("moe-router-topk-scaling-factor", gpt.moe_router_topk_scaling_factor,
            "multiplies the weights of the chosen experts");
  flags.add("moe-router-enable-expert-bias", gpt.moe_router_enable_expert_bias,
            "add to sigmoid scores, for the choice alone, a bias that grows while an expert has "
            "few tokens");
  flags.add("moe-router-bias-update-rate", gpt.moe_router_bias_update_rate,
            "how far the bias moves in a step");
  flags.add("moe-router-pre-softmax", gpt.moe_router_pre_softmax,
            "weigh experts by the softmax over all, not over the chosen ones");
  flags.add("moe-aux-loss-coeff", gpt.moe_aux_loss_coeff,
            "of the loss that spreads tokens over the experts");
  flags.add("moe-z-loss-coeff", gpt.moe_z_loss_coeff, "of the loss that keeps scores small");
  flags.add("moe-shared-expert-intermediate-size", gpt.moe_shared_expert_intermediate_size,
            "width of an MLP for all tokens beside the experts; 0: none");
  flags.add("moe-per-layer-logging", gpt.moe_per_layer_logging,
            "print at each --log-interval how many tokens of the step each expert had");
  flags.add("moe-shared-expert-gate", gpt.moe_shared_expert_gate,
            "multiply what it returns by a learned gate");
  flags.group("Positions");
  flags.add("position-embedding-type", gpt.position_embedding_type,
            "absolute (or learned_absolute), rope, none, or alibi: scores fall with the distance");
  flags.add("no-position-embedding", gpt.add_position_embedding,
            "no learned positions; implied by rotary ones and alibi", "", "add_position_embedding");
  flags.add("position-embedding-offset", gpt.position_embedding_offset,
            "rows of the learned table before that of position 0, as OPT has 2");
  flags.add("use-rotary-position-embeddings", gpt.use_rotary_position_embeddings,
            "rotate queries and keys by their positions");
  flags.add("rotary-percent", gpt.rotary_percent, "part of a head's width that rotates");
  flags.add("rotary-position-embeddings-theta", gpt.rope_theta,
            "base of the rotation's wavelengths", "", "rope_theta");
  flags.alias("rotary-base", "rotary-position-embeddings-theta");
  flags.add("use-rope-scaling", gpt.use_rope_scaling,
            "longer wavelengths for a longer context, as in Llama 3.1 and later");
  flags.add(
      "rope-scaling-factor", gpt.rope_scaling_factor,
      "how far --use-rope-scaling stretches wavelengths above Llama 3's 8192 tokens; those of up "
      "to a quarter stay");
  flags.add("rotary-seq-len-interpolation-factor", gpt.rotary_seq_len_interpolation_factor,
            "divides the positions that rotate queries and keys");
  flags.add("rope-type", gpt.rope_type,
            "rope; yarn (stretches long wavelengths); or dynamic (a greater base for samples "
            "longer than --original-max-position-embeddings)");
  flags.add("rotary-scaling-factor", gpt.rotary_scaling_factor,
            "how far yarn and dynamic stretch the context");
  flags.add("original-max-position-embeddings", gpt.original_max_position_embeddings,
            "the context before yarn or dynamic stretches it", "required by them");
  flags.add("beta-fast", gpt.beta_fast, "yarn keeps wavelengths with more turns in that context");
  flags.add("beta-slow", gpt.beta_slow, "yarn stretches those with fewer turns in full");
}

std::vector<std::string> model_flags(const GptConfig& gpt) {
  std::vector<std::string> flags{"num-layers",
                                 "hidden-size",
                                 "ffn-hidden-size",
                                 "num-attention-heads",
                                 "untie-embeddings-and-output-weights",
                                 "kv-channels",
                                 "num-key-value-heads",
                                 "qk-layernorm",
                                 "qk-layernorm-all-heads",
                                 "window-size",
                                 "disable-bias-linear",
                                 "add-qkv-bias",
                                 "add-attention-linear-bias",
                                 "swiglu",
                                 "geglu",
                                 "relu",
                                 "normalization",
                                 "apply-layernorm-1p",
                                 "embed-layernorm",
                                 "apply-embedding-scaling",
                                 "use-parallel-residual",
                                 "num-experts",
                                 "moe-layer-freq",
                                 "moe-ffn-hidden-size",
                                 "moe-router-topk",
                                 "moe-router-score-function",
                                 "moe-router-topk-scaling-factor",
                                 "moe-router-enable-expert-bias",
                                 "moe-router-pre-softmax",
                                 "moe-shared-expert-intermediate-size",
                                 "moe-shared-expert-gate",
                                 "position-embedding-offset",
                                 "use-rotary-position-embeddings",
                                 "rotary-percent",
                                 "rotary-position-embeddings-theta",
                                 "use-rope-scaling",
                                 "rope-scaling-factor",
                                 "rotary-seq-len-interpolation-factor",
                                 "rope-type",
                                 "rotary-scaling-factor",
                                 "original-max-position-embeddings",
                                 "beta-fast",
                                 "beta-slow",
                                 "position-embedding-type",
                                 "no-position-embedding",
                                 "layernorm-epsilon"};
  if (gpt.learned_positions()) flags.emplace_back("max-position-embeddings");  // else no table
  if (!gpt.gated() && !gpt.relu) flags.emplace_back("no-bias-gelu-fusion");
  return flags;
}

}  // namespace

void add_flags(FlagTable& flags, GptConfig& gpt) {
  flags.group("GPT");
  flags.add("num-layers", gpt.num_layers, "transformer layers", "required");
  flags.add("hidden-size", gpt.hidden_size, "width of a token", "required");
  flags.add("num-attention-heads", gpt.num_attention_heads, "heads per layer", "required");
  flags.add("ffn-hidden-size", gpt.ffn_hidden_size, "width inside the MLP",
            "4 x --hidden-size, with --swiglu 8/3 x");
  flags.add("seq-length", gpt.seq_length, "tokens per sample", "required");
  flags.add("max-position-embeddings", gpt.max_position_embeddings,
            "rows of the learned position table, at least --seq-length", "required");
  flags.add(
      "make-vocab-size-divisible-by", gpt.make_vocab_size_divisible_by,
      "rows of the vocabulary, padded, are a multiple of this times the tensor-parallel size");
  flags.add("untie-embeddings-and-output-weights", gpt.untie_embeddings_and_output_weights,
            "give the output layer weights of its own");
  flags.add("no-pipeline-parallel", gpt.no_pipeline_parallel,
            "name parameters in checkpoints as Megatron does without its pipeline module: "
            "language_model.encoder.layers.0...");
  flags.add("no-bias-gelu-fusion", gpt.bias_gelu_fusion,
            "erf GELU in place of the tanh GELU of Megatron's fused kernel");
  flags.add("init-method-std", gpt.init_method_std, "standard deviation of the initial weights");
  flags.add("layernorm-epsilon", gpt.layernorm_epsilon, "term added to a norm's variance");
  flags.alias("norm-epsilon", "layernorm-epsilon");
  flags.add("attention-dropout", gpt.attention_dropout, "of the attention probabilities");
  flags.add("hidden-dropout", gpt.hidden_dropout, "of the embedding and of each sublayer's output");
  add_architecture_flags(flags, gpt);
  flags.group("Documents in a sample");
  flags.add("reset-position-ids", gpt.reset_position_ids,
            "count positions from the beginning of each document");
  flags.add("reset-attention-mask", gpt.reset_attention_mask,
            "let a token see its own document alone");
  flags.add("eod-mask-loss", gpt.eod_mask_loss,
            "leave the token behind the end of a document out of the loss");
}

namespace {

// Flags that leave the parameters as they are, but change what training makes of them.
std::vector<std::string> training_flags(const GptConfig& gpt) {
  std::vector<std::string> flags{"attention-dropout",  "hidden-dropout",
                                 "reset-position-ids", "reset-attention-mask",
                                 "eod-mask-loss",      "moe-aux-loss-coeff",
                                 "moe-z-loss-coeff",   "moe-router-bias-update-rate"};
  if (gpt.num_experts > 1 && gpt.moe_aux_loss_coeff > 0)
    flags.emplace_back("micro-batch-size");  // the loss is over the tokens of a micro-batch
  return flags;
}

}  // namespace

ModelFacts model_facts(const GptConfig& gpt, int tp) {
  return {.seq_length = gpt.seq_length,
          .vocab_size = gpt.vocab_size,
          .padded_vocab_size = padded_vocab_size(gpt, tp),
          .flags = model_flags(gpt),
          .training_flags = training_flags(gpt),
          .all_stages_read_tokens = gpt.separates_documents(),
          .gpu_note =
              gpt.attention_dropout == 0
                  ? ""
                  : "on a GPU, --attention-dropout keeps the weights of attention in memory, "
                    "[micro-batch, heads, sequence, sequence] for each layer; with 0 it is fused"};
}

}  // namespace anymesh
