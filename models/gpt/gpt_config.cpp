#include "models/gpt/gpt_config.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <numeric>
#include <string>

#include "framework/config/require.h"
#include "framework/util/format.h"
#include "framework/util/parse_number.h"

namespace anymesh {
namespace {

void check_shape(const GptConfig& gpt) {
  const std::pair<const char*, int> sizes[] = {
      {"--num-layers", gpt.num_layers},
      {"--hidden-size", gpt.hidden_size},
      {"--num-attention-heads", gpt.num_attention_heads},
      {"--seq-length", gpt.seq_length},
      {"--max-position-embeddings", gpt.max_position_embeddings},
      {"--make-vocab-size-divisible-by", gpt.make_vocab_size_divisible_by},
  };
  for (const auto& [flag, size] : sizes) {
    require(size >= 1, with(flag, size) + " is required and must be at least 1");
  }
  require(gpt.hidden_size <= INT_MAX / 4, with("--hidden-size", gpt.hidden_size) + " is too large");
  require(gpt.ffn_hidden_size >= 0,
          with("--ffn-hidden-size", gpt.ffn_hidden_size) + " must not be negative");
  require(gpt.kv_channels >= 0 && gpt.kv_channels <= 1 << 16,
          with("--kv-channels", gpt.kv_channels) + " must be in [0, 65536]");
  require(gpt.kv_channels != 0 || gpt.hidden_size % gpt.num_attention_heads == 0,
          with("--hidden-size", gpt.hidden_size) + " must be divisible by " +
              with("--num-attention-heads", gpt.num_attention_heads) +
              "; or give the width of a head, --kv-channels");
  require(gpt.max_position_embeddings >= gpt.seq_length,
          with("--max-position-embeddings", gpt.max_position_embeddings) + " must be at least " +
              with("--seq-length", gpt.seq_length));
}

void check_architecture(const GptConfig& gpt) {
  require(gpt.rms_norm() || gpt.normalization == "layernorm" || gpt.normalization == "LayerNorm",
          with("--normalization", gpt.normalization) + " must be layernorm or rmsnorm");
  const int groups = gpt.num_key_value_heads;
  require(groups >= 0 && gpt.num_attention_heads % gpt.key_value_heads() == 0,
          with("--num-key-value-heads", groups) + " must be positive and divide " +
              with("--num-attention-heads", gpt.num_attention_heads));
  require(!gpt.group_query_attention || groups != 0,
          "--group-query-attention needs --num-query-groups");
  require(gpt.swiglu + gpt.geglu + gpt.relu <= 1,
          "--swiglu, --geglu and --relu exclude each other");
  require(gpt.ffn_size() > 0, "--swiglu makes the default of --ffn-hidden-size 8/3 x " +
                                  with("--hidden-size", gpt.hidden_size) +
                                  ", down to a multiple of 64, which is 0; give one");
  for (const auto& [flag, on] : {std::pair("--add-qkv-bias", gpt.add_qkv_bias),
                                 {"--add-attention-linear-bias", gpt.add_attention_linear_bias}})
    require(!on || !gpt.add_bias_linear,
            std::string(flag) + " has no effect without --disable-bias-linear");
  require(!gpt.add_qkv_bias || !gpt.add_attention_linear_bias,
          "--add-qkv-bias has no effect beside --add-attention-linear-bias");
  require(!gpt.qk_layernorm_all_heads || gpt.qk_layernorm,
          "--qk-layernorm-all-heads has no effect without --qk-layernorm");
  require(!gpt.qk_layernorm_all_heads || gpt.rms_norm(),
          "--qk-layernorm-all-heads needs --normalization rmsnorm, not " +
              with("--normalization", gpt.normalization));
  gpt.window();  // throws
}

void check_expert_layers(const GptConfig& gpt) {
  const std::vector<int>& layers = gpt.moe_layer_freq;
  const char* const flag = "--moe-layer-freq";
  if (layers.size() == 1) {
    require(layers[0] >= 1, with(flag, layers[0]) + " must be at least 1");
    return;
  }
  const std::string list = with(flag, list_text({layers.begin(), layers.end()}));
  require(layers.size() == static_cast<size_t>(gpt.num_layers),
          list + " must have an item for each of " + with("--num-layers", gpt.num_layers));
  require(std::ranges::all_of(layers, [](int layer) { return layer == 0 || layer == 1; }),
          list + " must have items of 0 and 1");
  require(std::ranges::count(layers, 1) > 0, list + " must have a 1, since " +
                                                 with("--num-experts", gpt.num_experts) +
                                                 " has no effect otherwise");
}

void check_experts(const GptConfig& gpt) {
  const GptConfig unset;
  const std::string count = with("--num-experts", gpt.num_experts),
                    chosen = with("--moe-router-topk", gpt.moe_router_topk);
  require(gpt.num_experts >= 0, count + " must be at least 0");
  if (gpt.num_experts <= 1) {
    const auto unused = [](bool is_unset, const std::string& what) {
      require(is_unset, what + " has no effect without --num-experts of at least 2");
    };
    unused(gpt.moe_router_topk == unset.moe_router_topk, chosen);
    unused(gpt.moe_layer_freq == unset.moe_layer_freq, "--moe-layer-freq");
    unused(gpt.moe_ffn_hidden_size == 0, with("--moe-ffn-hidden-size", gpt.moe_ffn_hidden_size));
    unused(gpt.moe_router_score_function == unset.moe_router_score_function,
           with("--moe-router-score-function", gpt.moe_router_score_function));
    unused(gpt.moe_router_topk_scaling_factor == 1,
           with("--moe-router-topk-scaling-factor", gpt.moe_router_topk_scaling_factor));
    unused(!gpt.moe_router_enable_expert_bias, "--moe-router-enable-expert-bias");
    unused(!gpt.moe_router_pre_softmax, "--moe-router-pre-softmax");
    unused(gpt.moe_aux_loss_coeff == 0, with("--moe-aux-loss-coeff", gpt.moe_aux_loss_coeff));
    unused(gpt.moe_z_loss_coeff == 0, with("--moe-z-loss-coeff", gpt.moe_z_loss_coeff));
    unused(gpt.moe_shared_expert_intermediate_size == 0,
           with("--moe-shared-expert-intermediate-size", gpt.moe_shared_expert_intermediate_size));
    unused(!gpt.moe_shared_expert_gate, "--moe-shared-expert-gate");
    unused(!gpt.moe_per_layer_logging, "--moe-per-layer-logging");
    return;
  }
  require(gpt.gated() && !gpt.add_bias_linear,
          count +
              " needs --swiglu or --geglu, and --disable-bias-linear: experts are gated MLPs "
              "without biases");
  require(gpt.moe_router_topk >= 1 && gpt.moe_router_topk <= gpt.num_experts,
          chosen + " must be from 1 to " + count);
  const std::string function = with("--moe-router-score-function", gpt.moe_router_score_function);
  const bool sigmoid = gpt.moe_router_score_function == "sigmoid";
  require(sigmoid || gpt.moe_router_score_function == "softmax",
          function + " must be softmax or sigmoid");
  require(!sigmoid || !gpt.moe_router_pre_softmax,
          "--moe-router-pre-softmax has no effect with " + function);
  require(
      sigmoid || !gpt.moe_router_enable_expert_bias,
      "--moe-router-enable-expert-bias needs --moe-router-score-function sigmoid, not " + function);
  require(gpt.moe_router_enable_expert_bias ||
              gpt.moe_router_bias_update_rate == unset.moe_router_bias_update_rate,
          with("--moe-router-bias-update-rate", gpt.moe_router_bias_update_rate) +
              " has no effect without --moe-router-enable-expert-bias");
  require(gpt.moe_router_bias_update_rate >= 0,
          with("--moe-router-bias-update-rate", gpt.moe_router_bias_update_rate) +
              " must be at least 0");
  require(gpt.moe_router_topk_scaling_factor > 0,
          with("--moe-router-topk-scaling-factor", gpt.moe_router_topk_scaling_factor) +
              " must be positive");
  check_expert_layers(gpt);
  for (const auto& [flag, size] :
       {std::pair("--moe-ffn-hidden-size", gpt.moe_ffn_hidden_size),
        {"--moe-shared-expert-intermediate-size", gpt.moe_shared_expert_intermediate_size}})
    require(size >= 0, with(flag, size) + " must be at least 0");
  for (const auto& [flag, coefficient] : {std::pair("--moe-aux-loss-coeff", gpt.moe_aux_loss_coeff),
                                          {"--moe-z-loss-coeff", gpt.moe_z_loss_coeff}})
    require(coefficient >= 0, with(flag, coefficient) + " must be at least 0");
  require(!gpt.moe_shared_expert_gate || gpt.moe_shared_expert_intermediate_size > 0,
          "--moe-shared-expert-gate has no effect without --moe-shared-expert-intermediate-size");
}

void check_rope_type(const GptConfig& gpt) {
  const std::string type = with("--rope-type", gpt.rope_type);
  require(gpt.rope_type == "rope" || gpt.rope_type == "yarn" || gpt.rope_type == "dynamic",
          type + " must be rope, yarn or dynamic");
  const GptConfig unset;
  const bool yarn = gpt.rope_type == "yarn";
  require(yarn || (gpt.beta_fast == unset.beta_fast && gpt.beta_slow == unset.beta_slow),
          "--beta-fast and --beta-slow have no effect without --rope-type yarn");
  require(gpt.beta_fast > gpt.beta_slow && gpt.beta_slow > 0,
          with("--beta-fast", gpt.beta_fast) + " must be above " +
              with("--beta-slow", gpt.beta_slow) + ", which must be positive");
  const std::string factor = with("--rotary-scaling-factor", gpt.rotary_scaling_factor),
                    original = with("--original-max-position-embeddings",
                                    gpt.original_max_position_embeddings);
  if (gpt.rope_type == "rope") {
    const std::string useless = " has no effect without --rope-type yarn or dynamic";
    require(gpt.rotary_scaling_factor == unset.rotary_scaling_factor, factor + useless);
    require(gpt.original_max_position_embeddings == 0, original + useless);
    return;
  }
  require(gpt.rotary_scaling_factor >= 1, factor + " must be at least 1");
  require(gpt.original_max_position_embeddings >= 1,
          original + " is required by " + type + " and must be at least 1");
  require(
      !gpt.use_rope_scaling && gpt.rotary_seq_len_interpolation_factor == 1,
      type + ", --use-rope-scaling and --rotary-seq-len-interpolation-factor exclude each other");
}

void check_positions(const GptConfig& gpt) {
  const std::string percent = with("--rotary-percent", gpt.rotary_percent),
                    theta = with("--rotary-position-embeddings-theta", gpt.rope_theta),
                    scaling = with("--rope-scaling-factor", gpt.rope_scaling_factor),
                    interpolation = with("--rotary-seq-len-interpolation-factor",
                                         gpt.rotary_seq_len_interpolation_factor),
                    type = with("--position-embedding-type", gpt.position_embedding_type),
                    offset = with("--position-embedding-offset", gpt.position_embedding_offset);
  constexpr const char* kTypes[] = {"absolute", "learned_absolute", "alibi", "rope", "none"};
  require(std::ranges::find(kTypes, gpt.position_embedding_type) != std::end(kTypes),
          type + " must be absolute, learned_absolute, rope, alibi or none");
  require(gpt.position_embedding_offset >= 0 && gpt.position_embedding_offset <= 1 << 16,
          offset + " must be in [0, 65536]");
  require(gpt.learned_positions() || gpt.position_embedding_offset == 0,
          offset + " is for learned positions");
  const GptConfig unset;
  require(gpt.use_rope_scaling || gpt.rope_scaling_factor == unset.rope_scaling_factor,
          scaling + " has no effect without --use-rope-scaling");
  check_rope_type(gpt);
  if (!gpt.rotary()) {
    const std::string useless = " has no effect without --use-rotary-position-embeddings";
    require(gpt.rotary_percent == unset.rotary_percent, percent + useless);
    require(gpt.rope_theta == unset.rope_theta, theta + useless);
    require(!gpt.use_rope_scaling, "--use-rope-scaling" + useless);
    require(gpt.rope_type == unset.rope_type, with("--rope-type", gpt.rope_type) + useless);
    require(gpt.rotary_seq_len_interpolation_factor == 1, interpolation + useless);
    return;
  }
  require(!gpt.alibi() && gpt.position_embedding_type != "none",
          type + " and --use-rotary-position-embeddings exclude each other");
  require(gpt.rope_theta >= 1, theta + " must be at least 1");
  require(gpt.rope_scaling_factor >= 1, scaling + " must be at least 1");
  require(gpt.rotary_seq_len_interpolation_factor >= 1, interpolation + " must be at least 1");
  require(!gpt.use_rope_scaling || gpt.rotary_seq_len_interpolation_factor == 1,
          interpolation + " and --use-rope-scaling exclude each other");
  require(gpt.rotary_percent > 0 && gpt.rotary_percent <= 1, percent + " must be in (0, 1]");
  require(gpt.rotary_width() >= 2 && gpt.rotary_width() % 2 == 0,
          percent + " of a head of " + std::to_string(gpt.head_dim()) + " elements rotates " +
              std::to_string(gpt.rotary_width()) + " of them, which must be even and at least 2");
}

void check_numbers(const GptConfig& gpt) {
  require(gpt.init_method_std > 0,
          with("--init-method-std", gpt.init_method_std) + " must be positive");
  require(gpt.layernorm_epsilon > 0,
          with("--layernorm-epsilon", gpt.layernorm_epsilon) + " must be positive");
  require(gpt.attention_dropout >= 0 && gpt.attention_dropout < 1,
          with("--attention-dropout", gpt.attention_dropout) + " must be in [0, 1)");
  require(gpt.hidden_dropout >= 0 && gpt.hidden_dropout < 1,
          with("--hidden-dropout", gpt.hidden_dropout) + " must be in [0, 1)");
}

void check_documents(const GptConfig& gpt, const DataConfig& data) {
  for (const auto& [flag, on] : {std::pair("--reset-position-ids", gpt.reset_position_ids),
                                 {"--reset-attention-mask", gpt.reset_attention_mask},
                                 {"--eod-mask-loss", gpt.eod_mask_loss}})
    require(!on || !data.mock_data,
            std::string(flag) + " has no effect with --mock-data, whose text has no documents");
  require(
      !gpt.reset_position_ids || gpt.learned_positions() || gpt.rotary(),
      "--reset-position-ids has no effect on a model without position ids, as with alibi, which "
      "counts distances; leave it out");
}

void check_mesh(const GptConfig& gpt, const ParallelConfig& parallel) {
  require(!gpt.no_pipeline_parallel || parallel.pp == 1,
          "--no-pipeline-parallel: " + with("--pipeline-model-parallel-size", parallel.pp) +
              " must be 1: the names that it asks for belong to a model without stages");
  require(gpt.num_layers >= parallel.pp, with("--num-layers", gpt.num_layers) +
                                             " must be at least " +
                                             with("--pipeline-model-parallel-size", parallel.pp));
  const int heads = gpt.key_value_heads();  // divides --num-attention-heads
  std::vector<std::pair<const char*, int>> cut = {
      {heads == gpt.num_attention_heads ? "--num-attention-heads" : "--num-key-value-heads", heads},
      {"--ffn-hidden-size", gpt.ffn_size()}};
  if (gpt.num_experts > 1 && !parallel.whole_experts())
    cut.emplace_back("--moe-ffn-hidden-size", gpt.moe_ffn_size());
  if (gpt.moe_shared_expert_intermediate_size > 0)
    cut.emplace_back("--moe-shared-expert-intermediate-size",
                     gpt.moe_shared_expert_intermediate_size);
  if (parallel.sequence_parallel)
    cut.emplace_back("--sequence-parallel: --seq-length", gpt.seq_length);
  int common = 0;
  for (const auto& [flag, size] : cut) common = std::gcd(common, size);
  std::string choices;
  for (int tp = 1; tp <= common; ++tp) {
    if (common % tp == 0) choices += (choices.empty() ? "" : ", ") + std::to_string(tp);
  }
  for (const auto& [flag, size] : cut) {
    require(size % parallel.tp == 0, with(flag, size) + " must be divisible by " +
                                         with("--tensor-model-parallel-size", parallel.tp) +
                                         "; sizes that work: " + choices);
  }
}

void check_expert_mesh(const GptConfig& gpt, const ParallelConfig& parallel) {
  const std::string ep = with("--expert-model-parallel-size", parallel.ep),
                    etp = with("--expert-tensor-parallel-size", parallel.etp),
                    count = with("--num-experts", gpt.num_experts);
  for (const auto& [flag, unset] : {std::pair(ep, parallel.ep == 1), {etp, parallel.etp == 0}})
    require(gpt.num_experts > 1 || unset, flag + " has no effect without --num-experts");
  require(parallel.ep == 1 || gpt.num_experts % parallel.ep == 0, ep + " must divide " + count);
}

// Models of others may have such a router, and go on.
void check_new_router(const GptConfig& gpt, const std::string& load) {
  require(!load.empty() || gpt.num_experts <= 1 || gpt.moe_router_topk > 1 ||
              gpt.moe_router_pre_softmax || gpt.moe_router_score_function == "sigmoid",
          with("--moe-router-topk", gpt.moe_router_topk) +
              " needs --moe-router-pre-softmax: a softmax over one score is always 1, and the "
              "router would learn nothing. A model that has such a router needs --load");
}

}  // namespace

int GptConfig::window() const {
  const size_t comma = std::min(window_size.find(','), window_size.size());
  const auto before = parse_number<int>(window_size.substr(0, comma));
  require(before && *before >= -1 && *before < INT_MAX && window_size.substr(comma) == ",0",
          with("--window-size", window_size) +
              " must be N,0: N tokens before a query's own, and none behind it; or -1,0 for all");
  return *before + 1;
}

bool GptConfig::has_experts(int layer) const {
  if (num_experts <= 1) return false;
  return moe_layer_freq.size() == 1 ? layer % moe_layer_freq[0] == 0
                                    : moe_layer_freq.at(static_cast<size_t>(layer)) == 1;
}

GptConfig::Activation GptConfig::activation() const {
  if (swiglu) return Activation::kSwiglu;
  if (geglu) return Activation::kGeglu;
  if (relu) return Activation::kRelu;
  // Megatron's fused kernel, which adds a bias, has the tanh GELU.
  return bias_gelu_fusion && add_bias_linear ? Activation::kGeluTanh : Activation::kGeluErf;
}

int GptConfig::ffn_size() const {
  if (ffn_hidden_size != 0) return ffn_hidden_size;
  return swiglu ? hidden_size / 24 * 64 : 4 * hidden_size;
}

double GptConfig::residual_std() const { return init_method_std / std::sqrt(2.0 * num_layers); }

GptConfig resolved(GptConfig gpt) {
  gpt.kv_channels = gpt.head_dim();
  gpt.ffn_hidden_size = gpt.ffn_size();
  gpt.num_key_value_heads = gpt.key_value_heads();
  gpt.num_experts = std::max(1, gpt.num_experts);
  gpt.moe_ffn_hidden_size = gpt.num_experts > 1 ? gpt.moe_ffn_size() : 0;
  gpt.bias_gelu_fusion = gpt.bias_gelu_fusion && gpt.add_bias_linear;
  gpt.normalization = gpt.rms_norm() ? "rmsnorm" : "layernorm";
  gpt.use_rotary_position_embeddings = gpt.rotary();
  gpt.add_position_embedding = gpt.learned_positions();
  if (!gpt.alibi()) gpt.position_embedding_type = "absolute";
  return gpt;
}

void validate(const GptConfig& gpt) {
  check_shape(gpt);
  check_architecture(gpt);
  check_experts(gpt);
  check_positions(gpt);
  check_numbers(gpt);
}

void validate(const Config& config, const GptConfig& gpt, int world_size) {
  validate(config, world_size);
  validate(gpt);
  check_documents(gpt, config.data);
  check_mesh(gpt, config.parallel);
  check_expert_mesh(gpt, config.parallel);
  check_new_router(gpt, config.checkpoint.load);
}

int64_t padded_vocab_size(const GptConfig& gpt, int tp) {
  const int64_t multiple = int64_t{gpt.make_vocab_size_divisible_by} * tp;
  return (gpt.vocab_size + multiple - 1) / multiple * multiple;
}

}  // namespace anymesh
