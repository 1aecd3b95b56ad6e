#include "tools/hf/gpt/parameters.h"

#include "models/gpt/gpt_names.h"

namespace anymesh {
namespace {

using Cut = GptParameter::Cut;

using Names = std::vector<std::string>;

// Transformers' names. Those of a layer's parts follow the layer's prefix.
struct FamilyNames {
  const char *base, *embedding, *layers, *norm1;
  Names qkv;
  const char *attention, *norm2;
  Names mlp_in;
  const char *mlp_out, *norm;
};
// clang-format off
const FamilyNames& names_of(HfFamily family) {
  static const FamilyNames names[] = {
      {"transformer.", "wte", "h.", "ln_1", {"attn.c_attn"}, "attn.c_proj", "ln_2", {"mlp.c_fc"},
       "mlp.c_proj", "ln_f"},
      {"model.", "embed_tokens", "layers.", "input_layernorm",
       {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, "self_attn.o_proj",
       "post_attention_layernorm", {"mlp.gate_proj", "mlp.up_proj"}, "mlp.down_proj", "norm"},
      {"transformer.", "word_embeddings", "h.", "input_layernorm",
       {"self_attention.query_key_value"}, "self_attention.dense", "post_attention_layernorm",
       {"mlp.dense_h_to_4h"}, "mlp.dense_4h_to_h", "ln_f"}};
  return names[static_cast<size_t>(family)];
}
// clang-format on

class Mapping {
 public:
  explicit Mapping(const HfModel& model)
      : family_(model.family), names_(names_of(family_)), gpt_(model.gpt), h_(gpt_.hidden_size) {}

  std::vector<GptParameter> run() {
    const bool untied = gpt_.untie_embeddings_and_output_weights;
    const std::string embed = untied ? "1." : "tied_modules.embed.", base = names_.base;
    const Shape table{gpt_.vocab_size, h_};
    add_same(embed + "word_embeddings.weight", table, Cut::kVocabulary,
             base + names_.embedding + ".weight");
    if (gpt_.embed_layernorm)
      norm(embed + "word_embeddings.norm", base + "word_embeddings_layernorm");
    if (gpt_.learned_positions())
      add_same(embed + "position_embeddings.weight", {gpt_.max_position_embeddings, h_},
               Cut::kWhole, base + "wpe.weight");
    for (int i = 0; i < gpt_.num_layers; ++i)
      layer(std::to_string(i + 2) + ".", base + names_.layers + std::to_string(i) + ".");
    norm(std::to_string(gpt_.num_layers + 2), base + names_.norm);
    if (untied)
      add_same(std::to_string(gpt_.num_layers + 3) + ".lm_head.weight", table, Cut::kVocabulary,
               "lm_head.weight");
    return std::move(parameters_);
  }

 private:
  void layer(const std::string& ours, const std::string& theirs) {
    const Names &qkv = names_.qkv, &mlp_in = names_.mlp_in;
    const int64_t kv = gpt_.key_value_heads() * gpt_.head_dim(), f = gpt_.ffn_size();
    norm(ours + "input_layernorm", theirs + names_.norm1);
    linear(ours + "self_attention.query_key_value", theirs, qkv,
           qkv.size() > 1 ? Shape{h_, kv, kv} : Shape{h_ + 2 * kv}, h_, Cut::kRows,
           /*grouped=*/family_ != HfFamily::kBloom);
    linear(ours + "self_attention.dense", theirs, {names_.attention}, {h_}, h_, Cut::kColumns);
    norm(ours + "post_attention_layernorm", theirs + names_.norm2);
    linear(ours + "mlp.dense_h_to_4h", theirs, mlp_in, Shape(mlp_in.size(), f), h_, Cut::kRows);
    linear(ours + "mlp.dense_4h_to_h", theirs, {names_.mlp_out}, {h_}, f, Cut::kColumns);
  }

  void norm(const std::string& ours, const std::string& theirs) {
    add_same(ours + ".weight", {h_}, Cut::kWhole, theirs + ".weight");
    if (gpt_.normalization == "layernorm")
      add_same(ours + ".bias", {h_}, Cut::kWhole, theirs + ".bias");
  }

  // `rows` has the rows of each of their tensors, `theirs` and a name. If a matrix is cut by
  // columns, every rank has its bias.
  void linear(const std::string& ours, const std::string& theirs, const Names& names,
              const Shape& rows, int64_t in, Cut cut, bool grouped = false) {
    const bool transposed = family_ == HfFamily::kGpt2;
    const Cut bias_cut = cut == Cut::kColumns ? Cut::kWhole : cut;
    GptParameter weight = parameter(ours + ".weight", {0, in}, cut),
                 bias = parameter(ours + ".bias", {0}, bias_cut);
    weight.transposed = transposed;
    if (grouped) weight.order = bias.order = kinds_of_groups();
    for (size_t i = 0; i < names.size(); ++i) {
      weight.shape[0] += rows[i];
      bias.shape[0] += rows[i];
      weight.theirs.push_back(
          {theirs + names[i] + ".weight", transposed ? Shape{in, rows[i]} : Shape{rows[i], in}});
      bias.theirs.push_back({theirs + names[i] + ".bias", {rows[i]}});
    }
    parameters_.push_back(std::move(weight));
    if (gpt_.add_bias_linear) parameters_.push_back(std::move(bias));
  }

  void add_same(const std::string& ours, const Shape& shape, Cut cut, const std::string& theirs) {
    GptParameter same = parameter(ours, shape, cut);
    same.theirs = {{theirs, shape}};
    parameters_.push_back(std::move(same));
  }

  GptParameter parameter(const std::string& name, const Shape& shape, Cut cut) const {
    return {{name, no_pipeline_name(name, gpt_.num_layers), shape}, cut};
  }

  // Returns the rows of all q, all keys, all values, where ours are [q, key, value] for each group.
  std::vector<HfParameter::Rows> kinds_of_groups() const {
    const int64_t groups = gpt_.key_value_heads(), d = gpt_.head_dim(),
                  queries = gpt_.num_attention_heads / groups * d;
    std::vector<HfParameter::Rows> rows;
    for (const auto& [at, count] : {HfParameter::Rows{0, queries}, {queries, d}, {queries + d, d}})
      for (int64_t group = 0; group < groups; ++group)
        rows.push_back({group * (queries + 2 * d) + at, count});
    return rows;
  }

  HfFamily family_;
  const FamilyNames& names_;
  const GptConfig& gpt_;
  int64_t h_;
  std::vector<GptParameter> parameters_;
};

}  // namespace

std::vector<GptParameter> hf_parameters(const HfModel& model) { return Mapping(model).run(); }

std::string base_prefix(HfFamily family) { return names_of(family).base; }

}  // namespace anymesh
