#include "models/gpt/gpt_config.h"

#include <climits>
#include <cmath>
#include <numeric>
#include <string>

#include "framework/config/require.h"

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
  require(gpt.hidden_size % gpt.num_attention_heads == 0,
          with("--hidden-size", gpt.hidden_size) + " must be divisible by " +
              with("--num-attention-heads", gpt.num_attention_heads));
  require(gpt.max_position_embeddings >= gpt.seq_length,
          with("--max-position-embeddings", gpt.max_position_embeddings) + " must be at least " +
              with("--seq-length", gpt.seq_length));
}

void check_architecture(const GptConfig& gpt) {
  require(gpt.normalization == "layernorm" || gpt.normalization == "rmsnorm",
          with("--normalization", gpt.normalization) + " must be layernorm or rmsnorm");
  const int groups = gpt.num_key_value_heads;
  require(groups >= 0 && gpt.num_attention_heads % gpt.key_value_heads() == 0,
          with("--num-key-value-heads", groups) + " must be positive and divide " +
              with("--num-attention-heads", gpt.num_attention_heads));
  require(gpt.ffn_size() > 0, "--swiglu makes the default of --ffn-hidden-size 8/3 x " +
                                  with("--hidden-size", gpt.hidden_size) +
                                  ", down to a multiple of 64, which is 0; give one");
}

void check_positions(const GptConfig& gpt) {
  const std::string percent = with("--rotary-percent", gpt.rotary_percent),
                    theta = with("--rotary-position-embeddings-theta", gpt.rope_theta),
                    scaling = with("--rope-scaling-factor", gpt.rope_scaling_factor),
                    interpolation = with("--rotary-seq-len-interpolation-factor",
                                         gpt.rotary_seq_len_interpolation_factor),
                    type = with("--position-embedding-type", gpt.position_embedding_type);
  require(gpt.position_embedding_type != "rotary", type + ": use --use-rotary-position-embeddings");
  require(gpt.position_embedding_type == "absolute" || gpt.alibi(),
          type + " must be absolute or alibi");
  const GptConfig unset;
  require(gpt.use_rope_scaling || gpt.rope_scaling_factor == unset.rope_scaling_factor,
          scaling + " has no effect without --use-rope-scaling");
  if (!gpt.use_rotary_position_embeddings) {
    const std::string useless = " has no effect without --use-rotary-position-embeddings";
    require(gpt.rotary_percent == unset.rotary_percent, percent + useless);
    require(gpt.rope_theta == unset.rope_theta, theta + useless);
    require(!gpt.use_rope_scaling, "--use-rope-scaling" + useless);
    require(gpt.rotary_seq_len_interpolation_factor == 1, interpolation + useless);
    return;
  }
  require(!gpt.alibi(), type + " and --use-rotary-position-embeddings exclude each other");
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

void add_architecture_flags(FlagTable& flags, GptConfig& gpt) {
  flags.group("Architecture (Llama, BLOOM)");
  flags.add("num-key-value-heads", gpt.num_key_value_heads,
            "key and value heads, each shared by a group of query heads", "--num-attention-heads");
  flags.add("swiglu", gpt.swiglu, "silu(gate) x up in place of GELU inside the MLP");
  flags.add("disable-bias-linear", gpt.add_bias_linear,
            "no biases in attention and MLP; makes GELU the erf one", "", "add_bias_linear");
  flags.add("normalization", gpt.normalization, "layernorm or rmsnorm");
  flags.add("embed-layernorm", gpt.embed_layernorm, "normalize the word embeddings too");
  flags.add("use-rotary-position-embeddings", gpt.use_rotary_position_embeddings,
            "rotate queries and keys by their positions");
  flags.add("rotary-percent", gpt.rotary_percent, "part of a head's width that rotates");
  flags.add("rotary-position-embeddings-theta", gpt.rope_theta,
            "base of the rotation's wavelengths", "", "rope_theta");
  flags.add("use-rope-scaling", gpt.use_rope_scaling,
            "longer wavelengths for a longer context, as in Llama 3.1 and later");
  flags.add(
      "rope-scaling-factor", gpt.rope_scaling_factor,
      "how far --use-rope-scaling stretches wavelengths above Llama 3's 8192 tokens; those of up "
      "to a quarter stay");
  flags.add("rotary-seq-len-interpolation-factor", gpt.rotary_seq_len_interpolation_factor,
            "divides the positions that rotate queries and keys");
  flags.add("position-embedding-type", gpt.position_embedding_type,
            "absolute (learned), or alibi: scores fall with the distance");
  flags.add("no-position-embedding", gpt.add_position_embedding,
            "no learned positions; implied by rotary ones and alibi", "", "add_position_embedding");
}

std::vector<std::string> model_flags(const GptConfig& gpt) {
  std::vector<std::string> flags{"num-layers",
                                 "hidden-size",
                                 "ffn-hidden-size",
                                 "num-attention-heads",
                                 "max-position-embeddings",
                                 "untie-embeddings-and-output-weights",
                                 "num-key-value-heads",
                                 "swiglu",
                                 "disable-bias-linear",
                                 "normalization",
                                 "embed-layernorm",
                                 "use-rotary-position-embeddings",
                                 "rotary-percent",
                                 "rotary-position-embeddings-theta",
                                 "use-rope-scaling",
                                 "rope-scaling-factor",
                                 "rotary-seq-len-interpolation-factor",
                                 "position-embedding-type",
                                 "no-position-embedding",
                                 "layernorm-epsilon"};
  if (!gpt.swiglu) flags.emplace_back("no-bias-gelu-fusion");
  return flags;
}

}  // namespace

int GptConfig::ffn_size() const {
  if (ffn_hidden_size != 0) return ffn_hidden_size;
  return swiglu ? hidden_size / 24 * 64 : 4 * hidden_size;
}

double GptConfig::residual_std() const { return init_method_std / std::sqrt(2.0 * num_layers); }

GptConfig resolved(GptConfig gpt) {
  gpt.ffn_hidden_size = gpt.ffn_size();
  gpt.num_key_value_heads = gpt.key_value_heads();
  gpt.bias_gelu_fusion = gpt.tanh_gelu();
  gpt.add_position_embedding = gpt.learned_positions();
  return gpt;
}

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
  flags.add("attention-dropout", gpt.attention_dropout, "of the attention probabilities");
  flags.add("hidden-dropout", gpt.hidden_dropout, "of the embedding and of each sublayer's output");
  add_architecture_flags(flags, gpt);
}

void validate(const GptConfig& gpt) {
  check_shape(gpt);
  check_architecture(gpt);
  check_positions(gpt);
  check_numbers(gpt);
}

void validate(const Config& config, const GptConfig& gpt, int world_size) {
  validate(config, world_size);
  validate(gpt);
  check_mesh(gpt, config.parallel);
}

int64_t padded_vocab_size(const GptConfig& gpt, int tp) {
  const int64_t multiple = int64_t{gpt.make_vocab_size_divisible_by} * tp;
  return (gpt.vocab_size + multiple - 1) / multiple * multiple;
}

ModelFacts model_facts(const GptConfig& gpt, int tp) {
  return {.seq_length = gpt.seq_length,
          .vocab_size = gpt.vocab_size,
          .padded_vocab_size = padded_vocab_size(gpt, tp),
          .flags = model_flags(gpt)};
}

}  // namespace anymesh
