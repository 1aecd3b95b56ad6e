#include <c10/util/StringUtil.h>

#include <map>

#include "framework/checkpoint/checkpoint.h"
#include "framework/checkpoint/format/file_io.h"
#include "framework/checkpoint/format/names.h"
#include "framework/checkpoint/format/shard_layout.h"
#include "framework/checkpoint/format/torch_file.h"
#include "framework/checkpoint/metadata.h"
#include "framework/checkpoint/tensor_io.h"
#include "framework/comm/agreement.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using Group = ZeroOptimizer::Group;
using Piece = ZeroOptimizer::Piece;

bool weights_only(const LoadOptions& options) { return options.finetune || !options.load_optim; }

fs::path existing(const fs::path& file) {
  if (fs::exists(file)) return file;
  TORCH_CHECK(fs::is_directory(file.parent_path()), file.parent_path().string(),
              ": no such folder (--load)");
  TORCH_CHECK(false, file.string(),
              " is missing. The folder holds: ", list_folder(file.parent_path()));
}

// The folder that the pointer file names.
fs::path tag_in(const fs::path& load_dir, const LoadOptions& options) {
  TORCH_CHECK(fs::is_directory(load_dir), "--load ", load_dir.string(),
              ": no such folder; nothing was loaded");
  const fs::path pointer = load_dir / (options.universal ? kLatestUniversalFile : kLatestFile);
  if (!fs::exists(pointer)) {
    const std::string hint =
        options.universal
            ? c10::str("Make one: ds_to_universal --input_folder ", load_dir.string(),
                       "/<tag> --output_folder ", load_dir.string(), "/<tag>", kUniversalSuffix)
        : fs::exists(load_dir / kLatestUniversalFile)
            ? "It has a universal checkpoint: add --universal-checkpoint"
            : "It is not a checkpoint folder";
    TORCH_CHECK(false, "--load ", load_dir.string(), ": no file '", pointer.filename().string(),
                "' there. It holds: ", list_folder(load_dir), ". ", hint, ".");
  }
  std::string tag = read_text(pointer);
  while (!tag.empty() && std::isspace(static_cast<unsigned char>(tag.back()))) tag.pop_back();
  TORCH_CHECK(
      !tag.empty() && tag.find('/') == std::string::npos && fs::is_directory(load_dir / tag),
      pointer.string(), " names '", tag,
      "', which is not a folder beside it. It holds: ", list_folder(load_dir));
  return load_dir / tag;
}

// Any rank's metadata says what the run was: they differ in parameter shapes and ZeRO 0's optimizer alone.
fs::path first_metadata_file(const fs::path& folder) {
  for (const std::string& name : {model_states_file(0), zero3_model_states_file(0, 0)}) {
    if (fs::exists(folder / name)) return folder / name;
  }
  return existing(folder / model_states_file(0));
}

// ---- universal folder

TensorRecord universal_record(const fs::path& file, const ParamSpec& spec) {
  const Value content = read_torch_file(existing(file));
  TensorRecord record =
      content.is_tensor() ? content.as_tensor() : content.at(keys::kParam).as_tensor();
  TORCH_CHECK(record.shape == spec.shape, file.string(), ": the checkpoint's ", spec.name, " is ",
              to_string(record.shape), ", this model's ", to_string(spec.shape),
              " (see the model's flags)");
  return record;
}

// This rank's piece of a whole tensor: the runs of the file that its slice's elements come from.
void read_piece(const fs::path& file, const ParamSpec& spec, const ProcessGrid& grid, int64_t start,
                torch::Tensor out) {
  const TensorRecord record = universal_record(file, spec);
  CutRule rule{.replicated = spec.split_dim < 0, .dim = std::max(spec.split_dim, 0)};
  if (spec.vocabulary) rule.padded = spec.tensor.size(0) * grid.topology.tp_size;
  const ShardLayout layout =
      ShardLayout::make(spec.shape, rule, grid.topology.tp_size, grid.coord.tp);
  out.zero_();  // vocabulary padding has no image
  layout.for_each_run(start, out.numel(), [&](int64_t full, int64_t shard, int64_t n) {
    read_elements(record, full, out.narrow(0, shard - start, n), file.string());
  });
}

