#include "models/gpt/stage_params.h"

#include <algorithm>
#include <utility>

namespace anymesh {

StageParams::StageParams(const GptConfig& config, const ProcessGrid& grid, const TensorParallel& tp,
                         const torch::TensorOptions& options, uint64_t seed)
    : config_(config), builder_(tp, options, seed) {
  builder_.vocabulary_multiple =
      config.make_vocab_size_divisible_by * std::max(1, tp.blocks_here());
  builder_.ep = {grid.ep, grid.topology.whole_experts};
  const GptStage stage(config, grid.topology, grid.coord.pp);
  for (const GptParameter& parameter : gpt_parameters(config)) {
    const std::optional<GptStage::Place> place = stage.place_of(parameter);
    if (!place) continue;
    using Sum = GptParameter::Sum;
    builder_.layer = parameter.layer;
    builder_.unit = place->unit;
    builder_.chunk = place->chunk;
    const torch::Tensor leaf =
        builder_.add({.name = parameter.name,
                      .other_name = parameter.other_name,
                      .shape = parameter.shape,
                      .split_dim = parameter.split_dim,
                      .sub_params = parameter.sub_params,
                      .experts = parameter.experts,
                      .vocabulary = parameter.vocabulary,
                      .looked_up = parameter.looked_up,
                      .weight_decay = parameter.weight_decay,
                      .tied = parameter.tied,
                      .tp_sum = parameter.tp_sum == Sum::kAlways ||
                                (parameter.tp_sum == Sum::kOfSequence && tp.sequence),
                      .buffer = parameter.buffer,
                      .duplicate = parameter.tied && !stage.first},
                     {parameter.mean, parameter.std});
    leaves_[parameter.name] = leaf;
    parts_[parameter.name] = parameter.sub_params;
    if (parameter.frozen) leaf.requires_grad_(false);
    if (!parameter.vocabulary || !stage.last) continue;
    builder_.unit = stage.head().unit;
    const bool twice = parameter.tied && stage.first;
    output_table_ = twice ? builder_.use_again(parameter.name) : leaf;
  }
}

torch::Tensor StageParams::operator[](const std::string& name) const {
  const auto found = leaves_.find(name);
  return found == leaves_.end() ? torch::Tensor() : found->second;
}

ColumnParallelLinear StageParams::column_parallel(const std::string& name) const {
  const auto parts = parts_.find(name + ".weight");
  return {tp(), (*this)[name + ".weight"], (*this)[name + ".bias"],
          parts == parts_.end() ? 1 : parts->second};
}

RowParallelLinear StageParams::row_parallel(const std::string& name) const {
  return {tp(), (*this)[name + ".weight"], (*this)[name + ".bias"]};
}

LoraAdapter StageParams::adapter(const std::vector<std::pair<std::string, int64_t>>& parts,
                                 DropoutSite site, int64_t groups) const {
  std::vector<LoraAdapter::Part> adapters;
  bool any = false;
  for (const auto& [name, rows] : parts) {
    adapters.push_back({rows, (*this)[name + ".lora_A.weight"], (*this)[name + ".lora_B.weight"]});
    any |= adapters.back().a.defined();
  }
  if (!any) return {};
  const auto layer = static_cast<uint32_t>(std::stoi(parts[0].first));  // the name's first part
  return {std::move(adapters),
          groups,
          config_.lora_alpha / config_.lora_rank,
          config_.lora_dropout,
          {layer, site}};
}

NormParams StageParams::norm(const std::string& name) const {
  return {.weight = (*this)[name + ".weight"],
          .bias = (*this)[name + ".bias"],
          .epsilon = config_.layernorm_epsilon,
          .offset = config_.apply_layernorm_1p ? 1.0 : 0.0};
}

std::vector<ParamSpec> StageParams::take() {
  std::vector<ParamSpec> specs = builder_.take();
  if (config_.no_pipeline_parallel)
    for (ParamSpec& spec : specs) std::swap(spec.name, spec.other_name);
  return specs;
}

}  // namespace anymesh
