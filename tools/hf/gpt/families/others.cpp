// The families with LayerNorm and biases.
#include "tools/hf/gpt/family.h"

namespace anymesh {
namespace {

void bind_gpt2(Keys& keys, GptConfig& gpt) {
  keys.bind("n_positions", gpt.max_position_embeddings);
  if (keys.writes() || !keys.find("n_inner").is_null()) keys.bind("n_inner", gpt.ffn_hidden_size);
  bind_activation(keys, "activation_function", gpt, "gelu_new");
  keys.bind("layer_norm_epsilon", gpt.layernorm_epsilon);
  keys.bind("attn_pdrop", gpt.attention_dropout);
  bind_dropout(keys, "embd_pdrop", "resid_pdrop", gpt);
  keys.require("scale_attn_weights", true);
  keys.require("scale_attn_by_inverse_layer_idx", false);
  keys.require("add_cross_attention", false);
}

void bind_bloom(Keys& keys, GptConfig& gpt) {
  keys.set(gpt.position_embedding_type, "alibi");
  keys.set(gpt.embed_layernorm, true);
  // ALiBi has no table; this is the length it was trained with.
  keys.bind("seq_length", gpt.max_position_embeddings, 2048);
  keys.bind("layer_norm_epsilon", gpt.layernorm_epsilon);
  keys.bind("attention_dropout", gpt.attention_dropout);
  keys.bind("hidden_dropout", gpt.hidden_dropout);
  keys.require("apply_residual_connection_post_layernorm", false);
}

void bind_falcon(Keys& keys, GptConfig& gpt) {
  keys.set(gpt.add_bias_linear, false);
  keys.set(gpt.use_parallel_residual, true);
  keys.bind("num_kv_heads", gpt.num_key_value_heads, gpt.num_attention_heads);
  keys.bind("ffn_hidden_size", gpt.ffn_hidden_size, 4 * gpt.hidden_size);
  keys.bind("max_position_embeddings", gpt.max_position_embeddings);
  keys.bind("layer_norm_epsilon", gpt.layernorm_epsilon);
  keys.bind("attention_dropout", gpt.attention_dropout);
  keys.bind("hidden_dropout", gpt.hidden_dropout);
  bind_activation(keys, "activation", gpt);
  for (const auto& [key, value] :
       {std::pair("new_decoder_architecture", true), {"alibi", false}, {"bias", false}})
    if (keys.put(key, value); keys.is_true(key) != value) keys.one_of(key, {value});
  keys.require("num_ln_in_parallel_attn", 2);
  keys.ignore({"multi_query", "parallel_attn"});
  bind_rotary(keys, gpt);
}

void bind_gpt_neox(Keys& keys, GptConfig& gpt) {
  keys.bind("intermediate_size", gpt.ffn_hidden_size);
  keys.bind("max_position_embeddings", gpt.max_position_embeddings);
  keys.bind("layer_norm_eps", gpt.layernorm_epsilon);
  keys.bind("attention_dropout", gpt.attention_dropout);
  keys.bind("hidden_dropout", gpt.hidden_dropout);
  keys.bind("use_parallel_residual", gpt.use_parallel_residual);
  keys.require("attention_bias", true);
  keys.ignore({"classifier_dropout"});
  bind_activation(keys, "hidden_act", gpt);
  keys.put("rotary_pct", gpt.rotary_percent);
  bind_rotary(keys, gpt, "rotary_pct", "rotary_emb_base");
}

void bind_opt(Keys& keys, GptConfig& gpt) {
  keys.set(gpt.position_embedding_offset, 2);
  keys.bind("ffn_dim", gpt.ffn_hidden_size);
  keys.bind("max_position_embeddings", gpt.max_position_embeddings);
  keys.always("word_embed_proj_dim", gpt.hidden_size);
  keys.bind("attention_dropout", gpt.attention_dropout);
  keys.bind("dropout", gpt.hidden_dropout);
  bind_activation(keys, "activation_function", gpt);
  for (const char* key : {"do_layer_norm_before", "enable_bias", "layer_norm_elementwise_affine"})
    keys.require(key, true);
  keys.require("_remove_final_layer_norm", false);
  keys.ignore({"layerdrop"});  // of whole layers, in training
}

void bind_starcoder2(Keys& keys, GptConfig& gpt) {
  keys.bind("num_key_value_heads", gpt.num_key_value_heads, gpt.num_attention_heads);
  keys.bind("intermediate_size", gpt.ffn_hidden_size);
  keys.bind("max_position_embeddings", gpt.max_position_embeddings);
  keys.bind("norm_epsilon", gpt.layernorm_epsilon);
  keys.bind("attention_dropout", gpt.attention_dropout);
  bind_dropout(keys, "embedding_dropout", "residual_dropout", gpt);
  bind_activation(keys, "hidden_act", gpt);
  keys.require("use_bias", true);
  bind_rotary(keys, gpt);
  bind_window(keys, gpt);
}

}  // namespace

constexpr Family kGpt2{
    .name = "GPT-2",
    .model_type = "gpt2",
    .architecture = "GPT2LMHeadModel",
    .keys = {.hidden_size = "n_embd", .num_layers = "n_layer", .num_heads = "n_head"},
    .other_names = {{{"hidden_size", "n_embd"},
                     {"num_hidden_layers", "n_layer"},
                     {"num_attention_heads", "n_head"},
                     {"max_position_embeddings", "n_positions"}}},
    .defaults = R"({
        "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12,
        "activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
        "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "tie_word_embeddings": true})",
    .bind = bind_gpt2,
    .tensors = R"({"base": "transformer.", "layers": "h.", "word_embeddings": "wte",
        "position_embeddings": "wpe", "input_layernorm": "ln_1",
        "self_attention.query_key_value": "attn.c_attn", "self_attention.dense": "attn.c_proj",
        "post_attention_layernorm": "ln_2", "mlp.dense_h_to_4h": "mlp.c_fc",
        "mlp.dense_4h_to_h": "mlp.c_proj", "": "ln_f"})",
    .transposed = true,
    .buffers = {{{".attn.bias", 4}, {".attn.masked_bias", 0}}}};

