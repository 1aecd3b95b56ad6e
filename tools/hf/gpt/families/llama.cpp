// Llama, and the families that descend from it without experts.
#include <algorithm>

#include "tools/hf/gpt/family.h"

namespace anymesh {

void bind_llama(Keys& keys, GptConfig& gpt, const char* percent) {
  keys.set(gpt.hidden_dropout, 0);
  keys.set(gpt.normalization, "rmsnorm");
  keys.set(gpt.swiglu, !gpt.geglu);
  keys.set(gpt.add_bias_linear, false);
  keys.bind("num_key_value_heads", gpt.num_key_value_heads, gpt.num_attention_heads);
  keys.put("head_dim", gpt.head_dim());
  if (const Json head = keys.find("head_dim");
      !head.is_null() && head != gpt.hidden_size / gpt.num_attention_heads)
    gpt.kv_channels = keys.integer("head_dim");
  keys.bind("intermediate_size", gpt.ffn_hidden_size);
  keys.bind("max_position_embeddings", gpt.max_position_embeddings);
  keys.put("hidden_act", "silu");
  if (gpt.swiglu) activation_of(keys, "hidden_act", {"silu"});
  keys.bind("rms_norm_eps", gpt.layernorm_epsilon);
  keys.bind("attention_dropout", gpt.attention_dropout);
  bind_rotary(keys, gpt, percent);
}

namespace {

using Buffers = std::array<Family::Buffer, 3>;
constexpr Buffers kRotaryTable{{{"rotary_emb.inv_freq", 1}}};

void bind_plain_llama(Keys& keys, GptConfig& gpt) {
  bind_llama(keys, gpt);
  bool attention = gpt.attention_output_bias();
  keys.bind("attention_bias", attention);
  keys.bind("mlp_bias", gpt.add_bias_linear);
  if (gpt.add_bias_linear && !attention)
    keys.fail("attention_bias", attention, "true, as mlp_bias is");
  gpt.add_attention_linear_bias = attention && !gpt.add_bias_linear;
}

// Binds windows in the layers that layer_types says, else in all but the first `full`. Throws if
// layers differ.
void bind_layer_windows(Keys& keys, GptConfig& gpt, int64_t full) {
  if (keys.writes()) return bind_window(keys, gpt);
  const int64_t layers = gpt.num_layers;
  const Json types = keys.find("layer_types");
  if (!types.is_null()) {
    const auto of = [&](const std::vector<Json>& kinds) {
      return std::ranges::count_if(
          types, [&](const Json& type) { return std::ranges::find(kinds, type) != kinds.end(); });
    };
    full = of({"full_attention", "attention"});
    if (!types.is_array() || std::ssize(types) != layers ||
        full + of({"sliding_attention"}) != layers)
      keys.fail("layer_types", types,
                "\"full_attention\" or \"sliding_attention\" for each of " +
                    std::to_string(layers) + " layers");
  }
  GptConfig windowed = gpt;
  if (full < layers) bind_window(keys, windowed);
  keys.ignore({"sliding_window"});
  if (windowed.window() == 0 && full < layers && !types.is_null())
    keys.fail("sliding_window", Json(), "a number, as layer_types has \"sliding_attention\"");
  if (windowed.window() == 0) return;
  const char* const key = types.is_null() ? "max_window_layers" : "layer_types";
  if (full > 0)
    keys.fail(key, keys.find(key),
              "windows in all layers or in none, since --window-size is for all");
  gpt = windowed;
}

void bind_mistral(Keys& keys, GptConfig& gpt) {
  bind_llama(keys, gpt);
  bind_layer_windows(keys, gpt, /*full=*/0);
}

void bind_qwen(Keys& keys, GptConfig& gpt) {
  bind_llama(keys, gpt);
  bool used = gpt.window() != 0;
  if (keys.writes()) {
    bind_window(keys, gpt);
    keys.put("use_sliding_window", used);
    return keys.put("max_window_layers", used ? 0 : gpt.num_layers);
  }
  keys.bind("use_sliding_window", used);
  const Json full = keys.at("max_window_layers");
  if (!full.is_number_integer()) keys.fail("max_window_layers", full, "an integer");
  bind_layer_windows(keys, gpt, used ? full.get<int64_t>() : gpt.num_layers);
  if (!used && gpt.window() != 0)
    keys.fail("use_sliding_window", used, "true, as layer_types has \"sliding_attention\"");
}

void bind_qwen2(Keys& keys, GptConfig& gpt) {
  keys.set(gpt.add_qkv_bias, true);
  bind_qwen(keys, gpt);
}

void bind_qwen3(Keys& keys, GptConfig& gpt) {
  keys.set(gpt.qk_layernorm, true);
  bind_qwen(keys, gpt);
  bind_attention_bias(keys, gpt);
}

void refuse_scaling(const Keys& keys, const GptConfig& gpt) {
  const char* const name = keys.find("rope_scaling").is_null() ? "rope_parameters" : "rope_scaling";
  if (gpt.use_rope_scaling || gpt.rope_type != "rope" ||
      gpt.rotary_seq_len_interpolation_factor != 1)
    keys.fail(name, keys.find(name),
              "no scaling: transformers takes \"yarn\" as \"longrope\" in a Phi 3, which "
              "pretrain_gpt lacks, and knows no other");
}

void bind_phi3(Keys& keys, GptConfig& gpt) {
  const char* const percent = "partial_rotary_factor";
  bind_llama(keys, gpt, percent);
  if (!keys.writes()) refuse_scaling(keys, gpt);
  keys.put(percent, gpt.rotary_percent);
  bind_dropout(keys, "embd_pdrop", "resid_pdrop", gpt);
  bind_window(keys, gpt);
  keys.ignore({"original_max_position_embeddings"});  // of longrope, which is refused
  // The class pads with token 32000 unless it is told otherwise.
  if (gpt.vocab_size <= 32000) keys.put("pad_token_id", nullptr);
}

void bind_gemma(Keys& keys, GptConfig& gpt) {
  const char* const tanh = "gelu_pytorch_tanh";
  for (bool* always : {&gpt.geglu, &gpt.apply_layernorm_1p, &gpt.apply_embedding_scaling})
    keys.set(*always, true);
  bind_llama(keys, gpt);
  for (const char* key : {"hidden_act", "hidden_activation"}) keys.put(key, tanh);
  // transformers 5 reads hidden_act alone, older versions hidden_activation first.
  if (keys.find("hidden_act") == "gelu") {
    keys.note(
        "config.json has hidden_act \"gelu\", which means gelu_pytorch_tanh in a "
        "Gemma, as transformers reads it");
  } else {
    activation_of(keys, "hidden_act", {tanh});
  }
  if (!keys.find("hidden_activation").is_null()) activation_of(keys, "hidden_activation", {tanh});
  keys.require("use_bidirectional_attention", false);
  bind_attention_bias(keys, gpt);
}

}  // namespace

constexpr Family kLlama{
    .name = "Llama",
    .model_type = "llama",
    .architecture = "LlamaForCausalLM",
    .defaults = R"({
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": null,
        "head_dim": null, "hidden_act": "silu", "max_position_embeddings": 2048,
        "initializer_range": 0.02, "rms_norm_eps": 1e-6, "attention_bias": false,
        "attention_dropout": 0.0, "mlp_bias": false, "rope_theta": 10000.0,
        "tie_word_embeddings": false})",
    .bind = bind_plain_llama,
    .tensors = R"({"base": "model.", "layers": "layers.", "word_embeddings": "embed_tokens",
        "input_layernorm": "input_layernorm", "self_attention.query_key_value":
        ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        "self_attention.q_layernorm": "self_attn.q_norm",
        "self_attention.k_layernorm": "self_attn.k_norm",
        "self_attention.dense": "self_attn.o_proj",
        "post_attention_layernorm": "post_attention_layernorm",
        "mlp.dense_h_to_4h": ["mlp.gate_proj", "mlp.up_proj"],
        "mlp.dense_4h_to_h": "mlp.down_proj", "": "norm"})",
    .buffers = kRotaryTable};