void load_universal(const fs::path& folder, CheckpointedRun& run, const LoadOptions& options) {
  const fs::path zero = folder / kZeroFolder;
  for (Group& group : run.optimizer.groups()) {
    for (const Piece& piece : group.pieces) {
      const ParamSpec& spec = group.params[piece.param];
      const fs::path states = zero / spec.name;
      TORCH_CHECK(fs::is_directory(states), states.string(), ": the checkpoint has no parameter ",
                  spec.name, ". It has: ", list_folder(existing(zero)));
      const auto read = [&](std::string_view state, const torch::Tensor& out) {
        read_piece(states / state_file(state), spec, run.grid, piece.param_start, out);
      };
      read(kFp32State, piece.master);
      if (weights_only(options)) continue;
      read(kExpAvgState, piece.exp_avg);
      read(kExpAvgSqState, piece.exp_avg_sq);
      run.optimizer.steps = read_torch_file(existing(states / state_file(kStepState))).as_int();
    }
  }
}

// ---- ordinary tag folder, same mesh

// Stages whose files are alike.
enum class Family { Whole, Partitioned, Sharded };
Family family_of(int stage) {
  return stage == 0 ? Family::Whole : stage == 3 ? Family::Sharded : Family::Partitioned;
}

Family family_of(const fs::path& folder) {
  if (fs::exists(folder / zero3_model_states_file(0, 0))) return Family::Sharded;
  const bool partitioned = fs::exists(folder / optim_states_file(0, 0, true)) ||
                           fs::exists(folder / optim_states_file(0, 0, false));
  return partitioned ? Family::Partitioned : Family::Whole;
}

void check_same_mesh(const Value& metadata, const fs::path& folder, const CheckpointedRun& run) {
  const Topology& mesh = run.grid.topology;
  const Value degrees = metadata.at(keys::kParallelDimensions);
  const Topology saved{.pp_size = static_cast<int>(degrees.at(keys::kPpDegree).as_int()),
                       .dp_size = static_cast<int>(metadata.at(keys::kDpWorldSize).as_int()),
                       .tp_size = static_cast<int>(degrees.at(keys::kTpDegree).as_int())};
  const Family family = family_of(folder);
  const bool bf16 = family == Family::Whole
                        ? metadata.at(keys::kOptimizer).contains(keys::kFp32GroupsFlat)
                        : fs::exists(folder / optim_states_file(0, 0, true));
  TORCH_CHECK(
      saved == mesh && family == family_of(run.optimizer.options().stage) && bf16 == run.bf16,
      folder.string(), " was saved on ", describe(saved), ", this run is ", describe(mesh),
      " at --zero-stage ", run.optimizer.options().stage, run.bf16 ? " in bf16" : " in fp32",
      ". An ordinary checkpoint resumes on its own mesh, ZeRO stage and precision. Convert it:\n  "
      "ds_to_universal --input_folder ",
      folder.string(), " --output_folder ", folder.string(), kUniversalSuffix,
      "\nand add --universal-checkpoint.");
}

void check_same_params(const Value& metadata, const CheckpointedRun& run) {
  const Value groups = metadata.at(keys::kParamShapes);
  TORCH_CHECK(groups.size() == run.optimizer.groups().size(), groups.where(), ": ", groups.size(),
              " parameter groups, expected ", run.optimizer.groups().size());
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto& params = run.optimizer.groups()[g].params;
    const auto entries = groups.at(g).entries();
    TORCH_CHECK(entries.size() == params.size(), groups.at(g).where(), ": ", entries.size(),
                " parameters, expected ", params.size());
    for (size_t i = 0; i < params.size(); ++i) {
      TORCH_CHECK(entries[i].first == Value(params[i].name) &&
                      entries[i].second.as_shape() == params[i].tensor.sizes().vec(),
                  groups.at(g).where(), ": parameter ", i, " is ", entries[i].first.as_string(),
                  " ", to_string(entries[i].second.as_shape()), ", expected ", params[i].name, " ",
                  to_string(params[i].tensor.sizes().vec()));
    }
  }
}

