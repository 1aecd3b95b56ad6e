#include <climits>
#include <string>
#include <vector>

#include "models/gpt/gpt_config.h"

namespace anymesh {
namespace {

using enum Decides;

constexpr const char* kExperts = "--num-experts above 1";
constexpr const char* kRotary =
    "--use-rotary-position-embeddings or --position-embedding-type rope";
constexpr const char* kStretched = "--rope-type yarn or dynamic";
constexpr const char* kAdapterFlags[] = {"lora-rank", "lora-alpha", "lora-target"};
const FlagRule kDocuments{.excludes = {"--mock-data, whose text has no documents"},
                          .decides = kTraining};

void add_architecture_flags(FlagTable& flags, GptConfig& gpt) {
  flags.group("Architecture (other families of models)");
  flags.add("kv-channels", gpt.kv_channels, "width of an attention head",
            {.shown = "--hidden-size / --num-attention-heads", .least = 0, .most = 1 << 16});
  flags.add("num-key-value-heads", gpt.num_key_value_heads,
            "key and value heads, each shared by a group of query heads",
            {.shown = "--num-attention-heads", .least = 0});
  flags.alias("num-query-groups", "num-key-value-heads");
  flags.add("group-query-attention", gpt.group_query_attention,
            "Megatron-Core's switch for --num-query-groups",
            {.needs = {"--num-query-groups"}, .decides = kNothing});
  flags.add("qk-layernorm", gpt.qk_layernorm, "normalize each head of queries and keys");
  flags.add(
      "qk-layernorm-all-heads", gpt.qk_layernorm_all_heads,
      "with --qk-layernorm: one norm of all heads of queries, one of all heads of keys, as in "
      "OLMoE",
      {.needs = {"--qk-layernorm", "--normalization rmsnorm or RMSNorm"}});
  flags.add("window-size", gpt.window_size,
            "N,0: a query sees the N tokens before it and itself; -1,0: all");
  flags.add("disable-bias-linear", gpt.add_bias_linear,
            "no biases in attention and MLP; makes GELU the erf one", {.dest = "add_bias_linear"});
  flags.add("add-qkv-bias", gpt.add_qkv_bias,
            "biases of queries, keys and values, beside --disable-bias-linear",
            {.needs = {"--disable-bias-linear"}, .excludes = {"--add-attention-linear-bias"}});
  flags.add("add-attention-linear-bias", gpt.add_attention_linear_bias,
            "biases of attention's two matrices, beside --disable-bias-linear",
            {.needs = {"--disable-bias-linear"}});
  flags.add("swiglu", gpt.swiglu, "silu(gate) x up in place of GELU inside the MLP",
            {.excludes = {"--geglu", "--relu"}});
  flags.add("geglu", gpt.geglu, "gelu(gate) x up, with the tanh GELU", {.excludes = {"--relu"}});
  flags.add("relu", gpt.relu, "ReLU in place of GELU");
  flags.add("normalization", gpt.normalization, "of a token in a layer",
            {.choices = {"layernorm", "rmsnorm", "LayerNorm", "RMSNorm"}});
  flags.add("apply-layernorm-1p", gpt.apply_layernorm_1p,
            "scale norms by 1 + weight, so that weights begin at 0");
  flags.add("embed-layernorm", gpt.embed_layernorm, "normalize the word embeddings too");
  flags.add("apply-embedding-scaling", gpt.apply_embedding_scaling,
            "multiply the word embeddings by the square root of --hidden-size");
  flags.add("use-parallel-residual", gpt.use_parallel_residual,
            "attention and MLP both read a layer's input, in place of one after the other");
}

void add_expert_flags(FlagTable& flags, GptConfig& gpt) {
  flags.group("Mixtures of experts");
  flags.add("num-experts", gpt.num_experts, "experts in a layer, in place of its MLP; 0 or 1: none",
            {.least = 0});
  flags.add("moe-layer-freq", gpt.moe_layer_freq,
            "layers 0, N, 2N, ... have experts; or a list with a 1 for each layer that has them, "
            "else a 0",
            {.needs = {kExperts}});
  flags.add("moe-ffn-hidden-size", gpt.moe_ffn_hidden_size, "width inside an expert",
            {.shown = "--ffn-hidden-size", .least = 0, .needs = {kExperts}});
  flags.add("moe-router-topk", gpt.moe_router_topk, "experts that a token goes to",
            {.least = 1, .needs = {kExperts}});
  flags.add("moe-router-score-function", gpt.moe_router_score_function,
            "scores of the experts; sigmoid as DeepSeek-V3 has",
            {.choices = {"softmax", "sigmoid"}, .needs = {kExperts}});
  flags.add("moe-router-topk-scaling-factor", gpt.moe_router_topk_scaling_factor,
            "multiplies the weights of the chosen experts", {.above = 0, .needs = {kExperts}});
  flags.add("moe-router-enable-expert-bias", gpt.moe_router_enable_expert_bias,
            "add to sigmoid scores, for the choice alone, a bias that grows while an expert has "
            "few tokens",
            {.needs = {kExperts, "--moe-router-score-function sigmoid"}});
  flags.add("moe-router-bias-update-rate", gpt.moe_router_bias_update_rate,
            "how far the bias moves in a step",
            {.least = 0, .needs = {"--moe-router-enable-expert-bias"}, .decides = kTraining});
  flags.add("moe-router-pre-softmax", gpt.moe_router_pre_softmax,
            "weigh experts by the softmax over all, not over the chosen ones",
            {.needs = {kExperts}, .excludes = {"--moe-router-score-function sigmoid"}});
  flags.add("moe-aux-loss-coeff", gpt.moe_aux_loss_coeff,
            "of the loss that spreads tokens over the experts",
            {.least = 0, .needs = {kExperts}, .decides = kTraining});
  flags.add("moe-z-loss-coeff", gpt.moe_z_loss_coeff, "of the loss that keeps scores small",
            {.least = 0, .needs = {kExperts}, .decides = kTraining});
  flags.add("moe-shared-expert-intermediate-size", gpt.moe_shared_expert_intermediate_size,
            "width of an MLP for all tokens beside the experts; 0: none",
            {.least = 0, .needs = {kExperts}});
  flags.add("moe-per-layer-logging", gpt.moe_per_layer_logging,
            "print at each --log-interval how many tokens of the step each expert had",
            {.needs = {kExperts}, .decides = kNothing});
  flags.add("moe-shared-expert-gate", gpt.moe_shared_expert_gate,
            "multiply what it returns by a learned gate",
            {.needs = {kExperts, "--moe-shared-expert-intermediate-size"}});
}

void add_position_flags(FlagTable& flags, GptConfig& gpt) {
  flags.group("Positions");
  flags.add("position-embedding-type", gpt.position_embedding_type,
            "how a model knows positions; alibi: scores fall with the distance",
            {.choices = {"absolute", "learned_absolute", "rope", "alibi", "none"}});
  flags.add("no-position-embedding", gpt.add_position_embedding,
            "no learned positions; implied by rotary ones and alibi",
            {.dest = "add_position_embedding"});
  flags.add("position-embedding-offset", gpt.position_embedding_offset,
            "rows of the learned table before that of position 0, as OPT has 2",
            {.least = 0, .most = 1 << 16});
  flags.add("use-rotary-position-embeddings", gpt.use_rotary_position_embeddings,
            "rotate queries and keys by their positions",
            {.excludes = {"--position-embedding-type alibi or none"}});
  flags.add("rotary-percent", gpt.rotary_percent, "part of a head's width that rotates",
            {.most = 1, .above = 0, .needs = {kRotary}});
  flags.add("rotary-position-embeddings-theta", gpt.rope_theta,
            "base of the rotation's wavelengths",
            {.dest = "rope_theta", .least = 1, .needs = {kRotary}});
  flags.alias("rotary-base", "rotary-position-embeddings-theta");
  flags.add("use-rope-scaling", gpt.use_rope_scaling,
            "longer wavelengths for a longer context, as in Llama 3.1 and later",
            {.needs = {kRotary}, .excludes = {"--rotary-seq-len-interpolation-factor"}});
  flags.add(
      "rope-scaling-factor", gpt.rope_scaling_factor,
      "how far --use-rope-scaling stretches wavelengths above Llama 3's 8192 tokens; those of up "
      "to a quarter stay",
      {.least = 1, .needs = {"--use-rope-scaling"}});
  flags.add("rotary-seq-len-interpolation-factor", gpt.rotary_seq_len_interpolation_factor,
            "divides the positions that rotate queries and keys", {.least = 1, .needs = {kRotary}});
  flags.add("rope-type", gpt.rope_type,
            "yarn stretches long wavelengths; dynamic has a greater base for samples longer than "
            "--original-max-position-embeddings",
            {.choices = {"rope", "yarn", "dynamic"},
             .needs = {kRotary, "--original-max-position-embeddings"},
             .excludes = {"--use-rope-scaling", "--rotary-seq-len-interpolation-factor"}});
  flags.add("rotary-scaling-factor", gpt.rotary_scaling_factor,
            "how far yarn and dynamic stretch the context", {.least = 1, .needs = {kStretched}});
  flags.add("original-max-position-embeddings", gpt.original_max_position_embeddings,
            "the context before yarn or dynamic stretches it",
            {.shown = "required by them", .least = 1, .needs = {kStretched}});
  flags.add("beta-fast", gpt.beta_fast, "yarn keeps wavelengths with more turns in that context",
            {.needs = {"--rope-type yarn"}});
  flags.add("beta-slow", gpt.beta_slow, "yarn stretches those with fewer turns in full",
            {.above = 0, .needs = {"--rope-type yarn"}});
}

void add_lora_flags(FlagTable& flags, GptConfig& gpt) {
  flags.group("Low-rank adapters (LoRA)");
  flags.add("lora-rank", gpt.lora_rank,
            "train matrices of this rank beside those of --lora-target, and nothing else; 0: none",
            {.least = 0, .excludes = {"--freeze"}});
  flags.add("lora-alpha", gpt.lora_alpha, "what they add is multiplied by this / --lora-rank",
            {.above = 0, .needs = {"--lora-rank"}});
  flags.add("lora-target", gpt.lora_target,
            "which of q_proj k_proj v_proj o_proj gate_proj up_proj down_proj, or all-linear; or "
            "Megatron's query_key_value dense dense_h_to_4h dense_4h_to_h",
            {.shown = "q_proj v_proj", .needs = {"--lora-rank"}});
  flags.add("lora-dropout", gpt.lora_dropout, "of what they read",
            {.least = 0, .below = 1, .needs = {"--lora-rank"}, .decides = kTraining});
}

std::vector<std::string> flags_that_decide(Decides what) {
  GptConfig gpt;
  FlagTable flags("", "");
  add_flags(flags, gpt);
  std::vector<std::string> names;
  for (const FlagTable::Flag& flag : flags.flags())
    if (flag.rule.decides == what) names.push_back(flag.name);
  return names;
}

// Flags of parameters that the model has.
std::vector<std::string> model_flags(const GptConfig& gpt) {
  std::vector<std::string> flags = flags_that_decide(kModel);
  if (!gpt.learned_positions()) std::erase(flags, "max-position-embeddings");
  if (gpt.gated() || gpt.relu) std::erase(flags, "no-bias-gelu-fusion");
  for (const char* flag : kAdapterFlags) std::erase(flags, flag);
  if (gpt.lora_rank == 0) flags.emplace_back(kAdapterFlags[0]);
  return flags;
}

// The flags of the parameters that the model trains beside a frozen base.
std::vector<std::string> adapter_flags(const GptConfig& gpt) {
  if (gpt.lora_rank == 0) return {};
  return {std::begin(kAdapterFlags), std::end(kAdapterFlags)};
}

// Queries, keys and values, and what enters the MLP's non-linearity. Experts are left out, since
// tokens choose their ranks.
int64_t kept_inside(const GptConfig& gpt) {
  const int64_t heads = gpt.num_attention_heads + 2 * int64_t{gpt.key_value_heads()},
                mlp = gpt.num_experts > 1 || gpt.recomputes("mlp")
                          ? 0
                          : int64_t{gpt.ffn_size()} * (gpt.gated() ? 2 : 1);
  return heads * gpt.head_dim() + mlp;
}

std::vector<std::string> training_flags(const GptConfig& gpt) {
  std::vector<std::string> flags = flags_that_decide(kTraining);
  if (gpt.num_experts > 1 && gpt.moe_aux_loss_coeff > 0)
    flags.emplace_back("micro-batch-size");  // the loss is over the tokens of a micro-batch
  return flags;
}

}  // namespace

void add_flags(FlagTable& flags, GptConfig& gpt) {
  flags.group("GPT");
  flags.add("num-layers", gpt.num_layers, "transformer layers", {.shown = "required", .least = 1});
  flags.add("hidden-size", gpt.hidden_size, "width of a token",
            {.shown = "required", .least = 1, .most = INT_MAX / 4});
  flags.add("num-attention-heads", gpt.num_attention_heads, "heads per layer",
            {.shown = "required", .least = 1});
  flags.add("ffn-hidden-size", gpt.ffn_hidden_size, "width inside the MLP",
            {.shown = "4 x --hidden-size, with --swiglu 8/3 x", .least = 0});
  flags.add("seq-length", gpt.seq_length, "tokens per sample",
            {.shown = "required", .least = 1, .decides = kNothing});
  flags.add("max-position-embeddings", gpt.max_position_embeddings,
            "rows of the learned position table, at least --seq-length",
            {.shown = "required", .least = 1});
  flags.add("make-vocab-size-divisible-by", gpt.make_vocab_size_divisible_by,
            "rows of the vocabulary, padded, are a multiple of this times the tensor-parallel size",
            {.least = 1, .decides = kNothing});
  flags.add("untie-embeddings-and-output-weights", gpt.untie_embeddings_and_output_weights,
            "give the output layer weights of its own");
  flags.add("no-pipeline-parallel", gpt.no_pipeline_parallel,
            "name parameters in checkpoints as Megatron does without its pipeline module: "
            "language_model.encoder.layers.0...",
            {.decides = kNothing});
  flags.add("no-bias-gelu-fusion", gpt.bias_gelu_fusion,
            "erf GELU in place of the tanh GELU of Megatron's fused kernel");
  flags.add("init-method-std", gpt.init_method_std, "standard deviation of the initial weights",
            {.above = 0, .decides = kNothing});
  flags.add("layernorm-epsilon", gpt.layernorm_epsilon, "term added to a norm's variance",
            {.above = 0});
  flags.alias("norm-epsilon", "layernorm-epsilon");
  flags.add("attention-dropout", gpt.attention_dropout, "of the attention probabilities",
            {.least = 0, .below = 1, .decides = kTraining});
  flags.add("hidden-dropout", gpt.hidden_dropout, "of the embedding and of each sublayer's output",
            {.least = 0, .below = 1, .decides = kTraining});
  flags.add("recompute-modules", gpt.recompute_modules,
            "parts of a layer of which only the input is kept, and whose forward pass is repeated: "
            "core_attn (between the projections), mlp, moe (the experts)",
            {.shown = "none",
             .excludes = {"--activation-checkpointing, which repeats whole layers"},
             .decides = kNothing});
  add_architecture_flags(flags, gpt);
  add_expert_flags(flags, gpt);
  add_position_flags(flags, gpt);
  add_lora_flags(flags, gpt);
  flags.group("Documents in a sample");
  flags.add("reset-position-ids", gpt.reset_position_ids,
            "count positions from the beginning of each document", kDocuments);
  flags.add("reset-attention-mask", gpt.reset_attention_mask,
            "let a token see its own document alone", kDocuments);
  flags.add("eod-mask-loss", gpt.eod_mask_loss,
            "leave the token behind the end of a document out of the loss", kDocuments);
}

ModelFacts model_facts(const GptConfig& gpt, int tp) {
  return {.seq_length = gpt.seq_length,
          .vocab_size = gpt.vocab_size,
          .padded_vocab_size = padded_vocab_size(gpt, tp),
          .layers = gpt.num_layers,
          .kept_input = gpt.hidden_size,
          .kept_inside = kept_inside(gpt),
          .flags = model_flags(gpt),
          .adapter_flags = adapter_flags(gpt),
          .training_flags = training_flags(gpt),
          .all_stages_read_data = gpt.separates_documents(),
          .keeps_bits = true,
          .gpu_note =
              gpt.attention_dropout == 0
                  ? ""
                  : "on a GPU, --attention-dropout keeps the weights of attention in memory, "
                    "[micro-batch, heads, sequence, sequence] for each layer; with 0 it is fused"};
}

}  // namespace anymesh
