#pragma once

#include <string>
#include <vector>

#include "framework/format/layout.h"
#include "tests/support/checkpoints.h"

namespace anymesh {

// A checkpoint of ZeRO 1 in one parameter group, as DeepSpeed would write it, with numbered
// elements: master i, first moment i + 0.25, second i + 0.5, and 1000 more on each next tp rank. It
// serves for layouts that no fixture has.
//
//   Synthetic source{.parameters = {{"a.weight", {3, 7}}}, .dp = 8};
//   source.write(folder);
struct Synthetic {
  struct Parameter {
    std::string name;
    Shape shape;
  };
  std::vector<Parameter> parameters;  // of each tp rank
  int dp = 1, tp = 1;
  bool bf16_optimizer = false;  // masters with padding, paddings as that class counts them
  bool elastic = false;
  bool megatron = false;  // has Megatron's args
  Value info;             // universal_checkpoint_info, or None

  void write(const fs::path& tag) const {
    fs::create_directories(tag);
    for (int t = 0; t < tp; ++t) {
      write_torch_file(tag / model_states_file(t), model_states());
      for (int d = 0; d < dp; ++d)
        write_torch_file(tag / optim_states_file(d, t, true), optimizer(d, t));
    }
  }

 private:
  FlatGroup layout() const {
    std::vector<int64_t> numels;
    for (const Parameter& parameter : parameters) numels.push_back(numel(parameter.shape));
    return FlatGroup(numels, dp);
  }

  Value model_states() const {
    std::vector<Value::Entry> shapes;
    for (const Parameter& p : parameters) shapes.emplace_back(p.name, Value::size(p.shape));
    Value state = Value::dict(
        {{keys::kModule, {}},
         {keys::kBufferNames, Value::list()},
         {keys::kParamShapes, Value::list({Value::ordered_dict(std::move(shapes))})},
         {keys::kDpWorldSize, dp},
         {keys::kMpWorldSize, tp},
         {keys::kParallelDimensions, Value::dict({{keys::kPpDegree, 1}, {keys::kTpDegree, tp}})},
         {keys::kDsVersion, "0.19.8"}});
    if (megatron) state.set(keys::kArgs, argparse_namespace({{"seed", 1234}}));
    return info ? state.set(keys::kUniversalInfo, info) : state;
  }

  // Returns a rank's padding. BF16_Optimizer counts all of it on the last rank, even beyond its
  // partition.
  int64_t padding(int rank) const {
    const FlatGroup flat = layout();
    if (!bf16_optimizer) return flat.padding(rank);
    return rank == dp - 1 ? dp * flat.partition_numel() - flat.numel() : 0;
  }

  // Returns elements [rank * P, rank * P + count) of the flat buffer, and zeros past its end.
  Value partition(int rank, int64_t count, float offset) const {
    const FlatGroup flat = layout();
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = rank * flat.partition_numel() + i;
      values.push_back(at < flat.numel() ? static_cast<float>(at) + offset : 0);
    }
    return float_tensor({count}, values);
  }

  Value optimizer(int rank, int tp_rank) const {
    const FlatGroup flat = layout();
    const int64_t whole = flat.partition_numel(), real = whole - flat.padding(rank);
    const int64_t moments = elastic ? real : whole;
    const float first = 1000.0f * static_cast<float>(tp_rank);
    Value adam = Value::dict({{kStepState, float_tensor({}, {4})},
                              {kExpAvgState, partition(rank, moments, first + 0.25f)},
                              {kExpAvgSqState, partition(rank, moments, first + 0.5f)}});
    const Value group =
        Value::dict({{"lr", 1e-3}, {keys::kWeightDecay, 0.1}, {keys::kParams, Value::list({0})}});
    const Value base = elastic ? Value::list({adam})
                               : Value::dict({{keys::kState, Value::dict({{0, adam}})},
                                              {keys::kParamGroups, Value::list({group})}});
    std::vector<Value::Entry> mapping;
    for (const Fragment& f : flat.fragments(rank))
      mapping.emplace_back(parameters[f.param].name, fragment_address(f.numel, f.partition_start));
    Value state = Value::dict(
        {{keys::kBaseOptimizerState, base},
         {keys::kFp32Groups, Value::list({partition(rank, bf16_optimizer ? whole : real, first)})},
         {keys::kGroupPaddings, Value::list({padding(rank)})},
         {keys::kPartitionCount, Value::list({dp})},
         {keys::kDsVersion, "0.19.8"},
         {keys::kParamSliceMappings, Value::list({Value::ordered_dict(std::move(mapping))})}});
    if (!bf16_optimizer) state.set(keys::kZeroStage, zero_stage_enum(1));
    return Value::dict({{keys::kOptimizerStateDict, state}, {keys::kDsVersion, "0.19.8"}});
  }
};

}  // namespace anymesh