// One 1-D record over a group's partition.
void read_pieces(const Value& value, const Group& group, torch::Tensor Piece::*member,
                 int64_t expected) {
  const TensorRecord record = value.as_tensor();
  TORCH_CHECK(record.numel() == expected, value.where(), ": ", record.numel(),
              " elements, expected ", expected);
  for (const Piece& piece : group.pieces)
    read_elements(record, piece.partition_start, piece.*member, value.where());
}

void load_partitions(const Value& adam, const Value& fp32, CheckpointedRun& run) {
  auto& groups = run.optimizer.groups();
  const Value states = adam.at(keys::kState);
  for (size_t g = 0; g < groups.size(); ++g) {
    const int64_t partition = groups[g].layout.partition_numel();
    const bool padded = run.optimizer.options().stage == 3;
    const int64_t real =
        padded ? partition
               : partition - groups[g].layout.flat().padding(run.optimizer.partitions().rank());
    const Value state = states.entries().at(g).second;
    read_pieces(fp32.at(g), groups[g], &Piece::master, real);
    read_pieces(state.at(kExpAvgState), groups[g], &Piece::exp_avg, partition);
    read_pieces(state.at(kExpAvgSqState), groups[g], &Piece::exp_avg_sq, partition);
    run.optimizer.steps = state.at(kStepState).as_int();
  }
}

void load_whole(const Value& adam, CheckpointedRun& run) {
  const auto states = adam.at(keys::kState).entries();
  size_t i = 0;
  for (Group& group : run.optimizer.groups()) {
    for (const Piece& piece : group.pieces) {
      TORCH_CHECK(i < states.size(), adam.where(), ": ", states.size(),
                  " optimizer states, expected more");
      const Value& state = states[i++].second;
      read_elements(state.at(kExpAvgState).as_tensor(), 0, piece.exp_avg, state.where());
      read_elements(state.at(kExpAvgSqState).as_tensor(), 0, piece.exp_avg_sq, state.where());
      run.optimizer.steps = state.at(kStepState).as_int();
    }
  }
}

// The stage's weights, which depend on tp alone.
void load_layers(const fs::path& folder, CheckpointedRun& run) {
  std::map<int, Value> layers;
  for (const ParamSpec& spec : run.stage.params()) {
    Value& layer = layers[spec.layer];
    if (!layer)
      layer = read_torch_file(existing(folder / layer_states_file(spec.layer, run.grid.coord.tp)));
    const Value weight = layer.at(spec.name_in_layer());
    TORCH_CHECK(weight.as_tensor().shape == spec.tensor.sizes().vec(), weight.where(), ": ",
                to_string(weight.as_tensor().shape), ", this run's slice of ", spec.name, " is ",
                to_string(spec.tensor.sizes().vec()), " (--tensor-model-parallel-size ",
                run.grid.topology.tp_size, ")");
    read_elements(weight.as_tensor(), 0, spec.tensor.detach().view(-1), weight.where());
  }
}

