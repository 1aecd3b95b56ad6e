#include "framework/format/reshard/source.h"

#include "framework/format/reshard/uncut_model.h"
#include "framework/format/sharded/tensor_views.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// Throws a UserError that names a target which works.
[[noreturn]] void refuse_target(const CheckpointMesh& to, const std::string& why,
                                const std::string& instead) {
  throw UserError("--target: " + to_string(to) + ": " + why + "; " + instead);
}

// Throws for a target that DeepSpeed cannot train.
void check_target(const Value& model_state, const CheckpointMesh& from, const CheckpointMesh& to) {
  const bool pipeline = !model_state.find(keys::kModule),
             ours = !model_state.find(keys::kDropoutSeed).is_none();
  if (to.stage == 0 && to.dtype != DType::kFloat32 && !(from.stage == 0 && from.dtype == to.dtype))
    refuse_target(
        to,
        "at ZeRO 0, the class that DeepSpeed keeps a half-precision optimizer in depends on the "
        "next job's optimizer, which no file tells",
        "give zero=1, or dtype=fp32");
  if (pipeline && to.stage >= 2 && !ours)
    refuse_target(to, "DeepSpeed's pipelines train with ZeRO 0 and 1 alone", "give zero=1");
}

// Returns how the target spreads the experts of a checkpoint. Throws if it cannot.
ExpertSpread spread_experts(ExpertSpread experts, const CheckpointMesh& to) {
  if (experts.has_older())
    throw UserError(
        "this is one of DeepSpeed's older mixtures of experts (deepspeed_moe), which ds_reshard "
        "does not cut; ds_to_universal and zero_to_fp32 read it");
  if (experts.layers.empty() && to.ep_size > 1)
    refuse_target(to, "the model has no experts", "leave ep out");
  if (experts.layers.empty()) return experts;
  const std::string dp = "dp=" + std::to_string(to.ep_size);
  if (to.dp_size % to.ep_size != 0)
    refuse_target(to, "ep is cut out of dp, which must be a multiple of it", "give ep=1, or " + dp);
  for (const ExpertSpread::Layer& layer : experts.layers)
    if (layer.experts % to.ep_size != 0)
      refuse_target(to, "ep must divide the " + std::to_string(layer.experts) + " experts",
                    "give ep=1");
  if (experts.whole && to.tp_size > 1)
    refuse_target(to,
                  "tp does not cut these experts (--expert-tensor-parallel-size 1), and no other "
                  "job than pretrain_gpt has them so; it resumes them on any mesh as they are",
                  "give tp=1");
  if (to.stage == 0 && to.dtype != DType::kFloat32)
    refuse_target(to, "experts at ZeRO 0 are written in fp32 alone", "give zero=1, or dtype=fp32");
  experts.ep_size = to.ep_size;
  experts.whole = false;
  return experts;
}

// Whether the ranks must be made from uncut tensors: tp or pp changes, or a pipeline's layer files
// are to be made from masters.
bool needs_uncut_tensors(const ShardedCheckpoint& source, const CheckpointMesh& from,
                         const CheckpointMesh& to) {
  if (from.tp_size != to.tp_size || from.pp_size != to.pp_size || source.experts.whole) return true;
  const bool moves = (from.stage == 3) != (to.stage == 3),
             lacks_files = from.dtype != to.dtype && source.layer_files.empty();
  return (moves || lacks_files) && !source.parameters.empty() &&
         is_pipeline(source.model_states[0], source.parameters.begin()->first);
}

// Stages may share a parameter; the first of them saved the layer's file.
std::map<std::string, TensorRecord> masters_of(const std::vector<RankModel>& ranks, int tp_rank) {
  std::map<std::string, TensorRecord> masters;
  for (const RankModel& rank : ranks) {
    if (rank.tp_rank != tp_rank) continue;
    for (const RankModel::Group& group : rank.groups)
      for (const RankModel::Parameter& parameter : group.parameters)
        masters.emplace(parameter.name, parameter.states.find(kFp32State)->second);
  }
  return masters;
}

// Returns a pipeline's layer files, as name and contents, in the precision `to`. Their names, keys
// and order stay: those are of the model's code. Weights are rounded from the masters in `ranks`,
// which are of the source's tp and pp. Buffers stay as they are.
std::vector<std::pair<std::string, Value>> recast_layer_files(const ShardedCheckpoint& source,
                                                              const std::vector<RankModel>& ranks,
                                                              DType to) {
  const DType from = mesh_of(source).dtype;
  const std::set<std::string> buffers = buffer_names(source);
  std::vector<std::map<std::string, TensorRecord>> masters;  // by tp rank
  for (int tp = 0; tp < source.tp_size; ++tp) masters.push_back(masters_of(ranks, tp));
  std::vector<std::pair<std::string, Value>> files;
  for (const LayerFile& layer : source.layers) {
    const auto& own = masters[static_cast<size_t>(layer.tp_rank)];
    Value contents = layer.contents;
    for (const auto& [key, value] : layer.contents.entries()) {
      const std::string name = layer.prefix + key.as_string();
      if (!value.is_tensor() || value.as_tensor().dtype != from || buffers.contains(name)) continue;
      const auto master = own.find(name);
      contents.set(key.as_string(),
                   rounded(master == own.end() ? value.as_tensor() : master->second, to));
    }
    files.emplace_back(layer.path.filename(), contents);
  }
  return files;
}