constexpr Family kBloom{
    .name = "BLOOM",
    .model_type = "bloom",
    .architecture = "BloomForCausalLM",
    .keys = {.num_layers = "n_layer", .num_heads = "n_head"},
    .other_names = {{{"n_embed", "hidden_size"},
                     {"num_hidden_layers", "n_layer"},
                     {"num_attention_heads", "n_head"}}},
    .defaults = R"({
        "vocab_size": 250880, "hidden_size": 64, "n_layer": 2, "n_head": 8,
        "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "attention_dropout": 0.0,
        "hidden_dropout": 0.0, "tie_word_embeddings": true})",
    .bind = bind_bloom,
    .tensors = R"({"base": "transformer.", "layers": "h.", "word_embeddings": "word_embeddings",
        "word_embeddings.norm": "word_embeddings_layernorm", "input_layernorm": "input_layernorm",
        "self_attention.query_key_value": "self_attention.query_key_value",
        "self_attention.dense": "self_attention.dense",
        "post_attention_layernorm": "post_attention_layernorm",
        "mlp.dense_h_to_4h": "mlp.dense_h_to_4h", "mlp.dense_4h_to_h": "mlp.dense_4h_to_h",
        "": "ln_f"})",
    .grouped = true};

// Falcon 40B and later ("new_decoder_architecture"): attention and MLP side by side, each with its
// norm.
constexpr Family kFalcon{
    .name = "Falcon",
    .model_type = "falcon",
    .architecture = "FalconForCausalLM",
    .other_names = {{{"n_embed", "hidden_size"}}},
    .parent = &kBloom,
    .defaults = R"({
        "vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32,
        "num_attention_heads": 71, "max_position_embeddings": 2048, "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02, "attention_dropout": 0.0, "hidden_dropout": 0.0,
        "activation": "gelu", "new_decoder_architecture": false, "alibi": false, "bias": false,
        "rope_theta": 10000.0, "tie_word_embeddings": true})",
    .bind = bind_falcon,
    .tensors = R"({"input_layernorm": "ln_attn", "post_attention_layernorm": "ln_mlp"})",
    .grouped = true};