void load_ordinary(const fs::path& folder, CheckpointedRun& run, const LoadOptions& options) {
  if (weights_only(options)) {
    load_layers(folder, run);
    run.optimizer.masters_from_params();
    return;
  }
  const Coord& at = run.grid.coord;
  const int mp_rank = at.pp * run.grid.topology.tp_size + at.tp,
            stage = run.optimizer.options().stage;
  const Value metadata =
      read_torch_file(existing(folder / (stage == 3 ? zero3_model_states_file(at.dp, mp_rank)
                                                    : model_states_file(mp_rank))));
  check_same_params(metadata, run);
  if (stage == 0) {
    const Value optimizer = metadata.at(keys::kOptimizer);
    if (run.bf16) {
      load_partitions(optimizer.at(keys::kOptimizerStateDict), optimizer.at(keys::kFp32GroupsFlat),
                      run);
    } else {
      load_layers(folder, run);
      load_whole(optimizer, run);
    }
    return;
  }
  const Value optimizer =
      read_torch_file(existing(folder / optim_states_file(at.dp, mp_rank, run.bf16)))
          .at(keys::kOptimizerStateDict);
  if (stage == 3) {
    load_partitions(optimizer.at(keys::kOptimizerStateDict), optimizer.at(keys::kFp32FlatGroups),
                    run);
  } else {
    load_partitions(optimizer.at(keys::kBaseOptimizerState), optimizer.at(keys::kFp32Groups), run);
  }
}

// ----

void restore_state(const Value& metadata, const LoadOptions& options, TrainState& state) {
  if (options.finetune) return;
  TrainState saved = train_state_of(metadata);
  if (!options.load_rng) saved.dropout_seed = state.dropout_seed;
  if (!options.load_lr_state) saved.scheduled_samples = 0;
  state = saved;
}

// An ordinary checkpoint that is newer than the universal one we were told to load is most likely a
// mistake.
std::vector<std::string> warnings(const fs::path& load_dir, const fs::path& folder,
                                  const Value& metadata, const LoadOptions& options) {
  if (!options.universal || !fs::exists(load_dir / kLatestFile)) return {};
  const std::string newest = read_text(load_dir / kLatestFile);
  const int64_t here = train_state_of(metadata).iteration;
  const std::string prefix = tag_folder(0).substr(0, tag_folder(0).size() - 1);
  if (!newest.starts_with(prefix) || std::atoll(newest.c_str() + prefix.size()) <= here) return {};
  return {c10::str("WARNING: ", load_dir.string(), " holds a newer ordinary checkpoint, ", newest,
                   ", than the universal one, ", folder.filename().string(), " (iteration ", here,
                   "). Loading the universal one, as --universal-checkpoint says; ", "convert ",
                   newest, " first if you meant that.")};
}

}  // namespace

std::vector<std::string> load_checkpoint(const fs::path& load_dir, CheckpointedRun& run,
                                         const LoadOptions& options, TrainState& state) {
  c10::NoGradGuard no_grad;
  fs::path folder;
  Value metadata;
  all_or_none(*run.grid.world, [&] {
    folder = tag_in(load_dir, options);
    metadata = read_torch_file(first_metadata_file(folder));
    check_same_model(metadata, run);
    if (!options.finetune && options.load_lr_state) check_same_schedule(metadata, run.schedule);
    if (!options.universal && !weights_only(options)) check_same_mesh(metadata, folder, run);
  });
  all_or_none(*run.grid.world, [&] {
    if (options.universal) {
      load_universal(folder, run, options);
    } else {
      load_ordinary(folder, run, options);
    }
  });
  // A rank whose partition is all padding has read no step.
  torch::Tensor steps = torch::full({1}, run.optimizer.steps, torch::kLong);
  run.grid.world->all_reduce(steps, ReduceOp::Max);
  run.optimizer.steps = steps.item<int64_t>();
  run.optimizer.params_from_masters();
  restore_state(metadata, options, state);
  std::vector<std::string> lines = warnings(load_dir, folder, metadata, options);
  lines.push_back(c10::str(
      "loaded ", folder.string(), weights_only(options) ? " (weights only)" : "", ": iteration ",
      state.iteration, ", ", state.consumed_train_samples, " samples consumed"));
  return lines;
}

}  // namespace anymesh
