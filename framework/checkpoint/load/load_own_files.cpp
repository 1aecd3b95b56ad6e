#include "framework/checkpoint/load/load_own_files.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>

#include "framework/checkpoint/expert_ranks.h"
#include "framework/checkpoint/load/find_loadable_tags.h"
#include "framework/checkpoint/load/load_whole_tensors.h"
#include "framework/checkpoint/torch_bridge.h"
#include "framework/format/layout.h"
#include "framework/format/sharded.h"
#include "framework/format/torch_file.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using Group = ZeroOptimizer::Group;
using Piece = ZeroOptimizer::Piece;

// Whether the checkpoint has the same parameters, with the same shapes, groups and order, and the
// same frozen parameters.
bool same_params(const Value& metadata, const CheckpointedRun& run) {
  const Value shapes = metadata.find(keys::kParamShapes);
  if (!shapes || shapes.size() != run.optimizer.groups().size()) return false;
  for (size_t g = 0; g < shapes.size(); ++g) {
    const auto& params = run.optimizer.groups()[g].params;
    const auto entries = shapes.at(g).entries();
    if (entries.size() != params.size()) return false;
    for (size_t i = 0; i < params.size(); ++i) {
      if (entries[i].first != Value(params[i].name) ||
          entries[i].second.as_shape() != params[i].tensor.sizes().vec())
        return false;
    }
  }
  const Value frozen = metadata.find(keys::kFrozenParamFragments);
  const auto& mine = run.optimizer.frozen();
  return std::all_of(mine.begin(), mine.end(), [&](const auto& f) {
    return frozen && frozen.contains(f.spec.name) &&
           frozen.at(f.spec.name).as_tensor().numel() == f.part.numel();
  });
}

// Reads one 1-D record into a group's partition. The record includes the padding, or has only the
// `real` elements.
template <class StateOf>
void read_pieces(const Value& value, const Group& group, int64_t real, const StateOf& state_of) {
  const TensorRecord& record = value.as_tensor();
  const int64_t partition = group.layout.partition_numel();
  TORCH_CHECK(record.numel() == real || record.numel() == partition, value.where(), ": ",
              record.numel(), " elements, expected ", real);
  for (const Piece& piece : group.pieces)
    read_elements(record, piece.partition_start, state_of(piece), value.where());
}

void take_step(const Value& state, const Group& group, const std::string& name, StepsRead& steps) {
  if (group.optimizer->counts_steps()) steps.emplace(state.at(kStepState).as_int(), name);
}

// Whether its state dicts have entries.
bool has_entry(const Optimizer& optimizer) {
  return !optimizer.states().empty() || optimizer.counts_steps();
}

void load_partitions(const Value& torch, const Value& fp32, CheckpointedRun& run,
                     StepsRead& steps) {
  auto& groups = run.optimizer.groups();
  const auto states = torch.at(keys::kState).entries();
  size_t next = 0;  // of the groups with states
  for (size_t g = 0; g < groups.size(); ++g) {
    const int64_t partition = groups[g].layout.partition_numel();
    const int64_t padding = run.optimizer.stage().partitions_parameters()
                                ? 0
                                : groups[g].layout.flat().padding(groups[g].partitions->rank());
    read_pieces(fp32.at(g), groups[g], partition - padding,
                [](const Piece& piece) { return piece.master; });
    const std::vector<std::string> names = groups[g].optimizer->states();
    if (!has_entry(*groups[g].optimizer)) continue;
    const Value& state = states.at(next++).second;
    for (size_t i = 0; i < names.size(); ++i)
      read_pieces(state.at(names[i]), groups[g], partition,
                  [&](const Piece& piece) { return piece.states[i]; });
    take_step(state, groups[g], groups[g].params[0].name, steps);
  }
}

void load_whole(const Value& torch, CheckpointedRun& run, StepsRead& steps) {
  const auto states = torch.at(keys::kState).entries();
  size_t i = 0;
  for (Group& group : run.optimizer.groups()) {
    const std::vector<std::string> names = group.optimizer->states();
    if (!has_entry(*group.optimizer)) continue;
    for (const Piece& piece : group.pieces) {
      const Value& state = states[i++].second;
      for (size_t s = 0; s < names.size(); ++s)
        read_elements(state.at(names[s]).as_tensor(), 0, piece.states[s], state.where());
      take_step(state, group, group.params[piece.param].name, steps);
    }
  }
}

// Loads the experts that this rank holds of a parameter, each from a file of its own.
void load_experts(const fs::path& folder, const ExpertSpread& spread, const ParamSpec& spec,
                  CheckpointedRun& run, RecordChecksums& checks) {
  const int64_t local = spec.tensor.size(0), numel = spec.tensor.numel() / local;
  for (int64_t e = 0; e < local; ++e) {
    const int64_t expert = expert_rank(run).ep * local + e;
    const fs::path file = folder / spread.file_of(spec.name, expert, run.grid.coord.tp);
    const Value weight =
        read_torch_file(existing(file), &checks).at(ExpertSpread::key_of(spec.name, expert));
    TORCH_CHECK(weight.as_tensor().numel() == numel, weight.where(), ": ",
                to_string(weight.as_tensor().shape), ", expected ", numel, " elements");
    read_elements(weight.as_tensor(), 0, spec.tensor.detach().view(-1).narrow(0, e * numel, numel),
                  weight.where());
  }
}

