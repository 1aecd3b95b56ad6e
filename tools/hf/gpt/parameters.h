#pragma once

#include <vector>

#include "tools/hf/export.h"
#include "tools/hf/gpt/config.h"

namespace anymesh {

// Our parameters, and the tensors of transformers that hold the same numbers, for L layers. A
// family's file has all its names (family.h); two of them are here:
//
//   ours, of layer i                     GPT-2              Llama
//   tied_modules.embed.word_embeddings   wte                embed_tokens
//   ....position_embeddings              wpe
//   <i+2>.input_layernorm                ln_1               input_layernorm
//   <i+2>.self_attention.query_key_value attn.c_attn   T, G self_attn.{q,k,v}_proj G
//   <i+2>.self_attention.dense           attn.c_proj   T    self_attn.o_proj
//   <i+2>.post_attention_layernorm       ln_2               post_attention_layernorm
//   <i+2>.mlp.dense_h_to_4h              mlp.c_fc      T    mlp.{gate,up}_proj
//   <i+2>.mlp.dense_4h_to_h              mlp.c_proj    T    mlp.down_proj
//   with experts in place of the MLP                        Qwen 3 MoE
//   <i+2>.mlp.router.gate                                   mlp.gate
//   <i+2>.mlp.experts.{w1,w3,w2}                            mlp.experts.<e>.{gate,up,down}_proj
//   <L+2>                                ln_f               norm
//   <L+3>.lm_head, untied                lm_head            lm_head
//
//   T  transposed: Conv1D keeps [in, out]
//   G  ours are, for each group, the rows [q, ..., q, key, value]; theirs all q, all k, all v
//
// Rotary positions turn the same pairs of elements on both sides, so no row moves for them.
// `other_name` is that of a run without a pipeline. In the order of gpt_parameters().
std::vector<HfParameter> hf_parameters(const HfModel& model);

// Returns the rows of our query_key_value that have all queries (kind 0), keys (1) or values (2),
// head by head.
std::vector<HfParameter::Rows> qkv_rows(const GptConfig& gpt, size_t kind);

}  // namespace anymesh