// Counts the parameters of a checkpoint that is copied as it is. Throws unless they are complete.
void count_parameters(const ShardedCheckpoint& source, ReshardReport& report) {
  for (const auto& [name, shards] : source.parameters) {
    for (const ParameterShard& shard : shards) {
      check_covered(name, shard, std::string(kFp32State));
      ++report.parameters;
      report.elements += numel(shard.shape);
    }
  }
}

// Opens an ordinary checkpoint. Fills in report.from and report.to.
ReshardSource open_ordinary(const ReshardOptions& options, const fs::path& input,
                            RecordChecksums& checks, ReshardReport& report) {
  const auto ranks = std::make_shared<const ShardedCheckpoint>(
      open_sharded_checkpoint(input, options.threads, &checks, options.assume_module_order));
  const ShardedCheckpoint& source = *ranks;
  if (source.weights_only)
    throw UserError(input.string() + ": holds weights only, and no optimizer's state to cut");
  report.from = mesh_of(source);
  report.to = options.target.applied_to(report.from);
  check_target(source.model_states[0], report.from, report.to);
  const ExpertSpread experts = spread_experts(source.experts, report.to);
  if (report.to.stage == 0 && report.to.dtype != DType::kFloat32 && is_partitioned(source))
    refuse_target(report.to, "DeepSpeed cannot load the BF16_Optimizer that it saves at ZeRO 0",
                  "give zero=1, which takes the same steps");
  const bool uncut = needs_uncut_tensors(source, report.from, report.to);
  ReshardSource result{.mesh = report.from, .model_states = source.model_states};
  result.experts = experts;
  const bool recast = report.from.dtype != report.to.dtype;
  if (!uncut && !recast)
    for (const auto& [key, path] : source.layer_files) result.layer_files.push_back(path);
  if (report.from.stage == 0 && report.to.stage == 0 && !uncut && !recast &&
      experts.layers.empty()) {
    count_parameters(source, report);
    return result;
  }
  require_states(input, source.states_refused, "zero_to_fp32 exports the weights alone");
  if (source.groups.size() != source.model_states.size())
    throw Unreadable(input.string() + ": has no optimizer's state");
  result.optimizer_state = source.optimizer_state;
  check_hyperparameters(source.optimizer_state.at(keys::kParamGroups), input);
  note_numbers(source, /*universal=*/false, report.notes);
  result.ranks = uncut
                     ? remeshed(uncut_model(checkpoint_of(ranks), &source), report.to, report.notes)
                     : rank_models(source, report.to);
  if (!uncut && recast) result.layers = recast_layer_files(source, result.ranks, report.to.dtype);
  return result;
}

ReshardSource open_universal(const ReshardOptions& options, const fs::path& input,
                             RecordChecksums& checks, ReshardReport& report) {
  const UncutModel model = uncut_model(open_checkpoint(input, options.threads, &checks), nullptr);
  const Checkpoint& checkpoint = model.checkpoint;
  report.from = model.mesh;
  report.to = options.target.applied_to(report.from);
  check_target(checkpoint.metadata, report.from, report.to);
  const ExpertSpread experts =
      spread_experts(ExpertSpread::from(checkpoint.model_states), report.to);
  return {.mesh = model.mesh,
          .model_states = checkpoint.model_states,
          .optimizer_state = checkpoint.optimizer_state,
          .ranks = remeshed(model, report.to, report.notes),
          .layer_files = {},
          .layers = {},
          .experts = experts};
}

}  // namespace

ReshardSource open_source(const ReshardOptions& options, const fs::path& input,
                          RecordChecksums& checks, ReshardReport& report) {
  switch (checkpoint_kind(input)) {
    case Checkpoint::Kind::kOrdinary:
      return open_ordinary(options, input, checks, report);
    case Checkpoint::Kind::kUniversal:
      return open_universal(options, input, checks, report);
    case Checkpoint::Kind::kWeights:
      break;
  }
  throw UserError(input.string() + ": holds weights only, and no optimizer's state to cut");
}

}  // namespace anymesh
