#include "tools/hf/gpt/parameters.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "framework/format/layout.h"
#include "models/gpt/gpt_parameters.h"
#include "tools/hf/gpt/family.h"

namespace anymesh {
namespace {

class Mapping {
 public:
  explicit Mapping(const HfModel& model)
      : gpt_(model.gpt), family_(*model.family), names_(tensors_of(family_)) {}

  HfParameter operator()(const GptParameter& ours) const {
    HfParameter parameter{.name = ours.name, .other_name = ours.other_name, .shape = ours.shape};
    const bool in_layer = ours.layer > 1 && ours.layer < gpt_.num_layers + 2,
               is_head = ours.layer == gpt_.num_layers + 3;
    std::string before = is_head ? "" : text("base");
    if (in_layer) before += text("layers") + std::to_string(ours.layer - 2) + ".";
    const std::string module = module_of(ours),
                      end = ours.name.ends_with(".bias") ? ".bias" : ".weight";
    const std::vector<std::string> names = names_of(module, ours.experts);
    parameter.transposed = family_.transposed && in_layer && ours.shape.size() == 2;
    for (size_t i = 0; i < names.size(); ++i) {
      Shape shape = ours.shape;
      shape[0] = rows_of(module, shape[0], i, names.size());
      if (ours.experts) shape.erase(shape.begin());  // a tensor has one expert
      if (parameter.transposed) std::swap(shape.front(), shape.back());
      parameter.theirs.push_back(
          {before + names[i] + end.substr(names[i].ends_with('_')), std::move(shape)});
    }
    if (module == kQkv && !family_.grouped) parameter.order = kinds_of_groups();
    return parameter;
  }

 private:
  static constexpr const char* kQkv = "self_attention.query_key_value";

  std::string text(const std::string& key) const { return names_.at(key); }

  std::vector<std::string> names_of(const std::string& module, bool experts) const {
    const Json& found = names_.at(module);
    if (!experts) return found.is_array() ? found : Json::array({found});
    std::vector<std::string> names;
    for (int e = 0; e < gpt_.num_experts; ++e)
      names.push_back(text("mlp.experts") + std::to_string(e) + "." + text(module));
    return names;
  }

  // Returns the name without "2." and ".weight".
  static std::string module_of(const GptParameter& parameter) {
    const std::string& name = parameter.name;
    const size_t begin = name.find('.', name.starts_with(kTiedModules) ? kTiedModules.size() : 0),
                 end = parameter.experts ? name.size() : name.rfind('.');
    return end <= begin ? "" : name.substr(begin + 1, end - begin - 1);
  }

  // Returns the rows of tensor i of `count`, which have `all` together.
  int64_t rows_of(const std::string& module, int64_t all, size_t i, size_t count) const {
    if (module != kQkv || count == 1) return all / static_cast<int64_t>(count);
    return int64_t{i == 0 ? gpt_.num_attention_heads : gpt_.key_value_heads()} * gpt_.head_dim();
  }

  // Returns the rows of all q, all keys, all values, where ours are [q, key, value] for each group.
  std::vector<HfParameter::Rows> kinds_of_groups() const {
    std::vector<HfParameter::Rows> rows;
    for (size_t kind = 0; kind < 3; ++kind)
      std::ranges::copy(qkv_rows(gpt_, kind), std::back_inserter(rows));
    return rows;
  }

  const GptConfig& gpt_;
  const Family& family_;
  const Json names_;  // theirs by our module's
};

}  // namespace

std::vector<HfParameter::Rows> qkv_rows(const GptConfig& gpt, size_t kind) {
  const int64_t d = gpt.head_dim(), queries = gpt.num_attention_heads / gpt.key_value_heads() * d;
  const HfParameter::Rows of[] = {{0, queries}, {queries, d}, {queries + d, d}};
  std::vector<HfParameter::Rows> rows;
  for (int64_t group = 0; group < gpt.key_value_heads(); ++group)
    rows.push_back({group * (queries + 2 * d) + of[kind].begin, of[kind].count});
  return rows;
}

std::vector<HfParameter> hf_parameters(const HfModel& model) {
  const Mapping mapping(model);
  std::vector<HfParameter> parameters;
  for (const GptParameter& parameter : gpt_parameters(model.gpt))
    parameters.push_back(mapping(parameter));
  return parameters;
}

}  // namespace anymesh
