#include "tools/hf/gpt/parameters.h"

#include <numeric>
#include <utility>

#include "models/gpt/gpt_names.h"
#include "tools/hf/gpt/family.h"

namespace anymesh {
namespace {

using Cut = GptParameter::Cut;

using Names = std::vector<std::string>;

class Mapping {
 public:
  explicit Mapping(const HfModel& model)
      : names_(model.family->tensors), gpt_(model.gpt), h_(gpt_.hidden_size) {}

  std::vector<GptParameter> run() {
    const bool untied = gpt_.untie_embeddings_and_output_weights;
    const std::string embed = untied ? "1." : "tied_modules.embed.", base = names_.base;
    const Shape table{gpt_.vocab_size, h_};
    add_same(embed + "word_embeddings.weight", table, Cut::kVocabulary,
             base + names_.embedding + ".weight");
    if (gpt_.embed_layernorm)
      norm(embed + "word_embeddings.norm", h_, base + names_.embedding_norm);
    if (gpt_.learned_positions())
      add_same(embed + "position_embeddings.weight",
               {gpt_.max_position_embeddings + gpt_.position_embedding_offset, h_}, Cut::kWhole,
               base + names_.positions + ".weight");
    for (int i = 0; i < gpt_.num_layers; ++i)
      layer(i, std::to_string(i + 2) + ".", base + names_.layers + std::to_string(i) + ".");
    norm(std::to_string(gpt_.num_layers + 2), h_, base + names_.norm);
    if (untied)
      add_same(std::to_string(gpt_.num_layers + 3) + ".lm_head.weight", table, Cut::kVocabulary,
               names_.head + ".weight");
    return std::move(parameters_);
  }

 private:
  void layer(int number, const std::string& ours, const std::string& theirs) {
    const int64_t q = gpt_.num_attention_heads * gpt_.head_dim(),
                  kv = gpt_.key_value_heads() * gpt_.head_dim();
    norm(ours + "input_layernorm", h_, theirs + names_.norm1);
    linear(ours + "self_attention.query_key_value", theirs, names_.qkv, {q, kv, kv}, h_, Cut::kRows,
           gpt_.qkv_bias(), names_.grouped ? Order{} : kinds_of_groups());
    if (gpt_.qk_layernorm) head_norms(ours + "self_attention.", theirs);
    linear(ours + "self_attention.dense", theirs, {names_.attention_out}, {h_}, q, Cut::kColumns,
           gpt_.attention_output_bias());
    norm(ours + "post_attention_layernorm", h_, theirs + names_.norm2);
    if (gpt_.has_experts(number)) {
      experts(ours + "mlp.", theirs);
    } else {
      mlp(ours + "mlp.", theirs, names_.mlp_in, names_.mlp_out, gpt_.ffn_size());
    }
  }

  void head_norms(const std::string& ours, const std::string& theirs) {
    const bool all = gpt_.qk_layernorm_all_heads;
    const int64_t d = gpt_.head_dim();
    const Cut cut = all ? Cut::kRows : Cut::kWhole;
    norm(ours + "q_layernorm", all ? gpt_.num_attention_heads * d : d, theirs + names_.q_norm, cut);
    norm(ours + "k_layernorm", all ? gpt_.key_value_heads() * d : d, theirs + names_.k_norm, cut);
  }

  void mlp(const std::string& ours, const std::string& theirs, const Names& in,
           const std::string& out, int64_t f) {
    linear(ours + "dense_h_to_4h", theirs, in, Shape(gpt_.gated() ? 2 : 1, f), h_, Cut::kRows,
           gpt_.add_bias_linear, {}, gpt_.gated());
    linear(ours + "dense_4h_to_h", theirs, {out}, {h_}, f, Cut::kColumns, gpt_.add_bias_linear);
  }

  void experts(const std::string& ours, const std::string& theirs) {
    const Family::Tensors::Experts& names = names_.experts;
    const int64_t count = gpt_.num_experts, f = gpt_.moe_ffn_size(),
                  shared = gpt_.moe_shared_expert_intermediate_size;
    add_same(ours + "router.gate.weight", {count, h_}, Cut::kWhole,
             theirs + names.router + ".weight");
    const auto stack = [&](const char* which, const std::string& name, const Shape& shape,
                           Cut cut) {
      GptParameter stacked = parameter(ours + "experts." + which, {count, shape[0], shape[1]}, cut);
      for (int64_t e = 0; e < count; ++e)
        stacked.theirs.push_back(
            {theirs + names.each + std::to_string(e) + "." + name + ".weight", shape});
      parameters_.push_back(std::move(stacked));
    };
    stack("w1", names.gate, {f, h_}, Cut::kColumns);
    stack("w2", names.down, {h_, f}, Cut::kThird);
    stack("w3", names.up, {f, h_}, Cut::kColumns);
    if (shared > 0)
      mlp(ours + "shared_experts.", theirs, names.shared_in, names.shared_out, shared);
    if (gpt_.moe_shared_expert_gate)
      add_same(ours + "shared_experts_gate.weight", {1, h_}, Cut::kWhole,
               theirs + names.shared_gate + ".weight");
  }

  void norm(const std::string& ours, int64_t width, const std::string& theirs,
            Cut cut = Cut::kWhole) {
    add_same(ours + ".weight", {width}, cut, theirs + ".weight");
    if (!gpt_.rms_norm()) add_same(ours + ".bias", {width}, cut, theirs + ".bias");
  }

  // `rows` are those of each of their tensors, or in all of the only one. A tensor's name is
  // `theirs` and one of `names`. If a matrix is cut by columns, every rank has its bias.
  using Order = std::vector<HfParameter::Rows>;
  void linear(const std::string& ours, const std::string& theirs, const Names& names, Shape rows,
              int64_t in, Cut cut, bool has_bias, const Order& order = {}, bool halves = false) {
    if (names.size() == 1) rows = {std::accumulate(rows.begin(), rows.end(), int64_t{0})};
    GptParameter weight = parameter(ours + ".weight", {0, in}, cut),
                 bias = parameter(ours + ".bias", {0}, cut == Cut::kColumns ? Cut::kWhole : cut);
    weight.transposed = names_.transposed;
    weight.order = bias.order = order;
    weight.halves = bias.halves = halves;
    for (size_t i = 0; i < names.size(); ++i) {
      weight.shape[0] += rows[i];
      bias.shape[0] += rows[i];
      weight.theirs.push_back({theirs + names[i] + ".weight",
                               weight.transposed ? Shape{in, rows[i]} : Shape{rows[i], in}});
      bias.theirs.push_back({theirs + names[i] + ".bias", {rows[i]}});
    }
    parameters_.push_back(std::move(weight));
    if (has_bias) parameters_.push_back(std::move(bias));
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
  Order kinds_of_groups() const {
    const int64_t groups = gpt_.key_value_heads(), d = gpt_.head_dim(),
                  queries = gpt_.num_attention_heads / groups * d;
    Order rows;
    for (const auto& [at, count] : {HfParameter::Rows{0, queries}, {queries, d}, {queries + d, d}})
      for (int64_t group = 0; group < groups; ++group)
        rows.push_back({group * (queries + 2 * d) + at, count});
    return rows;
  }

  const Family::Tensors& names_;
  const GptConfig& gpt_;
  int64_t h_;
  std::vector<GptParameter> parameters_;
};

}  // namespace

std::vector<GptParameter> hf_parameters(const HfModel& model) { return Mapping(model).run(); }

}  // namespace anymesh