// Loads the stage's weights, whose shards depend on tp alone: from `module`, or, with a pipeline,
// from the layer files. With `buffers`, loads these and nothing else.
void load_weights(const fs::path& folder, const Value& metadata, bool buffers, CheckpointedRun& run,
                  RecordChecksums& checks) {
  std::map<int, Value> layers;
  const Value module = metadata.at(keys::kModule);
  const ExpertSpread spread = ExpertSpread::from(metadata);
  for (const ParamSpec& spec : run.stage.params()) {
    if (spec.frozen() || (buffers && !spec.buffer)) continue;
    if (spec.experts) {
      load_experts(folder, spread, spec, run, checks);
      continue;
    }
    Value& layer = layers[spec.layer];
    if (!module && !layer)
      layer = read_torch_file(existing(folder / layer_states_file(spec.layer, run.grid.coord.tp)),
                              &checks);
    const Value weight = module ? module.at(spec.name) : layer.at(spec.name_in_layer());
    TORCH_CHECK(weight.as_tensor().shape == spec.tensor.sizes().vec(), weight.where(), ": ",
                to_string(weight.as_tensor().shape), ", this run's slice of ", spec.name, " is ",
                to_string(spec.tensor.sizes().vec()), " (--tensor-model-parallel-size ",
                run.grid.topology.tp_size, ")");
    read_elements(weight.as_tensor(), 0, spec.tensor.detach().view(-1), weight.where());
  }
}

// The key under which stages 1 to 3, and stage 0 with masters, keep the state of torch's optimizer.
std::string_view torch_key(ZeroStage stage) {
  const bool wrapped = stage.partitions_optimizer() && !stage.partitions_parameters();
  return wrapped ? keys::kBaseOptimizerState : keys::kOptimizerStateDict;
}

// Compares some masters with the weights in the model-states file, if both are there. Throws
// DamagedFile if they are of different saves or ranks.
void check_masters(const Value& model_states, const Value& fp32, const CheckpointedRun& run,
                   RecordChecksums& checks) {
  const Value module = model_states.at(keys::kModule);
  if (!module || run.optimizer.stage().partitions_parameters()) return;
  const RecordChecksums::Peek peek(&checks);  // whoever wants the tensors reads them again
  for (size_t g = 0; g < run.optimizer.groups().size(); ++g) {
    const Group& group = run.optimizer.groups()[g];
    const auto largest = std::ranges::max_element(
        group.pieces, {}, [](const Piece& piece) { return piece.master.numel(); });
    if (largest == group.pieces.end()) continue;
    const ParamSpec& spec = group.params[largest->param];
    const Value weight = module.find(spec.name);
    if (!weight) continue;  // experts are in files of their own
    if (weight.as_tensor().numel() != spec.tensor.numel())
      weight.fail(std::to_string(spec.tensor.numel()) + " elements");
    const int64_t count = std::min(kMastersSample, largest->master.numel());
    expect_rounded(spec.name, fp32.at(g).as_tensor().slice(largest->partition_start, {count}),
                   weight.as_tensor().slice(largest->param_start, {count}));
  }
}

// Whether the optimizer's states have our layout: one per parameter or group, each with its step,
// and groups without gaps. load_whole_tensors handles the others, such as apex's FusedAdam and
// elastic checkpoints.
bool has_our_states(const Value& optimizer, const CheckpointedRun& run) {
  const ZeroStage stage = run.optimizer.stage();
  const bool by_parameter = !stage.partitions_optimizer() && run.dtype == torch::kFloat;
  std::vector<const Optimizer*> owners;  // of each entry
  for (const Group& group : run.optimizer.groups())
    if (has_entry(*group.optimizer))
      owners.insert(owners.end(), by_parameter ? group.pieces.size() : 1, group.optimizer);
  const Value torch = by_parameter ? optimizer : optimizer.at(torch_key(stage));
  const Value states = torch.is_dict() ? torch.find(keys::kState) : Value();
  if (!states.is_dict() || states.size() != owners.size()) return false;  // none before a step
  if (run.optimizer.optimizer().sees_matrices())  // DeepSpeed has a momentum of whole matrices
    for (const Value& group : torch.at(keys::kParamGroups).items())
      if (!group.contains(keys::kOptimizerName)) return false;
  const auto entries = states.entries();
  for (size_t i = 0; i < owners.size(); ++i) {
    const Value& state = entries[i].second;
    if (!state.is_dict() || (owners[i]->counts_steps() && !state.contains(kStepState)) ||
        state.size() != owners[i]->states().size() + state.contains(kStepState))
      return false;
    for (const std::string& name : owners[i]->states())
      if (!state.contains(name)) return false;
  }
  if (const Value paddings = optimizer.find(keys::kParamAlignmentPaddings)) {
    for (const Value& group : paddings.items())
      for (const int64_t padding : group.as_ints())
        if (padding != 0) return false;
  }
  return !round_robin_gradients(optimizer).as_bool();
}

}  // namespace

