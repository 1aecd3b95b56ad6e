#include "models/gpt/gpt_config.h"

#include <climits>
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
  require(gpt.num_layers >= parallel.pp, with("--num-layers", gpt.num_layers) +
                                             " must be at least " +
                                             with("--pipeline-model-parallel-size", parallel.pp));
  if (gpt.num_attention_heads % parallel.tp == 0 && gpt.ffn_size() % parallel.tp == 0) return;
  const bool heads = gpt.num_attention_heads % parallel.tp != 0;
  const int common = std::gcd(gpt.num_attention_heads, gpt.ffn_size());
  std::string choices;
  for (int tp = 1; tp <= common; ++tp) {
    if (common % tp == 0) choices += (choices.empty() ? "" : ", ") + std::to_string(tp);
  }
  throw ParseError((heads ? with("--num-attention-heads", gpt.num_attention_heads)
                          : with("--ffn-hidden-size", gpt.ffn_size())) +
                   " must be divisible by " + with("--tensor-model-parallel-size", parallel.tp) +
                   "; sizes that work: " + choices);
}

}  // namespace

void add_flags(FlagTable& flags, GptConfig& gpt) {
  flags.group("GPT");
  flags.add("num-layers", gpt.num_layers, "transformer layers", "required");
  flags.add("hidden-size", gpt.hidden_size, "width of a token", "required");
  flags.add("num-attention-heads", gpt.num_attention_heads, "heads per layer", "required");
  flags.add("ffn-hidden-size", gpt.ffn_hidden_size, "width inside the MLP", "4 x --hidden-size");
  flags.add("seq-length", gpt.seq_length, "tokens per sample", "required");
  flags.add("max-position-embeddings", gpt.max_position_embeddings,
            "learned positions, at least --seq-length", "required");
  flags.add("make-vocab-size-divisible-by", gpt.make_vocab_size_divisible_by,
            "Megatron's padding, times the tensor-parallel size; known, but never stored");
  flags.add("untie-embeddings-and-output-weights", gpt.untie_embeddings_and_output_weights,
            "give the output layer weights of its own");
  flags.add("no-bias-gelu-fusion", gpt.bias_gelu_fusion,
            "erf GELU in place of the tanh GELU of Megatron's fused kernel");
  flags.add("init-method-std", gpt.init_method_std, "standard deviation of the initial weights");
  flags.add("layernorm-epsilon", gpt.layernorm_epsilon, "term added to LayerNorm's variance");
  flags.add("attention-dropout", gpt.attention_dropout, "of the attention probabilities");
  flags.add("hidden-dropout", gpt.hidden_dropout, "of the embedding and of each sublayer's output");
}

void validate(const Config& config, const GptConfig& gpt, int world_size) {
  validate(config, world_size);
  check_shape(gpt);
  check_numbers(gpt);
  check_mesh(gpt, config.parallel);
}

int64_t padded_vocab_size(const GptConfig& gpt, int tp) {
  const int64_t multiple = int64_t{gpt.make_vocab_size_divisible_by} * tp;
  return (gpt.vocab_size + multiple - 1) / multiple * multiple;
}

std::vector<std::string> model_flags() {
  return {"num-layers",
          "hidden-size",
          "ffn-hidden-size",
          "num-attention-heads",
          "max-position-embeddings",
          "untie-embeddings-and-output-weights"};
}

}  // namespace anymesh