// GPT-NeoX and Pythia: attention and MLP side by side, and a part of each head turns.
constexpr Family kGptNeox{
    .name = "GPT-NeoX",
    .model_type = "gpt_neox",
    .architecture = "GPTNeoXForCausalLM",
    .defaults = R"({
        "vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44,
        "num_attention_heads": 64, "intermediate_size": 24576, "hidden_act": "gelu",
        "attention_dropout": 0.0, "hidden_dropout": 0.0, "max_position_embeddings": 2048,
        "initializer_range": 0.02, "layer_norm_eps": 1e-5, "use_parallel_residual": true,
        "attention_bias": true, "rotary_emb_base": 10000.0, "rotary_pct": 0.25,
        "tie_word_embeddings": false})",
    .bind = bind_gpt_neox,
    .tensors = R"({"base": "gpt_neox.", "layers": "layers.", "word_embeddings": "embed_in",
        "input_layernorm": "input_layernorm",
        "self_attention.query_key_value": "attention.query_key_value",
        "self_attention.dense": "attention.dense",
        "post_attention_layernorm": "post_attention_layernorm",
        "mlp.dense_h_to_4h": "mlp.dense_h_to_4h", "mlp.dense_4h_to_h": "mlp.dense_4h_to_h",
        "": "final_layer_norm", "lm_head": "embed_out"})",
    .grouped = true,
    .buffers = {
        {{".attention.bias", 4}, {".attention.masked_bias", 0}, {".rotary_emb.inv_freq", 1}}}};

// OPT: ReLU, and two rows in front of the table of positions.
constexpr Family kOpt{.name = "OPT",
                      .model_type = "opt",
                      .architecture = "OPTForCausalLM",
                      .keys = {.initializer = "init_std"},
                      .defaults = R"({
        "vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072,
        "max_position_embeddings": 2048, "dropout": 0.1, "attention_dropout": 0.0,
        "num_attention_heads": 12, "activation_function": "relu", "init_std": 0.02,
        "tie_word_embeddings": true})",
                      .bind = bind_opt,
                      .tensors = R"({"base": "model.decoder.", "layers": "layers.",
        "word_embeddings": "embed_tokens", "position_embeddings": "embed_positions",
        "input_layernorm": "self_attn_layer_norm", "self_attention.query_key_value":
        ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        "self_attention.dense": "self_attn.out_proj",
        "post_attention_layernorm": "final_layer_norm", "mlp.dense_h_to_4h": "fc1",
        "mlp.dense_4h_to_h": "fc2", "": "final_layer_norm"})"};

// StarCoder 2: rotary positions and grouped heads, with LayerNorm, biases and GELU.
constexpr Family kStarcoder2{
    .name = "StarCoder 2",
    .model_type = "starcoder2",
    .architecture = "Starcoder2ForCausalLM",
    .parent = &kLlama,
    .defaults = R"({
        "vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288,
        "num_hidden_layers": 30, "num_attention_heads": 24, "num_key_value_heads": 2,
        "hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 4096,
        "initializer_range": 0.018042, "norm_epsilon": 1e-5, "attention_dropout": 0.0,
        "residual_dropout": 0.0, "embedding_dropout": 0.0, "rope_theta": 10000.0,
        "tie_word_embeddings": true})",
    .bind = bind_starcoder2,
    .tensors = R"({"mlp.dense_h_to_4h": "mlp.c_fc", "mlp.dense_4h_to_h": "mlp.c_proj"})"};

// Not of transformers: the names of Megatron-Core's GPTModel, whose rows are ordered as ours.
constexpr Family kMegatronCore{
    .name = "Megatron-Core",
    .model_type = "",
    .architecture = "GPTModel",
    .defaults = "{}",
    .bind = nullptr,
    .tensors = R"({"lm_head": "output_layer", "base": "", "layers": "decoder.layers.",
        "word_embeddings": "embedding.word_embeddings",
        "position_embeddings": "embedding.position_embeddings",
        "input_layernorm": "self_attention.linear_qkv.layer_norm_",
        "self_attention.query_key_value": "self_attention.linear_qkv",
        "self_attention.q_layernorm": "self_attention.q_layernorm",
        "self_attention.k_layernorm": "self_attention.k_layernorm",
        "self_attention.dense": "self_attention.linear_proj",
        "post_attention_layernorm": "mlp.linear_fc1.layer_norm_",
        "mlp.dense_h_to_4h": "mlp.linear_fc1", "mlp.dense_4h_to_h": "mlp.linear_fc2",
        "": "decoder.final_layernorm"})",
    .grouped = true};

}  // namespace anymesh
