#include "tools/hf/parameters.h"

#include <cstring>

#include "framework/format/sharded.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

using Cut = HfParameter::Cut;

enum Part { kBase, kEmbedding, kLayers, kNorm1, kQkv, kAttention, kNorm2, kMlpIn, kMlpOut, kNorm };

// Returns transformers' names of a part. Names of a layer's parts follow the layer's prefix.
const std::vector<std::string>& names_of(Part part, HfFamily family) {
  static const std::vector<std::string> names[][3] = {
      // GPT-2, Llama, BLOOM
      {{"transformer."}, {"model."}, {"transformer."}},
      {{"wte"}, {"embed_tokens"}, {"word_embeddings"}},
      {{"h."}, {"layers."}, {"h."}},
      {{"ln_1"}, {"input_layernorm"}, {"input_layernorm"}},
      {{"attn.c_attn"},
       {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
       {"self_attention.query_key_value"}},
      {{"attn.c_proj"}, {"self_attn.o_proj"}, {"self_attention.dense"}},
      {{"ln_2"}, {"post_attention_layernorm"}, {"post_attention_layernorm"}},
      {{"mlp.c_fc"}, {"mlp.gate_proj", "mlp.up_proj"}, {"mlp.dense_h_to_4h"}},
      {{"mlp.c_proj"}, {"mlp.down_proj"}, {"mlp.dense_4h_to_h"}},
      {{"ln_f"}, {"norm"}, {"ln_f"}}};
  return names[part][static_cast<size_t>(family)];
}

class Mapping {
 public:
  explicit Mapping(const HfModel& model)
      : family_(model.family), gpt_(model.gpt), h_(gpt_.hidden_size) {}

  std::vector<HfParameter> run() {
    const std::string embed =
        gpt_.untie_embeddings_and_output_weights ? "1." : "tied_modules.embed.";
    const std::string base = base_prefix(family_);
    const Shape table{gpt_.vocab_size, h_};
    add_same(embed + "word_embeddings.weight", table, Cut::kVocabulary,
             base + names_of(kEmbedding, family_)[0] + ".weight");
    if (gpt_.embed_layernorm)
      norm(embed + "word_embeddings.norm", base + "word_embeddings_layernorm");
    if (gpt_.learned_positions())
      add_same(embed + "position_embeddings.weight", {gpt_.max_position_embeddings, h_},
               Cut::kWhole, base + "wpe.weight");
    for (int i = 0; i < gpt_.num_layers; ++i) layer(i);
    norm(std::to_string(gpt_.num_layers + 2), base + names_of(kNorm, family_)[0]);
    if (gpt_.untie_embeddings_and_output_weights)
      add_same(std::to_string(gpt_.num_layers + 3) + ".lm_head.weight", table, Cut::kVocabulary,
               "lm_head.weight");
    return std::move(parameters_);
  }

 private:
  void layer(int i) {
    const std::string ours = std::to_string(i + 2) + ".";
    const std::string prefix =
        base_prefix(family_) + names_of(kLayers, family_)[0] + std::to_string(i) + ".";
    const auto theirs = [&](Part part) {
      std::vector<std::string> names = names_of(part, family_);
      for (std::string& name : names) name = prefix + name;
      return names;
    };
    const int64_t d = gpt_.head_dim(), kv = gpt_.key_value_heads() * d, f = gpt_.ffn_size();
    const auto qkv = theirs(kQkv), mlp_in = theirs(kMlpIn);
    norm(ours + "input_layernorm", theirs(kNorm1)[0]);
    linear(ours + "self_attention.query_key_value", qkv,
           qkv.size() > 1 ? Shape{h_, kv, kv} : Shape{h_ + 2 * kv}, h_, Cut::kRows,
           /*grouped=*/family_ != HfFamily::kBloom);
    linear(ours + "self_attention.dense", theirs(kAttention), {h_}, h_, Cut::kColumns);
    norm(ours + "post_attention_layernorm", theirs(kNorm2)[0]);
    linear(ours + "mlp.dense_h_to_4h", mlp_in, Shape(mlp_in.size(), f), h_, Cut::kRows);
    linear(ours + "mlp.dense_4h_to_h", theirs(kMlpOut), {h_}, f, Cut::kColumns);
  }

  void norm(const std::string& ours, const std::string& theirs) {
    add_same(ours + ".weight", {h_}, Cut::kWhole, theirs + ".weight");
    if (gpt_.normalization == "layernorm")
      add_same(ours + ".bias", {h_}, Cut::kWhole, theirs + ".bias");
  }

  // `rows` has the rows of each of their tensors. If a matrix is cut by columns, every rank has its
  // bias.
  void linear(const std::string& ours, const std::vector<std::string>& theirs, const Shape& rows,
              int64_t in, Cut cut, bool grouped = false) {
    const bool transposed = family_ == HfFamily::kGpt2;
    const Cut bias_cut = cut == Cut::kColumns ? Cut::kWhole : cut;
    HfParameter weight{ours + ".weight", {0, in}, cut, {}, transposed, grouped};
    HfParameter bias{ours + ".bias", {0}, bias_cut, {}, /*transposed=*/false, grouped};
    for (size_t i = 0; i < theirs.size(); ++i) {
      weight.shape[0] += rows[i];
      bias.shape[0] += rows[i];
      weight.theirs.push_back(
          {theirs[i] + ".weight", transposed ? Shape{in, rows[i]} : Shape{rows[i], in}});
      bias.theirs.push_back({theirs[i] + ".bias", {rows[i]}});
    }
    parameters_.push_back(std::move(weight));
    if (gpt_.add_bias_linear) parameters_.push_back(std::move(bias));
  }

  void add_same(const std::string& ours, const Shape& shape, Cut cut, const std::string& theirs) {
    parameters_.push_back({ours, shape, cut, {{theirs, shape}}});
  }

  HfFamily family_;
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

std::string base_prefix(HfFamily family) { return names_of(kBase, family)[0]; }

}  // namespace anymesh
