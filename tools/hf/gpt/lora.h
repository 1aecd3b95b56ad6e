#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "framework/format/layout.h"
#include "framework/format/torch_file.h"
#include "framework/format/whole.h"
#include "tools/hf/export.h"
#include "tools/hf/gpt/config.h"

namespace anymesh {

// LoRA's adapters (arxiv.org/abs/2106.09685) in a GPT's checkpoints. A matrix W [out, in] counts as
//
//   W + alpha / rank * B A     with the parameters A [rank, in] and B [out, rank]
//
// Parts of our matrices that are matrices of their own in most of transformers' models each have an
// adapter:
//
//   target                   of layer i's                   parameters of layer 0, for example
//   q_proj, k_proj, v_proj   self_attention.query_key_value 2.self_attention.q_proj.lora_A.weight
//   o_proj                   self_attention.dense           2.self_attention.o_proj.lora_B.weight
//   gate_proj, up_proj       mlp.dense_h_to_4h              2.mlp.up_proj.lora_A.weight
//   down_proj                mlp.dense_4h_to_h              2.mlp.down_proj.lora_A.weight
//   the last three           mlp.shared_experts.<the same>  2.mlp.shared_experts.up_proj...
//
// models/gpt/lora.h says which a model has. B's rows are in transformers' order: all heads of q,
// say. A target is in all layers.
inline constexpr const char *kLoraA = ".lora_A.weight", *kLoraB = ".lora_B.weight";

// The settings, as in a checkpoint's args: lora_rank, lora_alpha, lora_dropout, lora_target.
struct Lora {
  int rank = 0;  // 0: no adapters
  double alpha = 0, dropout = 0;
  std::vector<std::string> targets = {};  // in the order of lora_matrices()
};

bool has_lora(const Checkpoint& checkpoint);
// Throws a DamagedFile for args without adapters, or with a value that they cannot have.
Lora lora_of_args(const Value& args);
// Returns the model with these adapters; by default with none.
GptConfig with_lora(GptConfig gpt, const Lora& lora = {});

// A part of a matrix that can have an adapter.
struct LoraPart {
  std::string target, matrix;    // "q_proj", "2.self_attention.query_key_value.weight"
  std::string name, other_name;  // ours, to be followed by kLoraA or kLoraB
  std::string module;            // transformers'; empty where it is fused with others
  int64_t in = 0, out = 0;
  std::vector<HfParameter::Rows> rows;  // of the matrix, in the order of B's
};

std::vector<LoraPart> lora_parts(const HfModel& model);
std::vector<LoraPart> lora_parts(const HfModel& model, const Lora& lora);  // of its targets

// Returns A and B of each part, in turn. They go by the names of PEFT, as far as it has such.
std::vector<HfParameter> lora_parameters(const std::vector<LoraPart>& parts, int rank);

// Returns the changes that add the adapters to their matrices, by the matrix's name, computed in
// float32 as the matrix is read. Throws for an A or B that is missing or has another shape.
std::map<std::string, HfParameter::Change> merging(const Checkpoint& checkpoint,
                                                   const std::vector<LoraPart>& parts,
                                                   const Lora& lora);

}  // namespace anymesh
