#pragma once

#include "tools/hf/gpt/convert.h"
#include "tools/hf/gpt/parameters.h"

namespace anymesh {

// Returns the smallest model of a family, with no two sizes alike where that can be.
inline HfModel tiny(HfFamily family) {
  HfModel model{.family = family};
  GptConfig& gpt = model.gpt;
  gpt.num_layers = 2;
  gpt.hidden_size = 12;
  gpt.num_attention_heads = 6;
  gpt.seq_length = gpt.max_position_embeddings = 8;
  gpt.vocab_size = 7;
  if (family == HfFamily::kLlama) {
    gpt.num_key_value_heads = 2;
    gpt.ffn_hidden_size = 10;
    gpt.normalization = "rmsnorm";
    gpt.swiglu = gpt.use_rotary_position_embeddings = gpt.untie_embeddings_and_output_weights =
        true;
    gpt.add_bias_linear = false;
    gpt.rope_theta = 500000;
    gpt.hidden_dropout = 0;
  } else if (family == HfFamily::kBloom) {
    gpt.position_embedding_type = "alibi";
    gpt.embed_layernorm = true;
  } else {
    gpt.ffn_hidden_size = 20;
  }
  return model;
}

inline HfExport export_gpt(const HfExportOptions& options,
                           const std::filesystem::path& config = {}) {
  const auto describe = [&](const CheckpointReader& checkpoint, const TokenIds& ids) {
    return describe_gpt(checkpoint, ids, config);
  };
  return export_hf(options, describe, {});
}

}  // namespace anymesh
