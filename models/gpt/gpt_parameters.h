#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "framework/comm/topology.h"
#include "framework/format/layout.h"
#include "models/gpt/gpt_config.h"

namespace anymesh {

// Describes a GPT's parameter on any mesh. ParamSpec has these fields for one rank. This is the
// only list of them: a stage allocates its part of it (stage_params.h), hf_convert finds
// transformers' tensors for it, and the closed form of the traffic counts it.
//
// Megatron-DeepSpeed names them in two ways, for L transformer layers:
//
//   name: pipeline (layers are numbered)    other_name: --no-pipeline-parallel
//   tied_modules.embed.<x>, untied 1.<x>    language_model.embedding.<x>
//   2.<x> ... <L+1>.<x>                     language_model.encoder.layers.0.<x> ... <L-1>.<x>
//   <L+2>.<x>                               language_model.encoder.final_layernorm.<x>
//   <L+3>.lm_head.weight, untied            language_model.output_layer.weight
//
// Initial weights are drawn by the first one. Every run loads both. An adapter's names stand beside
// those of its matrix: "2.self_attention.q_proj.lora_A.weight" (lora.h).
struct GptParameter {
  std::string name, other_name = {};
  std::vector<int64_t> shape;  // the whole tensor's, with the true vocabulary
  int split_dim = -1;          // the dim that tp cuts; -1 if every tp rank holds the whole
  int sub_params = 1;          // equal parts of that dim, each cut separately
  bool experts = false;        // dim 0 counts experts, which ep cuts
  bool vocabulary = false;     // dim 0 is the vocabulary, which is padded
  bool looked_up = false;      // another table, whose rows are looked up
  bool weight_decay = true;
  bool frozen = false;                              // not trained, as all beside --lora-rank's
  bool tied = false;                                // the first and the last stage both hold it
  bool buffer = false;                              // the model changes it itself
  enum class Sum { kNever, kOfSequence, kAlways };  // of the gradient, over tp: never, where each
  Sum tp_sum = Sum::kNever;                         // rank has a part of the sequence, or always
  double mean = 0, std = 0;                         // of the initial values
  int layer = 0;  // the number of the checkpoint's layer file: 1 embeds, i + 2 is layer i
};

// In the order in which DeepSpeed would flatten them.
std::vector<GptParameter> gpt_parameters(const GptConfig& config);

// Returns the elements that a rank holds of a parameter of its stage. `same_bits` has the blocks.
int64_t numel_on_rank(const GptParameter& parameter, const GptConfig& config, const Topology& mesh,
                      int64_t same_bits);

// A stage's part of them: its chunks' layers, and the embedding and the head at the ends.
struct GptStage {
  GptStage(const GptConfig& config, const Topology& mesh, int pp_rank);

  // Where a parameter is used: in a unit of the stage (unit_runner.h), which belongs to a chunk.
  struct Place {
    int unit, chunk;
  };
  // Returns none if the stage does not hold the parameter.
  std::optional<Place> place_of(const GptParameter& parameter) const;
  Place head() const;

  std::vector<LayerRange> chunks;
  std::vector<int> layers;  // of all chunks, in order; the i-th one is unit first + i
  bool first, last;
};

}  // namespace anymesh
