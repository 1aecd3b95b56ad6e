#pragma once

#include "tools/hf/gpt/convert.h"
#include "tools/hf/gpt/family.h"
#include "tools/hf/gpt/parameters.h"

namespace anymesh {

// Returns the smallest model of a family, with no two sizes alike where that can be.
inline HfModel tiny(const std::string& model_type) {
  Json json = {{"model_type", model_type}, {"vocab_size", 7}};
  for (const char* key : {"n_embd", "hidden_size", "word_embed_proj_dim"}) json[key] = 12;
  for (const char* key : {"n_layer", "num_hidden_layers"}) json[key] = 2;
  for (const char* key : {"n_head", "num_attention_heads"}) json[key] = 6;
  for (const char* key : {"num_key_value_heads", "num_kv_heads"}) json[key] = 2;
  for (const char* key : {"intermediate_size", "ffn_dim", "ffn_hidden_size"}) json[key] = 10;
  for (const char* key : {"max_position_embeddings", "n_positions", "seq_length"}) json[key] = 8;
  json["n_inner"] = 20;
  json["rope_theta"] = json["rotary_emb_base"] = 500000;
  json["rotary_pct"] = 1;
  if (model_type.starts_with("qwen3") || model_type == "gemma") json["head_dim"] = 4;
  if (model_type == "mistral" || model_type == "mixtral" || model_type == "starcoder2")
    json["sliding_window"] = 5;
  if (model_type == "qwen2") {
    json["sliding_window"] = 3;
    json["use_sliding_window"] = true;
    json["max_window_layers"] = 0;
  }
  for (const char* key : {"num_experts", "num_local_experts"}) json[key] = 3;
  json["num_experts_per_tok"] = 2;
  json["moe_intermediate_size"] = 6;
  json["shared_expert_intermediate_size"] = 4;
  json["decoder_sparse_step"] = model_type == "qwen2_moe" ? 2 : 1;
  json["norm_topk_prob"] = model_type == "qwen3_moe";
  if (model_type == "falcon") json["new_decoder_architecture"] = true;
  HfModel model = read_hf_config(Keys("config.json", json));
  model.notes.clear();
  return model;
}

inline HfExport export_gpt(const HfExportOptions& options,
                           const std::filesystem::path& config = {}) {
  const auto describe = [&](const Checkpoint& checkpoint, const TokenIds& ids) {
    return describe_gpt(checkpoint, ids, config);
  };
  return export_hf(options, describe, {});
}

}  // namespace anymesh
