#pragma once

#include <span>
#include <string>
#include <vector>

#include "models/gpt/gpt_config.h"
#include "tools/hf/gpt/keys.h"

namespace anymesh {

// Everything in which a family of models of transformers differs from the others. Each has a file
// in families/ and a line in family.cpp; no other code knows one by its name. A family that needs
// no new option of the model is such a file and such a line.
struct Family {
  const char *name, *model_type, *architecture;  // "GPT-2", "gpt2", "GPT2LMHeadModel"

  // config.json: the names of the keys that all families have, then functions for the others. A
  // GPT that read() makes of the keys that write() wrote has the same flags, or else it is not of
  // the family.
  struct Names {
    const char *hidden_size = "hidden_size", *num_layers = "num_hidden_layers",
               *num_heads = "num_attention_heads", *initializer = "initializer_range";
  } keys = {};
  Keys::OtherNames other_names = {};  // of the class's attribute_map, and of older files
  Json defaults;                      // those of the family's config class, for absent keys
  void (*read)(const Keys& keys, GptConfig& gpt);
  void (*write)(const GptConfig& gpt, Json& json);

  // The names of tensors, without .weight and .bias. Those of a layer's parts follow `layers`, the
  // layer's number and a dot. All but the head's follow `base`, which files of the bare model leave
  // out.
  struct Tensors {
    std::string base, embedding, embedding_norm = {}, positions = {}, layers;
    std::string norm1, norm2, norm;
    std::vector<std::string> qkv;
    std::string q_norm = {}, k_norm = {}, attention_out;
    std::vector<std::string> mlp_in;  // gate and up, if the MLP is gated
    std::string mlp_out;
    // Those of a layer with experts in place of an MLP. Gate, up and down of each follow `each`, its
    // number and a dot. The shared ones are of Qwen 2 alone.
    struct Experts {
      std::string router, each, gate, up, down;
      std::vector<std::string> shared_in = {};
      std::string shared_out = {}, shared_gate = {};
    } experts = {};
    std::string head = "lm_head";
    bool transposed = false;  // linear layers keep [in, out]
    bool grouped = false;     // rows of qkv are [q, ..., q, key, value] for each group, as ours;
                              // otherwise all q, all keys, all values
  } tensors;

  // Masks and tables that older versions saved and newer ones compute, as we do: how their names
  // end, and how many dims they have.
  struct Buffer {
    const char* end;
    size_t dims;
  };
  std::vector<Buffer> buffers = {};
};

// All families. A model of two goes by the first.
std::span<const Family* const> families();
const Family* find_family(const std::string& model_type);  // nullptr: it is not known here

// Returns why models of a type that is not known here cannot be imported; "" for unheard ones.
std::string why_refused(const std::string& model_type);

// Parts of read() and write() that several families share.

// Returns the defaults of a class: its own, which are JSON, and those of another class.
Json class_defaults(const char* own);
Json class_defaults(Json others, const char* own);

// A Llama's keys. Families that descend from it call these and go on from there. The MLP is SwiGLU
// unless gpt.geglu is set, and then its key is left to the caller.
void read_llama(const Keys& keys, GptConfig& gpt, const char* percent_name = nullptr);
void write_llama(const GptConfig& gpt, Json& json);

// Rotary positions: rope_theta or another name of it, rope_scaling, rope_parameters. The key
// `percent_name` gives the part of a head that turns; null: all turn.
void read_rotary(const Keys& keys, GptConfig& gpt, const char* percent_name = nullptr,
                 const char* theta_name = "rope_theta");
void write_rotary(const GptConfig& gpt, Json& json, const char* theta_name = "rope_theta");

// The window of attention, in tokens with the query's own. Null: all.
void read_window(const Keys& keys, GptConfig& gpt);
void write_window(const GptConfig& gpt, Json& json);

// Windows in the layers that layer_types says, else in all but the first `full`. Throws if layers
// differ.
void read_layer_windows(const Keys& keys, GptConfig& gpt, int64_t full);

// How many experts a layer has and a token goes to. The factors of routers' losses and noise are
// left out both ways: transformers' loss is another than ours (experts.h), and it adds it only on
// demand (output_router_logits).
void read_experts(const Keys& keys, GptConfig& gpt, const char* experts_name = "num_experts");
void write_experts(const GptConfig& gpt, Json& json, const char* experts_name = "num_experts");

// norm_topk_prob: whether the weights of a token's experts add up to 1.
void read_weights_of_experts(const Keys& keys, GptConfig& gpt);
void write_weights_of_experts(const GptConfig& gpt, Json& json);

// Qwen's: which layers have experts, by decoder_sparse_step and mlp_only_layers.
void read_expert_layers(const Keys& keys, GptConfig& gpt);
void write_expert_layers(const GptConfig& gpt, Json& json);

// Returns the shortest --moe-layer-freq that chooses the same layers.
std::vector<int> shortest_layer_freq(const GptConfig& gpt);

// Returns the name of an activation that our model can have, with one name for those that
// transformers has several for.
Json activation_of(const Keys& keys, const char* key, const std::vector<Json>& known);

// GELU of either kind, or ReLU. `tanh` is the family's name for the tanh GELU.
void read_activation(const Keys& keys, const char* key, GptConfig& gpt);
const char* activation_name(const GptConfig& gpt, const char* tanh = "gelu_pytorch_tanh");

// Dropout of embeddings and of sublayers, which have one flag.
void read_dropout(const Keys& keys, const char* embedding, const char* sublayers, GptConfig& gpt);

}  // namespace anymesh
