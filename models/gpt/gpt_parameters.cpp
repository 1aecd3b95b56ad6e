#include "models/gpt/gpt_parameters.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "models/gpt/lora.h"

namespace anymesh {
namespace {

using Sum = GptParameter::Sum;

// Appends parameters of a layer. Names are without "2.".
class Builder {
 public:
  explicit Builder(const GptConfig& config) : c(config), h(config.hidden_size) {
    for (const std::string& part : lora_targets(config)) adapted_.insert(part);
  }

  std::vector<GptParameter> run() {
    const bool tied = !c.untie_embeddings_and_output_weights;
    GptParameter table{.name = "word_embeddings.weight",
                       .shape = {c.vocab_size, h},
                       .split_dim = 0,
                       .vocabulary = true,
                       .tied = tied,
                       .std = c.init_method_std};
    begin(1, tied ? "tied_modules.embed." : "1.", "embedding.");
    add(table);
    if (c.embed_layernorm) norm("word_embeddings.norm.");
    if (c.learned_positions())
      add({.name = "position_embeddings.weight",
           .shape = {c.max_position_embeddings + c.position_embedding_offset, h},
           .looked_up = true,
           .tp_sum = Sum::kOfSequence,
           .std = c.init_method_std});
    for (int i = 0; i < c.num_layers; ++i) {
      begin(i + 2, std::to_string(i + 2) + ".", "encoder.layers." + std::to_string(i) + ".");
      norm("input_layernorm.");
      attention();
      norm("post_attention_layernorm.");
      if (c.has_experts(i))
        experts();
      else
        mlp("mlp.", c.ffn_size());
    }
    begin(c.num_layers + 2, std::to_string(c.num_layers + 2) + ".", "encoder.final_layernorm.");
    norm("");
    if (tied) return std::move(list_);
    begin(c.num_layers + 3, std::to_string(c.num_layers + 3) + ".lm_head.", "output_layer.");
    table.name = "weight";
    add(table);
    return std::move(list_);
  }

 private:
  void begin(int layer, std::string prefix, const std::string& other) {
    layer_ = layer;
    prefix_ = std::move(prefix);
    other_prefix_ = "language_model." + other;
  }

  void add(GptParameter parameter) {
    parameter.other_name = other_prefix_ + parameter.name;
    parameter.name.insert(0, prefix_);
    parameter.layer = layer_;
    parameter.frozen = c.lora_rank > 0;
    list_.push_back(std::move(parameter));
  }

  void norm(const std::string& name, GptParameter like) {
    like.weight_decay = false;
    like.name = name + "weight";
    like.mean = c.apply_layernorm_1p ? 0 : 1;
    add(like);
    if (c.rms_norm()) return;
    like.name = name + "bias";
    like.mean = 0;
    add(like);
  }
  void norm(const std::string& name) { norm(name, {.shape = {h}, .tp_sum = Sum::kOfSequence}); }

  // Cut along their rows; with `sub_params` > 1 they are that many matrices on top of each other.
  void column_parallel(const std::string& name, int64_t in, int64_t out, bool bias,
                       int sub_params = 1) {
    add({.name = name + "weight",
         .shape = {out, in},
         .split_dim = 0,
         .sub_params = sub_params,
         .std = c.init_method_std});
    if (!bias) return;
    add({.name = name + "bias",
         .shape = {out},
         .split_dim = 0,
         .sub_params = sub_params,
         .weight_decay = false});
  }

  // Cut along their columns, so that every rank has the bias.
  void row_parallel(const std::string& name, int64_t in, int64_t out, bool bias) {
    add({.name = name + "weight", .shape = {out, in}, .split_dim = 1, .std = c.residual_std()});
    if (!bias) return;
    add({.name = name + "bias", .shape = {out}, .weight_decay = false, .tp_sum = Sum::kOfSequence});
  }

  // The adapter of a matrix [out, in] that tp cuts along `dim`, if it has one. A normal
  // distribution has the deviation of PEFT's uniform one, 1 / sqrt(3 in), and B begins with zeros.
  // A rank's part of one of the two has a partial gradient of the other, which is whole.
  void adapter(const std::string& part, int64_t in, int64_t out, int dim) {
    if (!adapted_.contains(part.substr(part.rfind('.') + 1))) return;
    const auto trained = [&](GptParameter matrix, bool is_cut) {
      matrix.split_dim = is_cut ? dim : -1;
      matrix.tp_sum = is_cut ? Sum::kNever : Sum::kAlways;
      add(matrix);
      list_.back().frozen = false;
    };
    trained({.name = part + ".lora_A.weight",
             .shape = {c.lora_rank, in},
             .std = 1 / std::sqrt(3 * static_cast<double>(in))},
            dim == 1);
    trained({.name = part + ".lora_B.weight", .shape = {out, c.lora_rank}}, dim == 0);
  }

