#pragma once

#include <string>

namespace anymesh {

// Converts between the two ways in which Megatron-DeepSpeed names a GPT's parameters in its
// checkpoints, for L transformer layers:
//
//   pipeline (layers are numbered)      --no-pipeline-parallel
//   tied_modules.embed.<x>, 1.<x>       language_model.embedding.<x>
//   2.<x> ... <L+1>.<x>                 language_model.encoder.layers.0.<x> ... <L-1>.<x>
//   <L+2>.<x>                           language_model.encoder.final_layernorm.<x>
//   <L+3>.lm_head.weight                language_model.output_layer.weight
//
// Layers name their parameters in the first way, and draw initial weights by those names. Every run
// loads both (ParamSpec::other_name). This is the only translation.
std::string no_pipeline_name(const std::string& pipeline_name, int num_layers);

}  // namespace anymesh
