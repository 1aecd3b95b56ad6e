#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace anymesh {

// The file names and dictionary keys of DeepSpeed's checkpoint format. They are spelt nowhere else.
//
//   <save>/latest                                    the newest tag, as text
//   <save>/latest_universal                          the newest universal folder, as text
//   <save>/zero_to_fp32.py                           exports weights, for DeepSpeed's users
//   <save>/global_step4/
//     mp_rank_01_model_states.pt                     metadata, and weights without a pipeline
//     layer_02-model_01-model_states.pt              weights of a pipeline layer, tp rank 1
//     bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt optimizer partition of dp rank 0
//     zero_pp_rank_0_mp_rank_01_model_states.pt      metadata under ZeRO 3
//     layer_0_expert_3_mp_rank_01_model_states.pt    weights of an expert of the first mixture
//     expp_rank_1_mp_rank_01_optim_states.pt         ZeRO 0's optimizer of ep rank 1
//   <save>/global_step4_universal/
//     zero/<parameter>/fp32.pt                       one whole tensor
//
// mp_rank = pp_rank * tp_size + tp_rank. "pp" in a file name means parameter partition, the dp
// rank.
inline constexpr std::string_view kLatestFile = "latest";
inline constexpr std::string_view kLatestUniversalFile = "latest_universal";
inline constexpr std::string_view kZeroToFp32File = "zero_to_fp32.py";
inline constexpr std::string_view kWeightsFile = "pytorch_model.bin";  // a whole model
inline constexpr std::string_view kManifestFile = "manifest.json";     // ours: a tag's files
inline constexpr std::string_view kJournalFile = "building.json";  // the files a folder will have
inline constexpr std::string_view kRecordFile = ".anymesh.json";   // the files that our tools made
inline constexpr std::string_view kDcpMetadata = ".metadata";  // of torch.distributed.checkpoint
inline constexpr const char* kIndexSuffix = ".index.json";     // index of sharded weights
inline constexpr std::string_view kZeroFolder = "zero";
inline constexpr std::string_view kOptimizerStateFile = "optimizer_state.pt";
inline constexpr std::string_view kUniversalSuffix = "_universal";

std::string tag_folder(int64_t step);  // global_step100
// Returns the step of a tag name that ends in `suffix`, such as global_step100_universal.
std::optional<int64_t> step_of_tag(std::string_view tag, std::string_view suffix = "");
// Returns the folders in `folder` that have such names; none if `folder` does not exist.
using TagsByStep = std::multimap<int64_t, std::string, std::greater<>>;  // newest first
TagsByStep tags_by_step(const std::filesystem::path& folder, std::string_view suffix = "");

// Returns the tag in `latest` or `latest_universal`, without trailing white space (an editor may
// leave some).
std::string read_tag(const std::filesystem::path& pointer_file);
// Returns whether ROOT/TAG lies below ROOT for every ROOT. True for "global_step4" and for several
// parts, as in Lightning's "epoch=1-step=2.ckpt/checkpoint". False for absolute paths and for paths
// with "." or "..".
bool is_tag_name(std::string_view tag);
// Returns the folder ROOT/TAG. Throws if `root` has no such folder. `source` names the tag's origin
// in the message: a pointer file, --tag.
std::filesystem::path folder_of_tag(const std::filesystem::path& root, const std::string& tag,
                                    const std::string& source);

std::string model_states_file(int mp_rank);             // mp_rank_01_model_states.pt
std::string layer_states_file(int layer, int tp_rank);  // layer_02-model_01-model_states.pt
std::string optim_states_file(int dp_rank, int mp_rank, bool bf16);
std::string zero3_model_states_file(int dp_rank, int mp_rank);
std::string expert_states_file(int layer, int64_t expert, int tp_rank);
std::string expert_optim_states_file(int ep_rank, int mp_rank);
std::string state_file(std::string_view state);  // fp32 -> fp32.pt

