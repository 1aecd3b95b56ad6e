#include "framework/format/reshard/source.h"

#include "framework/format/reshard/layer_files.h"
#include "framework/format/reshard/remesh.h"
#include "framework/format/whole/checkpoint_reader.h"
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

// Whether the ranks must be made from whole tensors: tp or pp changes, or a pipeline's layer files
// are to be made from masters.
bool needs_whole_tensors(const ShardedCheckpoint& source, const CheckpointMesh& from,
                         const CheckpointMesh& to) {
  if (from.tp_size != to.tp_size || from.pp_size != to.pp_size || source.experts.whole) return true;
  const bool moves = (from.stage == 3) != (to.stage == 3),
             lacks_files = from.dtype != to.dtype && source.layer_files.empty();
  return (moves || lacks_files) && !source.parameters.empty() &&
         is_pipeline(source.model_states[0], source.parameters.begin()->first);
}

// Opens an ordinary checkpoint. Fills in report.from and report.to.
ReshardSource open_ordinary(const ReshardOptions& options, const fs::path& input,
                            RecordChecksums& checks, ReshardReport& report) {
  ShardedCheckpoint source =
      open_sharded_checkpoint(input, options.threads, &checks, options.assume_module_order);
  if (source.weights_only)
    throw UserError(input.string() + ": holds weights only, and no optimizer's state to cut");
  report.from = mesh_of(source);
  report.to = options.target.applied_to(report.from);
  check_target(source.model_states[0], report.from, report.to);
  const ExpertSpread experts = spread_experts(source.experts, report.to);
  if (report.to.stage == 0 && report.to.dtype != DType::kFloat32 && is_partitioned(source))
    refuse_target(report.to, "DeepSpeed cannot load the BF16_Optimizer that it saves at ZeRO 0",
                  "give zero=1, which takes the same steps");
  const bool whole = needs_whole_tensors(source, report.from, report.to);
  ReshardSource result{.mesh = report.from, .model_states = source.model_states};
  result.experts = experts;
  const bool recast = report.from.dtype != report.to.dtype;
  if (!whole && !recast)
    for (const auto& [key, path] : source.layer_files) result.layer_files.push_back(path);
  if (report.from.stage == 0 && report.to.stage == 0 && !whole && !recast && experts.layers.empty())
    return result;
  require_states(input, source.states_refused, "zero_to_fp32 exports the weights alone");
  if (source.groups.size() != source.model_states.size())
    throw Unreadable(input.string() + ": has no optimizer's state");
  result.optimizer_state = source.optimizer_state;
  check_hyperparameters(source.optimizer_state.at(keys::kParamGroups), input);
  note_numbers(source, /*universal=*/false, report.notes);
  result.ranks = whole ? remeshed(open_whole_model(input, options.threads, checks, &source),
                                  report.to, report.notes)
                       : rank_models(source, report.to);
  if (!whole && recast)
    result.layers =
        recast_layer_files(source, result.ranks, report.to.dtype, options.threads, checks);
  return result;
}

ReshardSource open_universal(const ReshardOptions& options, const fs::path& input,
                             RecordChecksums& checks, ReshardReport& report) {
  const WholeModel model = open_whole_model(input, options.threads, checks, nullptr);
  report.from = model.mesh;
  report.to = options.target.applied_to(report.from);
  check_target(model.model_states[0], report.from, report.to);
  const ExpertSpread experts = spread_experts(ExpertSpread::from(model.model_states), report.to);
  return {model.mesh,
          model.model_states,
          model.optimizer_state,
          remeshed(model, report.to, report.notes),
          {},
          {},
          experts};
}

}  // namespace

ReshardSource open_source(const ReshardOptions& options, const fs::path& input,
                          RecordChecksums& checks, ReshardReport& report) {
  switch (checkpoint_kind(input)) {
    case CheckpointReader::Kind::kOrdinary:
      return open_ordinary(options, input, checks, report);
    case CheckpointReader::Kind::kUniversal:
      return open_universal(options, input, checks, report);
    case CheckpointReader::Kind::kWeights:
      break;
  }
  throw UserError(input.string() + ": holds weights only, and no optimizer's state to cut");
}

}  // namespace anymesh