// A Llama with a window of tokens that attention reaches back to. With layer_types, which
// transformers calls a Ministral, some layers may have none.
constexpr Family kMistral{.name = "Mistral",
                          .model_type = "mistral",
                          .architecture = "MistralForCausalLM",
                          .parent = &kLlama,
                          .defaults = R"({
        "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "sliding_window": 4096})",
                          .bind = bind_mistral,
                          .buffers = kRotaryTable};

// Qwen 2 and 2.5: a Llama with biases of queries, keys and values.
constexpr Family kQwen2{.name = "Qwen 2",
                        .model_type = "qwen2",
                        .architecture = "Qwen2ForCausalLM",
                        .parent = &kLlama,
                        .defaults = R"({
        "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32,
        "max_position_embeddings": 32768, "use_sliding_window": false, "sliding_window": 4096,
        "max_window_layers": 28})",
                        .bind = bind_qwen2,
                        .buffers = kRotaryTable};

// Qwen 3: a Llama with norms of queries and keys, and heads of a width of their own.
constexpr Family kQwen3{.name = "Qwen 3",
                        .model_type = "qwen3",
                        .architecture = "Qwen3ForCausalLM",
                        .parent = &kQwen2,
                        .defaults = R"({"head_dim": 128})",
                        .bind = bind_qwen3};

// Gemma 1: a Llama with GeGLU, norms of 1 + weight and embeddings scaled by the root of their
// width.
constexpr Family kGemma{.name = "Gemma",
                        .model_type = "gemma",
                        .architecture = "GemmaForCausalLM",
                        .parent = &kLlama,
                        .defaults = R"({
        "vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576,
        "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16,
        "head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 8192,
        "tie_word_embeddings": true})",
                        .bind = bind_gemma,
                        .buffers = kRotaryTable};

// Phi 3 and 4: a Llama whose q, k, v are one matrix, and its gate and up another.
constexpr Family kPhi3{.name = "Phi 3",
                       .model_type = "phi3",
                       .architecture = "Phi3ForCausalLM",
                       .parent = &kLlama,
                       .defaults = R"({
        "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0})",
                       .bind = bind_phi3,
                       .tensors = R"({"self_attention.query_key_value": "self_attn.qkv_proj",
        "mlp.dense_h_to_4h": "mlp.gate_up_proj"})",
                       .buffers = kRotaryTable};

}  // namespace anymesh