// The parsed name of a file in a tag folder. Numbers that the name lacks are -1.
// parse_checkpoint_file_name() returns nullopt for other files.
struct CheckpointFileName {
  enum class Kind { kModelStates, kZero3ModelStates, kLayer, kOptimStates, kExpert, kExpertOptim };
  Kind kind = Kind::kModelStates;
  int dp_rank = -1;
  int mp_rank = -1;
  int layer = -1;
  int tp_rank = -1;  // layer files only; 0 for a name without "model_TT"
  int expert = -1;   // of the mixture `layer`, which the oldest names lack
  int ep_rank = -1;
  bool bf16 = false;

  bool is_model_states() const {
    return kind == Kind::kModelStates || kind == Kind::kZero3ModelStates;
  }
};
std::optional<CheckpointFileName> parse_checkpoint_file_name(std::string_view name);

// The states of a parameter in a universal folder.
inline constexpr std::string_view kFp32State = "fp32";
inline constexpr std::string_view kExpAvgState = "exp_avg";
inline constexpr std::string_view kExpAvgSqState = "exp_avg_sq";
inline constexpr std::string_view kMomentumState = "momentum_buffer";  // Muon's and SGD's
inline constexpr std::string_view kStepState = "step";

// The DeepSpeed version that our files follow. DeepSpeed's loaders require one.
inline constexpr const char* kWrittenLikeDeepSpeed = "0.19.8";

// If two pipeline stages hold a layer, its parameters are named tied_modules.<key>.<name in the
// layer>.
inline constexpr std::string_view kTiedModules = "tied_modules.";

