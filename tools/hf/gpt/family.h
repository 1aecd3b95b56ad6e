#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "models/gpt/gpt_config.h"
#include "tools/hf/gpt/keys.h"

namespace anymesh {

// Everything in which a family of models of transformers differs from the others. Each is a
// constant in families/ and a word in family.cpp; no other code knows one by its name. A family
// that needs no new option of the model is such a constant and such a word.
struct Family {
  const char *name, *model_type, *architecture;  // "GPT-2", "gpt2", "GPT2LMHeadModel"

  // config.json: the names of the keys that all families have, then a function that binds the
  // others to a GPT's fields. A GPT that comes back from the keys that it wrote has the same flags,
  // or else it is not of the family.
  struct Names {
    const char *hidden_size = "hidden_size", *num_layers = "num_hidden_layers",
               *num_heads = "num_attention_heads", *initializer = "initializer_range";
  } keys = {};
  Keys::OtherNames other_names = {};  // of the class's attribute_map, and of older files
  const Family* parent = nullptr;     // has the defaults and tensors that it does not name itself
  const char* defaults;               // those of the family's config class, for absent keys: JSON
  void (*bind)(Keys& keys, GptConfig& gpt);

  // The names of tensors by ours, both without .weight and .bias, and ours without "2.": JSON. A
  // list has q, k and v, or gate and up. Those of a layer's parts follow "layers", the layer's
  // number and a dot; those of an expert also "mlp.experts", its number and a dot. All but the
  // head's follow "base", which files of the bare model leave out. One that ends in _ has weight
  // and bias behind it without a point.
  const char* tensors = "{}";
  bool experts = false;     // in place of MLPs
  bool transposed = false;  // linear layers keep [in, out]
  bool grouped = false;     // rows of qkv are [q, ..., q, key, value] for each group, as ours;
                            // otherwise all q, all keys, all values

  // Masks and tables that older versions saved and newer ones compute, as we do: how their names
  // end, and how many dims they have.
  struct Buffer {
    const char* end;
    size_t dims;
  };
  std::array<Buffer, 3> buffers = {};
};

// families/llama.cpp, families/experts.cpp and families/others.cpp
extern const Family kLlama, kMistral, kQwen2, kQwen3, kGemma, kPhi3;
extern const Family kMixtral, kQwen2Moe, kQwen3Moe, kOlmoe;
extern const Family kGpt2, kBloom, kGptNeox, kOpt, kStarcoder2, kFalcon;
extern const Family kMegatronCore;  // has names of tensors alone

// All families. A model of two goes by the first.
std::span<const Family* const> families();
const Family* find_family(const std::string& model_type);  // nullptr: it is not known here

// Returns why models of a type that is not known here cannot be imported; "" for unheard ones.
std::string why_refused(const std::string& model_type);

// Return the defaults and the tensors of a family, with those of its parents.
Json defaults_of(const Family& family);
Json tensors_of(const Family& family);

// Parts of bind() that several families share.

// A Llama's keys. Families that descend from it call this and go on from there. The MLP is SwiGLU
// unless gpt.geglu is set, and then its key is left to the caller. The key `percent` gives the part
// of a head that turns; null: all turn.
void bind_llama(Keys& keys, GptConfig& gpt, const char* percent = nullptr);
void bind_attention_bias(Keys& keys, GptConfig& gpt);

// Rotary positions: rope_theta or another name of it, rope_scaling, rope_parameters. `percent` is
// read alone.
void bind_rotary(Keys& keys, GptConfig& gpt, const char* percent = nullptr,
                 const char* theta = "rope_theta");

// The window of attention, in tokens with the query's own. Null: all.
void bind_window(Keys& keys, GptConfig& gpt);

// Returns the name of an activation that our model can have, with one name for those that
// transformers has several for.
Json activation_of(const Keys& keys, const char* key, const std::vector<Json>& known);

// GELU of either kind, or ReLU. `tanh` is the family's name for the tanh GELU.
void bind_activation(Keys& keys, const char* key, GptConfig& gpt,
                     const char* tanh = "gelu_pytorch_tanh");

// Dropout of embeddings and of sublayers, which have one flag.
void bind_dropout(Keys& keys, const char* embedding, const char* sublayers, GptConfig& gpt);

// Returns the shortest --moe-layer-freq that chooses the same layers.
std::vector<int> shortest_layer_freq(const GptConfig& gpt);

}  // namespace anymesh