OwnFiles find_own_files(const fs::path& metadata_file, const Value& metadata,
                        const CheckpointedRun& run, RecordChecksums& checks) {
  const Value degrees = metadata.find(keys::kParallelDimensions);
  if (!degrees || !metadata.find(keys::kParamShapes)) return {};
  const ExpertSpread spread = ExpertSpread::from(metadata);
  const Topology& mesh = run.grid.topology;
  const Topology saved{.pp_size = static_cast<int>(degrees.at(keys::kPpDegree).as_int()),
                       .dp_size = static_cast<int>(metadata.at(keys::kDpWorldSize).as_int()),
                       .tp_size = static_cast<int>(degrees.at(keys::kTpDegree).as_int()),
                       .ep_size = spread.ep_size,
                       .whole_experts = spread.whole,
                       .chunks = mesh.chunks};  // the names of parameters tell
  if (saved != mesh) return {};
  const int dp = run.grid.coord.dp, mp = run.grid.model->rank();
  // By use_data_before_expert_parallelism, ranks hold other experts under the same names and
  // shapes.
  const bool has_experts = !spread.layers.empty();
  if (has_experts &&
      spread.rank_of(dp, mesh.dp_size, run.grid.coord.tp, mesh.tp_size).ep != expert_rank(run).ep)
    return {};
  // Only this rank's files are looked at: a node without a shared file system may have no others.
  const ZeroStage stage = run.optimizer.stage();
  const fs::path folder = metadata_file.parent_path();
  const fs::path file = folder / (stage.partitions_parameters() ? zero3_model_states_file(dp, mp)
                                                                : model_states_file(mp)),
                 partition = folder / optim_states_file(dp, mp, run.dtype == torch::kBFloat16);
  const fs::path experts = folder / expert_optimizer_file(run);
  const bool in_experts = !stage.partitions_optimizer() && has_experts;
  if (in_experts && !fs::exists(experts)) return {};
  const Value whole = in_experts ? read_torch_file(experts, &checks).at(keys::kOptimizer)
                                 : metadata.find(keys::kOptimizer);
  const bool alike =
      stage.partitions_optimizer()
          ? fs::exists(partition)
          : whole && whole.contains(keys::kFp32GroupsFlat) == (run.dtype != torch::kFloat);
  if (!alike || !fs::exists(file)) return {};
  OwnFiles own{.model_states = file == metadata_file ? metadata : read_torch_file(file, &checks)};
  if (!same_params(own.model_states, run)) return {};
  const Value in_file =
      stage.partitions_optimizer() ? read_torch_file(partition, &checks) : Value();
  check_same_save(std::array{metadata, own.model_states},
                  std::span(&in_file, stage.partitions_optimizer() ? 1 : 0));
  own.optimizer = in_file      ? in_file.at(keys::kOptimizerStateDict)
                  : in_experts ? whole
                               : own.model_states.at(keys::kOptimizer);
  return has_our_states(own.optimizer, run) ? own : OwnFiles();
}

Value load_own_files(const fs::path& folder, const OwnFiles& own, CheckpointedRun& run,
                     RecordChecksums& checks, StepsRead& steps) {
  const ZeroStage stage = run.optimizer.stage();
  for (const auto& frozen : run.optimizer.frozen()) {
    const Value part = own.model_states.at(keys::kFrozenParamFragments).at(frozen.spec.name);
    read_elements(part.as_tensor(), 0, frozen.part, part.where());
  }
  load_whole_states(run.optimizer, [&](const ParamSpec& spec, const std::string& state) {
    return own.model_states.at(keys::kWholeStates).at(spec.name).at(state).as_tensor();
  });
  if (!stage.partitions_optimizer() && run.dtype == torch::kFloat) {
    load_weights(folder, own.model_states, /*buffers=*/false, run, checks);
    load_whole(own.optimizer, run, steps);
    return own.optimizer;
  }
  load_weights(folder, own.model_states, /*buffers=*/true, run, checks);
  const std::string_view masters = stage.partitions_parameters()  ? keys::kFp32FlatGroups
                                   : stage.partitions_optimizer() ? keys::kFp32Groups
                                                                  : keys::kFp32GroupsFlat;
  load_partitions(own.optimizer.at(torch_key(stage)), own.optimizer.at(masters), run, steps);
  check_masters(own.model_states, own.optimizer.at(masters), run, checks);
  // BF16_Optimizer has no scaler. At stage 0 the optimizer's dict itself has a scaler's keys.
  return stage.partitions_optimizer() ? own.optimizer.find(keys::kLossScaler) : own.optimizer;
}

}  // namespace anymesh