namespace keys {

// Model-states file.
inline constexpr std::string_view kModule = "module";
inline constexpr std::string_view kBufferNames = "buffer_names";
inline constexpr std::string_view kOptimizer = "optimizer";
inline constexpr std::string_view kParamShapes = "param_shapes";
inline constexpr std::string_view kFrozenParamShapes = "frozen_param_shapes";
inline constexpr std::string_view kSharedParams = "shared_params";
inline constexpr std::string_view kFrozenParamFragments = "frozen_param_fragments";
inline constexpr std::string_view kLrScheduler = "lr_scheduler";
inline constexpr std::string_view kDataSampler = "data_sampler";
inline constexpr std::string_view kRandomLtd = "random_ltd";
inline constexpr std::string_view kSkippedSteps = "skipped_steps";
inline constexpr std::string_view kGlobalSteps = "global_steps";
inline constexpr std::string_view kGlobalSamples = "global_samples";
inline constexpr std::string_view kDpWorldSize = "dp_world_size";
inline constexpr std::string_view kMpWorldSize = "mp_world_size";
inline constexpr std::string_view kNumExperts = "num_experts";  // per layer of a mixture of experts
inline constexpr std::string_view kAutoEpLayers = "ds_autoep_layers";  // its entries:
inline constexpr std::string_view kMoeLayerId = "moe_layer_id";
inline constexpr std::string_view kEpSize = "ep_size";
inline constexpr std::string_view kExpertKeyPrefix = "expert_key_prefix";
inline constexpr std::string_view kFolding = "folding";  // AutoEP beside AutoTP
inline constexpr std::string_view kEtpSize = "etp_size";
inline constexpr std::string_view kFoldingTpSize = "tp_size";
inline constexpr std::string_view kParallelDimensions = "checkpoint_parallel_dimensions";
inline constexpr std::string_view kPpDegree = "pp_degree";
inline constexpr std::string_view kTpDegree = "tp_degree";
inline constexpr std::string_view kDsConfig = "ds_config";
inline constexpr std::string_view kDsVersion = "ds_version";
inline constexpr std::string_view kUniversalInfo = "universal_checkpoint_info";
inline constexpr std::string_view kZeroOptimization = "zero_optimization";  // in ds_config
inline constexpr std::string_view kRoundRobinGradients = "round_robin_gradients";
inline constexpr std::string_view kDataBeforeExperts = "use_data_before_expert_parallelism";
inline constexpr std::string_view kParameterAlignment = "parameter_alignment";
inline constexpr std::string_view kSubGroupSize = "sub_group_size";
inline constexpr std::string_view kStage = "stage";
inline constexpr std::string_view kBf16 = "bf16";  // in ds_config, as the following
inline constexpr std::string_view kFp16 = "fp16";
inline constexpr std::string_view kEnabled = "enabled";
inline constexpr std::string_view kDataTypes = "data_types";
inline constexpr std::string_view kGradAccumDtype = "grad_accum_dtype";
inline constexpr std::string_view kGradientClipping = "gradient_clipping";
inline constexpr std::string_view kOffloadOptimizer = "offload_optimizer";
inline constexpr std::string_view kDevice = "device";  // in offload_optimizer

// Megatron's additions to the model-states file.
inline constexpr std::string_view kArgs = "args";
inline constexpr std::string_view kCheckpointVersion = "checkpoint_version";
inline constexpr std::string_view kIteration = "iteration";
inline constexpr std::string_view kTokens = "tokens";
inline constexpr std::string_view kConsumedTrainSamples = "consumed_train_samples";
inline constexpr std::string_view kConsumedValidSamples = "consumed_valid_samples";

// Ours: the seed of the dropout masks, the validation loss right before the save (--verify-resume),
// the order of the data (DataOrder of framework/run.h), the mark of a checkpoint without optimizer
// state, and of experts that tp does not cut; states of whole parameters, {parameter: {state:
// tensor}}, and the mark of such a state's file in a universal folder.
inline constexpr std::string_view kDropoutSeed = "anymesh_dropout_seed";
inline constexpr std::string_view kVerifiedLoss = "anymesh_verified_loss";
inline constexpr std::string_view kDataOrder = "anymesh_data_order";
inline constexpr std::string_view kWeightsOnly = "anymesh_weights_only";
inline constexpr std::string_view kWholeExperts = "anymesh_whole_experts";
inline constexpr std::string_view kWholeStates = "anymesh_whole_states";
inline constexpr std::string_view kWholeState = "anymesh_whole_state";

// Optimizer file and its optimizer_state_dict.
inline constexpr std::string_view kOptimizerStateDict = "optimizer_state_dict";
inline constexpr std::string_view kLossScaler = "loss_scaler";
inline constexpr std::string_view kDynamicLossScale = "dynamic_loss_scale";
inline constexpr std::string_view kOverflow = "overflow";
inline constexpr std::string_view kClipGrad = "clip_grad";
inline constexpr std::string_view kBaseOptimizerState = "base_optimizer_state";
inline constexpr std::string_view kBaseOptimizerStateStep =
    "base_optimizer_state_step";  // elastic checkpoints
inline constexpr std::string_view kFp32Groups = "single_partition_of_fp32_groups";
inline constexpr std::string_view kZeroStage = "zero_stage";
inline constexpr std::string_view kGroupPaddings = "group_paddings";
inline constexpr std::string_view kParamAlignmentPaddings = "param_alignment_paddings";
inline constexpr std::string_view kPartitionCount = "partition_count";
inline constexpr std::string_view kParamSliceMappings = "param_slice_mappings";
inline constexpr std::string_view kState = "state";
inline constexpr std::string_view kParamGroups = "param_groups";
inline constexpr std::string_view kParams = "params";
inline constexpr std::string_view kParamNames = "param_names";           // torch's, in param_groups
inline constexpr std::string_view kFp32FlatGroups = "fp32_flat_groups";  // ZeRO 3
inline constexpr std::string_view kFp32GroupsFlat = "fp32_groups_flat";  // ZeRO 0, half precision
inline constexpr std::string_view kFp32GroupsUnfused =
    "fp32_groups";  // ZeRO 0, half precision, torch's optimizer
inline constexpr std::string_view kWeightDecay = "weight_decay";  // in param_groups
inline constexpr std::string_view kUseMuon = "use_muon";          // in param_groups
inline constexpr std::string_view kGroupName = "name";            // in param_groups
inline constexpr std::string_view kOptimizerName = "optimizer";   // ours, in param_groups: "AdamW"
inline constexpr std::string_view kOptimizerVersion = "optimizer_version";  // ours, beside it
inline constexpr std::string_view kMoe = "moe";  // in param_groups: experts
inline constexpr std::string_view kZeroPartitionGroups = "ds_zero_partition_groups";
inline constexpr std::string_view kNumel = "numel";  // fragment_address
inline constexpr std::string_view kStart = "start";
inline constexpr std::string_view kCurScale = "cur_scale";  // loss scalers
inline constexpr std::string_view kDynamic = "dynamic";
inline constexpr std::string_view kCurIter = "cur_iter";
inline constexpr std::string_view kLastOverflowIter = "last_overflow_iter";
inline constexpr std::string_view kScaleFactor = "scale_factor";
inline constexpr std::string_view kScaleWindow = "scale_window";
inline constexpr std::string_view kMinScale = "min_scale";
inline constexpr std::string_view kDelayedShift = "delayed_shift";
inline constexpr std::string_view kCurHysteresis = "cur_hysteresis";
inline constexpr std::string_view kConsecutiveHysteresis = "consecutive_hysteresis";
inline constexpr std::string_view kRaiseErrorAtMinScale = "raise_error_at_min_scale";
inline constexpr std::string_view kDtype = "dtype";

// universal_checkpoint_info.
inline constexpr std::string_view kUniversalVersion = "universal_checkpoint_version";
inline constexpr std::string_view kOriginalVocabSize = "original_vocab_size";
inline constexpr std::string_view kPaddedVocabSize = "padded_vocab_size";
inline constexpr std::string_view kVocabularyPatterns = "vocabulary_parameter_patterns";
inline constexpr std::string_view kPipelineReplicatedPatterns =
    "pipeline_replicated_parameter_patterns";
inline constexpr std::string_view kTpReplicatedPatterns = "tp_replicated_parameter_patterns";
inline constexpr std::string_view kAveragePatterns = "parameter_to_average_patterns";
inline constexpr std::string_view kRowParallelPatterns = "parameter_with_row_parallelism_patterns";
inline constexpr std::string_view kTwoSubParamsPatterns = "parameter_with_2_sub_params_cat_dim_0";
inline constexpr std::string_view kSubParams = "parameter_with_sub_params";
inline constexpr std::string_view kSubParamShardWidths = "sub_param_shard_widths";
inline constexpr std::string_view kUnsupportedPatterns = "autotp_unsupported_parameter_patterns";
inline constexpr std::string_view kAffineMap = "affine_map";
inline constexpr std::string_view kAffineVersion = "version";
inline constexpr std::string_view kAffineParams = "params";
inline constexpr std::string_view kLogicalShape = "logical_shape";
inline constexpr std::string_view kRanks = "ranks";
inline constexpr std::string_view kShardShape = "shard_shape";
inline constexpr std::string_view kPieces = "pieces";
inline constexpr std::string_view kSource = "source";
inline constexpr std::string_view kDest = "dest";
inline constexpr std::string_view kLocations = "locations";
inline constexpr std::string_view kScale = "scale";
inline constexpr std::string_view kPatterns = "patterns";
inline constexpr std::string_view kShape = "shape";
inline constexpr std::string_view kPartitionDim = "partition_dim";

// A state file of a universal folder.
inline constexpr std::string_view kParam = "param";
inline constexpr std::string_view kCatDim = "cat_dim";
inline constexpr std::string_view kVocabTensor = "vocab_tensor";
inline constexpr std::string_view kParamNSubParams = "param_n_sub_params";
inline constexpr std::string_view kSubParamShape = "sub_param_shape";
inline constexpr std::string_view kIsExpertParam = "is_expert_param";
inline constexpr std::string_view kEpNumExperts = "ep_num_experts";

}  // namespace keys

}  // namespace anymesh
