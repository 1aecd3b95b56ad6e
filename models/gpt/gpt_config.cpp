#include "models/gpt/gpt_config.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <numeric>
#include <string>

#include "framework/config/parse.h"
#include "framework/config/require.h"
#include "framework/util/format.h"
#include "framework/util/parse_number.h"
#include "models/gpt/lora.h"

namespace anymesh {
namespace {

void check_architecture(const GptConfig& gpt) {
  require(gpt.kv_channels != 0 || gpt.hidden_size % gpt.num_attention_heads == 0,
          with("--hidden-size", gpt.hidden_size), " must be divisible by ",
          with("--num-attention-heads", gpt.num_attention_heads),
          "; or give the width of a head, --kv-channels");
  require(gpt.max_position_embeddings >= gpt.seq_length,
          with("--max-position-embeddings", gpt.max_position_embeddings), " must be at least ",
          with("--seq-length", gpt.seq_length));
  require(gpt.num_attention_heads % gpt.key_value_heads() == 0,
          with("--num-key-value-heads", gpt.num_key_value_heads), " must be positive and divide ",
          with("--num-attention-heads", gpt.num_attention_heads));
  require(gpt.ffn_size() > 0, "--swiglu makes the default of --ffn-hidden-size 8/3 x ",
          with("--hidden-size", gpt.hidden_size),
          ", down to a multiple of 64, which is 0; give one");
  gpt.window();  // throws
}

void check_expert_layers(const GptConfig& gpt) {
  const std::vector<int>& layers = gpt.moe_layer_freq;
  const char* const flag = "--moe-layer-freq";
  if (layers.size() == 1)
    return require(layers[0] >= 1, with(flag, layers[0]), " must be at least 1");
  const std::string list = with(flag, list_text({layers.begin(), layers.end()}));
  require(layers.size() == static_cast<size_t>(gpt.num_layers), list,
          " must have an item for each of ", with("--num-layers", gpt.num_layers));
  require(std::ranges::all_of(layers, [](int layer) { return layer == 0 || layer == 1; }), list,
          " must have items of 0 and 1");
  require(std::ranges::count(layers, 1) > 0, list, " must have a 1, since ",
          with("--num-experts", gpt.num_experts), " has no effect otherwise");
}

void check_experts(const GptConfig& gpt) {
  if (gpt.num_experts <= 1) return;
  const std::string count = with("--num-experts", gpt.num_experts);
  require(gpt.gated() && !gpt.add_bias_linear, count,
          " needs --swiglu or --geglu, and --disable-bias-linear: experts are gated MLPs "
          "without biases");
  require(gpt.moe_router_topk <= gpt.num_experts, with("--moe-router-topk", gpt.moe_router_topk),
          " must be from 1 to ", count);
  check_expert_layers(gpt);
}

void check_positions(const GptConfig& gpt) {
  require(gpt.learned_positions() || gpt.position_embedding_offset == 0,
          with("--position-embedding-offset", gpt.position_embedding_offset),
          " is for learned positions");
  require(gpt.beta_fast > gpt.beta_slow, with("--beta-fast", gpt.beta_fast), " must be above ",
          with("--beta-slow", gpt.beta_slow));
  require(!gpt.rotary() || (gpt.rotary_width() >= 2 && gpt.rotary_width() % 2 == 0),
          with("--rotary-percent", gpt.rotary_percent), " of a head of ", gpt.head_dim(),
          " elements rotates ", gpt.rotary_width(), " of them, which must be even and at least 2");
}

void check_adapters(const GptConfig& gpt) {
  lora_targets(gpt);  // throws
  require(gpt.lora_rank == 0 || !gpt.moe_router_enable_expert_bias ||
              gpt.moe_router_bias_update_rate == 0,
          with("--lora-rank", gpt.lora_rank), " trains nothing but adapters, got ",
          with("--moe-router-bias-update-rate", gpt.moe_router_bias_update_rate),
          ", which changes the routers; give --moe-router-bias-update-rate 0");
}

void check_modules(const std::vector<std::string>& modules) {
  for (const std::string& module : modules)
    require(module == "core_attn" || module == "mlp" || module == "moe", "--recompute-modules ",
            module, ": expected some of core_attn, mlp, moe");
}

void check_documents(const GptConfig& gpt) {
  require(
      !gpt.reset_position_ids || gpt.learned_positions() || gpt.rotary(),
      "--reset-position-ids has no effect on a model without position ids, as with alibi, which "
      "counts distances; leave it out");
}

void check_chunks(int layers, const Config& config, const BatchPlan& plan) {
  const int each = config.parallel.layers_per_chunk, pp = config.parallel.pp;
  if (each == 0) return;
  const std::string chunk = with("--num-layers-per-virtual-pipeline-stage", each),
                    stages = with("--pipeline-model-parallel-size", pp);
  require(pp > 1, chunk, " needs stages to cut, got ", stages, "; leave it out, or use ",
          "--pipeline-model-parallel-size 2");
  require(layers % pp == 0 && layers / pp % each == 0, with("--num-layers", layers),
          " must be divisible by ", stages, " x ", chunk, " = ", int64_t{pp} * each);
  if (layers / pp == each) return;
  const int64_t samples = int64_t{plan.samples_at_once} * pp;
  for (const auto& [flag, size] :
       {std::pair("--global-batch-size", int64_t{plan.global_batch_size}),
        {"--rampup-batch-size", plan.ramp.start},
        {"--rampup-batch-size", plan.ramp.increment}})
    require(size % samples == 0, chunk, ": ", flag, " (", size, ") must be divisible by ", samples,
            ", --micro-batch-size x data-parallel size x ", stages,
            ": micro-batches go through a chunk in groups of as many as there are stages");
}

void check_mesh(const GptConfig& gpt, const ParallelConfig& parallel) {
  require(!gpt.no_pipeline_parallel || parallel.pp == 1,
          "--no-pipeline-parallel: ", with("--pipeline-model-parallel-size", parallel.pp),
          " must be 1: the names that it asks for belong to a model without stages");
  require(gpt.num_layers >= parallel.pp, with("--num-layers", gpt.num_layers), " must be at least ",
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
    require(size % parallel.tp == 0, with(flag, size), " must be divisible by ",
            with("--tensor-model-parallel-size", parallel.tp), "; sizes that work: ", choices);
  }
}

void check_expert_mesh(const GptConfig& gpt, const ParallelConfig& parallel) {
  const std::string ep = with("--expert-model-parallel-size", parallel.ep),
                    etp = with("--expert-tensor-parallel-size", parallel.etp),
                    count = with("--num-experts", gpt.num_experts);
  for (const auto& [flag, unset] : {std::pair(ep, parallel.ep == 1), {etp, parallel.etp == 0}})
    require(gpt.num_experts > 1 || unset, flag, " has no effect without --num-experts");
  require(parallel.ep == 1 || gpt.num_experts % parallel.ep == 0, ep, " must divide ", count);
}

void check_same_bits(const GptConfig& gpt, const Config& config) {
  const int blocks = config.parallel.same_bits;
  if (blocks == 0) return;
  const std::string given = with("--same-bits", blocks);
  require(gpt.num_experts <= 1, given,
          " is for dense models: experts' tokens are added in an order "
          "that depends on the mesh (",
          with("--num-experts", gpt.num_experts), ")");
  require(gpt.lora_rank == 0, given, " is for whole models, got ",
          with("--lora-rank", gpt.lora_rank));
  require(!gpt.qk_layernorm && !gpt.qk_layernorm_all_heads, given,
          " is for heads without norms of their own, got "
          "--qk-layernorm");
  require(gpt.activation() != GptConfig::Activation::kGeluErf, given,
          " needs the tanh GELU of --bias-gelu-fusion, --swiglu, --geglu or --relu, since the "
          "erf GELU depends on where vectors begin");
  const std::string width = " must be divisible by ";
  for (const auto& [flag, size] :
       {std::pair("--hidden-size", gpt.hidden_size), {"--kv-channels", gpt.head_dim()}})
    require(size % 16 == 0, given, ": ", with(flag, size), width, "16");
  for (const auto& [flag, size] :
       {std::pair("--ffn-hidden-size", gpt.ffn_size()),
        {"--num-attention-heads x --kv-channels", gpt.num_attention_heads * gpt.head_dim()},
        {"the rows of queries, keys and values",
         (gpt.num_attention_heads + 2 * gpt.key_value_heads()) * gpt.head_dim()}})
    require(size % blocks == 0, given, ": ", with(flag, size), width, blocks, " blocks");
}

// Models of others may have such a router, and go on.
void check_new_router(const GptConfig& gpt, const std::string& load) {
  require(!load.empty() || gpt.num_experts <= 1 || gpt.moe_router_topk > 1 ||
              gpt.moe_router_pre_softmax || gpt.moe_router_score_function == "sigmoid",
          with("--moe-router-topk", gpt.moe_router_topk),
          " needs --moe-router-pre-softmax: a softmax over one score is always 1, and the "
          "router would learn nothing. A model that has such a router needs --load or "
          "--pretrained-checkpoint");
}

}  // namespace

int GptConfig::window() const {
  const size_t comma = std::min(window_size.find(','), window_size.size());
  const auto before = parse_number<int>(window_size.substr(0, comma));
  require(before && *before >= -1 && *before < INT_MAX && window_size.substr(comma) == ",0",
          with("--window-size", window_size),
          " must be N,0: N tokens before a query's own, and none behind it; or -1,0 for all");
  return *before + 1;
}

bool GptConfig::recomputes(const std::string& module) const {
  return std::ranges::find(recompute_modules, module) != recompute_modules.end();
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
  gpt.lora_target = lora_targets(gpt);
  return gpt;
}

void validate(const GptConfig& gpt) {
  Config config;
  GptConfig checked;
  FlagTable flags("", "");
  add_flags(flags, config);
  const size_t first = flags.flags().size();
  add_flags(flags, checked);
  checked = gpt;
  flags.check(first);
  check_architecture(gpt);
  check_experts(gpt);
  check_positions(gpt);
  check_adapters(gpt);
  check_modules(gpt.recompute_modules);
}

void validate(const Config& config, const GptConfig& gpt, int world_size) {
  validate(config, world_size);
  validate(gpt);
  check_documents(gpt);
  check_mesh(gpt, config.parallel);
  check_chunks(gpt.num_layers, config, plan_batches(config, world_size));
  check_expert_mesh(gpt, config.parallel);
  check_same_bits(gpt, config);
  check_new_router(gpt, config.checkpoint.load + config.checkpoint.pretrained_checkpoint);
}

int64_t padded_vocab_size(const GptConfig& gpt, int tp) {
  const int64_t multiple = int64_t{gpt.make_vocab_size_divisible_by} * tp;
  return (gpt.vocab_size + multiple - 1) / multiple * multiple;
}

}  // namespace anymesh