  void attention() {
    const int64_t d = c.head_dim(), queries = c.num_attention_heads * d,
                  keys = c.key_value_heads() * d;
    column_parallel("self_attention.query_key_value.", h, queries + 2 * keys, c.qkv_bias());
    adapter("self_attention.q_proj", h, queries, 0);
    adapter("self_attention.k_proj", h, keys, 0);
    adapter("self_attention.v_proj", h, keys, 0);
    if (c.qk_layernorm)
      for (const auto& [name, width] : {std::pair("q", queries), {"k", keys}})
        norm(std::string("self_attention.") + name + "_layernorm.",
             c.qk_layernorm_all_heads ? GptParameter{.shape = {width}, .split_dim = 0}
                                      : GptParameter{.shape = {d}, .tp_sum = Sum::kAlways});
    row_parallel("self_attention.dense.", queries, h, c.attention_output_bias());
    adapter("self_attention.o_proj", queries, h, 1);
  }

  void mlp(const std::string& name, int64_t f) {
    const int matrices = c.gated() ? 2 : 1;
    column_parallel(name + "dense_h_to_4h.", h, f * matrices, c.add_bias_linear, matrices);
    adapter(name + "gate_proj", h, f, 0);
    adapter(name + "up_proj", h, f, 0);
    row_parallel(name + "dense_4h_to_h.", f, h, c.add_bias_linear);
    adapter(name + "down_proj", f, h, 1);
  }

  void experts() {
    const int64_t count = c.num_experts, f = c.moe_ffn_size();
    add({.name = "mlp.router.gate.weight",
         .shape = {count, h},
         .tp_sum = Sum::kAlways,
         .std = c.init_method_std});
    if (c.moe_router_enable_expert_bias)
      add({.name = "mlp.router.e_score_correction_bias", .shape = {count}, .buffer = true});
    const auto stack = [&](const char* name, int64_t rows, int64_t columns, int dim, double std) {
      add({.name = name,
           .shape = {count, rows, columns},
           .split_dim = dim,
           .experts = true,
           .std = std});
    };
    stack("mlp.experts.w1", f, h, 1, c.init_method_std);
    stack("mlp.experts.w2", h, f, 2, c.residual_std());
    stack("mlp.experts.w3", f, h, 1, c.init_method_std);
    if (c.moe_shared_expert_intermediate_size == 0) return;
    mlp("mlp.shared_experts.", c.moe_shared_expert_intermediate_size);
    if (c.moe_shared_expert_gate)
      add({.name = "mlp.shared_experts_gate.weight",
           .shape = {1, h},
           .tp_sum = Sum::kOfSequence,
           .std = c.init_method_std});
  }

  const GptConfig& c;
  const int64_t h;
  int layer_ = 0;
  std::string prefix_, other_prefix_;
  std::set<std::string> adapted_;  // parts of matrices that have adapters
  std::vector<GptParameter> list_;
};

}  // namespace

std::vector<GptParameter> gpt_parameters(const GptConfig& config) { return Builder(config).run(); }

int64_t numel_on_rank(const GptParameter& parameter, const GptConfig& config, const Topology& mesh,
                      int64_t same_bits) {
  int64_t numel = 1;
  for (const int64_t size : parameter.shape) numel *= size;
  if (parameter.vocabulary) {
    const int multiple = std::max(mesh.tp_size, static_cast<int>(same_bits));
    numel = padded_vocab_size(config, multiple) * config.hidden_size;
  }
  const bool is_whole = parameter.experts && mesh.whole_experts;
  if (parameter.split_dim >= 0 && !is_whole) numel /= mesh.tp_size;
  return parameter.experts ? numel / mesh.ep_size : numel;
}

GptStage::GptStage(const GptConfig& config, const Topology& mesh, int pp_rank)
    : first(pp_rank == 0), last(pp_rank == mesh.pp_size - 1) {
  for (int chunk = 0; chunk < mesh.chunks; ++chunk) {
    chunks.push_back(layers_of_stage(config.num_layers, mesh.pp_size * mesh.chunks,
                                     chunk * mesh.pp_size + pp_rank));
    for (int layer = chunks.back().begin; layer < chunks.back().end; ++layer)
      layers.push_back(layer);
  }
}

std::optional<GptStage::Place> GptStage::place_of(const GptParameter& parameter) const {
  const int layer = parameter.layer - 2;
  if (layer < 0 && first) return Place{0, 0};
  int unit = first;
  for (size_t chunk = 0; chunk < chunks.size(); ++chunk) {
    const auto [begin, end] = chunks[chunk];
    if (layer >= begin && layer < end) return Place{unit + layer - begin, static_cast<int>(chunk)};
    unit += end - begin;
  }
  // The last stage's layers end where the model's do.
  if (last && (parameter.tied || layer > layers.back())) return head();
  return {};
}

GptStage::Place GptStage::head() const {
  return {first + static_cast<int>(layers.size()), static_cast<int>(chunks.size()) - 1};
}

}  // namespace anymesh
