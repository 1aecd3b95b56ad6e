#include "tools/hf/parameters.h"

#include <cstring>

#include "framework/format/sharded.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

using Cut = HfParameter::Cut;

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

  std::vector<HfParameter> run() {
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
    HfParameter weight{ours + ".weight", {0, in}, cut, {}, transposed, grouped};
    HfParameter bias{ours + ".bias", {0}, bias_cut, {}, /*transposed=*/false, grouped};
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
    parameters_.push_back({ours, shape, cut, {{theirs, shape}}});
  }

  HfFamily family_;
  const FamilyNames& names_;
  const GptConfig& gpt_;
  int64_t h_;
  std::vector<HfParameter> parameters_;
};

// Joins fp32 sources end to end.
BytesPtr stacked(std::vector<BytesPtr> parts) {
  if (parts.size() == 1) return parts[0];
  std::vector<ShardFragment> fragments;
  int64_t begin = 0;
  for (BytesPtr& part : parts) {
    const auto count = static_cast<int64_t>(part->size() / sizeof(float));
    fragments.push_back({.begin = begin, .numel = count, .bytes = std::move(part)});
    begin += count;
  }
  return joined({begin}, std::move(fragments), DType::kFloat32);
}

// Returns the transpose of an fp32 matrix. Reading a range of it reads a piece of every row.
BytesPtr transposed(const BytesPtr& matrix, int64_t matrix_rows, int64_t matrix_columns) {
  const auto rows = static_cast<uint64_t>(matrix_rows),
             columns = static_cast<uint64_t>(matrix_columns);
  const auto read = [=](uint64_t offset, std::span<std::byte> out) {
    constexpr uint64_t kElement = sizeof(float);
    if (out.empty()) return;
    const uint64_t begin = offset / kElement, end = begin + out.size() / kElement;
    const uint64_t first = begin / rows, last = (end - 1) / rows;  // columns
    std::vector<std::byte> piece((last - first + 1) * kElement);
    for (uint64_t row = 0; row < rows; ++row) {
      matrix->read((row * columns + first) * kElement, piece);
      for (uint64_t column = first; column <= last; ++column) {
        const uint64_t at = column * rows + row;
        if (at >= begin && at < end)
          std::memcpy(out.data() + (at - begin) * kElement,
                      piece.data() + (column - first) * kElement, kElement);
      }
    }
  };
  return std::make_shared<ComputedBytes>(matrix->size(), "a transposed tensor", read);
}

uint64_t row_bytes(const HfParameter& parameter) {
  const int64_t columns = parameter.shape.size() > 1 ? parameter.shape[1] : 1;
  return static_cast<uint64_t>(columns) * sizeof(float);
}

BytesPtr rows_of(const BytesPtr& bytes, int64_t begin, int64_t count, uint64_t row) {
  return std::make_shared<SubRange>(bytes, static_cast<uint64_t>(begin) * row,
                                    static_cast<uint64_t>(count) * row);
}

// Reorders their rows (all q, all keys, all values) to ours ([q, key, value] for each group), or
// back.
BytesPtr regrouped(const BytesPtr& bytes, const GptConfig& gpt, uint64_t row, bool to_ours) {
  const size_t groups = static_cast<size_t>(gpt.key_value_heads());
  const int64_t d = gpt.head_dim(), queries = gpt.num_attention_heads / gpt.key_value_heads() * d;
  const int64_t counts[] = {queries, d, d};
  std::vector<BytesPtr> parts(3 * groups);
  int64_t ours = 0;
  for (size_t g = 0; g < groups; ++g) {
    int64_t theirs = 0;  // where the rows of this kind begin
    for (size_t kind = 0; kind < 3; ++kind) {
      const int64_t count = counts[kind], from = theirs + static_cast<int64_t>(g) * count;
      parts[to_ours ? 3 * g + kind : groups * kind + g] =
          rows_of(bytes, to_ours ? from : ours, count, row);
      ours += count;
      theirs += static_cast<int64_t>(groups) * count;
    }
  }
  return stacked(std::move(parts));
}

}  // namespace

std::vector<HfParameter> hf_parameters(const HfModel& model) { return Mapping(model).run(); }

BytesPtr ours_of(const HfParameter& parameter, const GptConfig& gpt, std::vector<BytesPtr> theirs) {
  for (size_t i = 0; parameter.transposed && i < theirs.size(); ++i) {
    const Shape& shape = parameter.theirs[i].shape;
    theirs[i] = transposed(theirs[i], shape[0], shape[1]);
  }
  const BytesPtr all = stacked(std::move(theirs));
  return parameter.grouped ? regrouped(all, gpt, row_bytes(parameter), /*to_ours=*/true) : all;
}

std::vector<BytesPtr> theirs_of(const HfParameter& parameter, const GptConfig& gpt, BytesPtr ours) {
  const uint64_t row = row_bytes(parameter);
  if (parameter.grouped) ours = regrouped(ours, gpt, row, /*to_ours=*/false);
  std::vector<BytesPtr> theirs;
  int64_t at = 0;
  for (const HfTensor& tensor : parameter.theirs) {
    const int64_t count = tensor.shape[parameter.transposed ? 1 : 0];
    BytesPtr bytes = rows_of(ours, at, count, row);
    if (parameter.transposed) bytes = transposed(bytes, count, tensor.shape[0]);
    theirs.push_back(std::move(bytes));
    at += count;
  }
  return theirs;
}

BytesPtr take(const CheckpointReader& checkpoint, const std::string& name,
              const std::string& other_name, const Shape& shape, std::set<std::string>& left,
              const std::string& by) {
  const bool other = !checkpoint.contains(name) && checkpoint.contains(other_name);
  const std::string& stored = other ? other_name : name;
  const WholeParameter found = checkpoint.parameter(stored);
  if (found.shape != shape)
    throw DamagedFile(checkpoint.path.string() + ": " + stored + " is " + to_string(found.shape) +
                      ", expected " + to_string(shape) + by);
  left.erase(stored);
  return as_float32(found.weight()).bytes;
}

std::string base_prefix(HfFamily family) { return names_of(family).base; }

}  // namespace anymesh
