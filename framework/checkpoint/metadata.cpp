#include "framework/checkpoint/metadata.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "framework/checkpoint/args.h"
#include "framework/checkpoint/expert_ranks.h"
#include "framework/comm/agreement.h"
#include "framework/format/layout.h"
#include "framework/format/torch_file.h"
#include "framework/storage.h"

namespace anymesh {
namespace {

// Encodes a parameter of stage `pp` as a line, for the ranks of other stages.
std::string line_of(int pp, const ParamSpec& spec) {
  const int64_t rows = spec.shape.empty() ? 1 : spec.tensor.size(0);
  return c10::str(pp, " ", spec.split_dim, " ", spec.sub_params, " ", spec.vocabulary, " ",
                  spec.experts, " ", spec.buffer, " ", spec.tied, " ", spec.duplicate, " ",
                  spec.frozen(), " ", rows, " ", spec.shape.size(), " ", c10::Join(" ", spec.shape),
                  " ", spec.name);
}

StageParam param_of(const std::string& line, torch::Dtype dtype) {
  std::istringstream in(line);
  StageParam param;
  ParamSpec& spec = param.spec;
  bool frozen = false;
  int64_t rows = 0;
  size_t dims = 0;
  in >> param.pp >> spec.split_dim >> spec.sub_params >> spec.vocabulary >> spec.experts >>
      spec.buffer >> spec.tied >> spec.duplicate >> frozen >> rows >> dims;
  spec.shape.resize(dims);
  for (int64_t& size : spec.shape) in >> size;
  std::getline(in >> std::ws, spec.name);
  spec.tensor = empty_without_storage({rows}, dtype).requires_grad_(!frozen);
  return param;
}

Value universal_info(const CheckpointedRun& run, const std::vector<StageParam>& params,
                     bool exclude_frozen) {
  std::set<ParameterCut> cuts;
  for (const auto& [pp, spec] : params) {
    // DeepSpeed's converter joins experts without patterns, takes none that tp cuts, and demands
    // that each pattern has a use.
    if (spec.experts && run.grid.topology.tp_size == 1) continue;
    if (spec.buffer || (exclude_frozen && spec.frozen())) continue;
    cuts.insert({pattern_of(spec.name), spec.split_dim, spec.sub_params, spec.vocabulary, spec.tied,
                 spec.shape});
  }
  UniversalInfo info = UniversalInfo::of(cuts);
  info.original_vocab_size = run.config.model.vocab_size;
  info.padded_vocab_size = run.config.model.padded_vocab_size;
  return info.to_value();
}

// Returns how the run spreads experts; without layers if the model has none. A run's metadata says
// the same to ExpertSpread.
ExpertSpread expert_spread(const CheckpointedRun& run, const std::vector<StageParam>& params) {
  ExpertSpread spread;
  spread.ep_size = run.grid.topology.ep_size;
  spread.whole = run.grid.topology.whole_experts;
  for (const auto& [pp, spec] : params) {
    if (!spec.experts) continue;
    const std::string prefix = ExpertSpread::prefix_of(spec.name);
    if (spread.layers.empty() || spread.layers.back().prefix != prefix)
      spread.layers.push_back({prefix, spec.shape[0]});
  }
  return spread;
}

// Returns one OrderedDict per parameter group, in the order of the flat buffers.
Value param_shapes(const ZeroOptimizer& optimizer) {
  std::vector<Value> groups;
  for (const auto& group : optimizer.groups()) {
    std::vector<Value::Entry> shapes;
    for (const ParamSpec& spec : group.params)
      shapes.emplace_back(spec.name, Value::size(spec.tensor.sizes().vec()));
    groups.push_back(Value::ordered_dict(std::move(shapes)));
  }
  return Value::list(std::move(groups));
}

// The state of Megatron's OptimizerParamScheduler, and of WSD what it leaves out.
Value scheduler_state(const CheckpointedRun& run, const TrainState& state) {
  const LrSchedule& s = run.config.schedule;
  const double wd = run.optimizer.config().weight_decay;
  Value scheduler =
      Value::dict({{"max_lr", s.max_lr},
                   {"lr_warmup_steps", s.warmup_samples},
                   {"lr_warmup_tokens", {}},
                   {"num_steps", state.scheduled_samples},
                   {"num_tokens", state.scheduled_samples * run.config.model.seq_length},
                   {"lr_decay_style", s.style},
                   {"lr_decay_steps", s.decay_samples},
                   {"lr_decay_tokens", {}},
                   {"min_lr", s.min_lr},
                   {"start_wd", wd},
                   {"end_wd", wd},
                   {"wd_incr_style", "constant"},
                   {"wd_incr_steps", s.decay_samples}});
  if (s.style == "WSD")
    scheduler.set(kWsdDecaySteps, s.wsd_decay_samples).set(kWsdDecayStyle, s.wsd_decay_style);
  return scheduler;
}

// Returns the schedule with the checkpoint's style. Throws for one that another program brought.
LrSchedule built_in(const Value& style, LrSchedule schedule) {
  TORCH_CHECK(std::ranges::find(kLrDecayStyles, style.as_string()) != std::end(kLrDecayStyles),
              style.where(), ": the checkpoint's learning-rate schedule is \"", style.as_string(),
              "\", which this program does not have; --override-opt_param-scheduler goes on with "
              "this run's, \"",
              schedule.style, "\"");
  schedule.style = style.as_string();
  schedule.factor = nullptr;
  return schedule;
}

Value verified_loss(const VerifiedLoss& verified) {
  return Value::dict({{"loss", verified.loss},
                      {"first_sample", verified.first_sample},
                      {"samples", verified.samples}});
}

Value data_order(const DataOrder& order) {
  Value facts = Value::dict();
  for (const auto& [flag, value] : order.facts) facts.set(flag, value);
  return Value::dict({{"facts", facts},
                      {"train", Value::list_of(order.train)},
                      {"valid", Value::list_of(order.valid)}});
}

Value megatron_args(const CheckpointedRun& run, const TrainState& state) {
  std::vector<Value::Entry> args;
  for (const Setting& setting : run.config.settings)
    args.emplace_back(setting.dest, value_of(setting.value));
  Value names = argparse_namespace(std::move(args));
  const Topology& mesh = run.grid.topology;
  names.set("world_size", mesh.world_size());
  names.set("data_parallel_size", mesh.dp_size);
  names.set("global_batch_size", run.config.global_batch_size);
  names.set("padded_vocab_size", run.config.model.padded_vocab_size);
  names.set("data_parallel_random_init", false);
  names.set(keys::kConsumedTrainSamples, state.consumed_train_samples);
  names.set(keys::kConsumedValidSamples, state.consumed_valid_samples);
  return names;
}

// Adds the keys with which Megatron-DeepSpeed's trainer extends the engine's state.
void add_megatrons(Value& states, const CheckpointedRun& run, const TrainState& state) {
  states.set(keys::kArgs, megatron_args(run, state));
  states.set(keys::kCheckpointVersion, 3.0);
  states.set(keys::kIteration, state.iteration);
  states.set(keys::kTokens, state.consumed_train_samples * run.config.model.seq_length);
}

}  // namespace

std::vector<StageParam> params_of_all_stages(const CheckpointedRun& run) {
  std::vector<std::string> mine;
  for (const ParamSpec& spec : run.stage.params()) mine.push_back(line_of(run.grid.coord.pp, spec));
  std::vector<StageParam> params;
  for (const std::string& line : gather_lines(*run.grid.pp, mine))
    params.push_back(param_of(line, run.dtype));
  return params;
}

Value deepspeed_config(const CheckpointedRun& run) {
  return Value::dict(
      {{"train_batch_size", run.config.global_batch_size},
       {"train_micro_batch_size_per_gpu", run.config.micro_batch_size},
       {"gradient_clipping", run.optimizer.config().clip_grad},
       {"zero_optimization", Value::dict({{"stage", run.optimizer.stage().number()}})},
       {"bf16", Value::dict({{"enabled", run.dtype == torch::kBFloat16}})},
       {"fp16", Value::dict({{"enabled", run.dtype == torch::kHalf}})}});
}

Value model_states(const CheckpointedRun& run, const TrainState& state,
                   const SaveOptions& options) {
  const Topology& mesh = run.grid.topology;
  const std::vector<StageParam> params = params_of_all_stages(run);
  std::vector<std::string> buffers;
  for (const ParamSpec& spec : run.stage.params())
    if (spec.buffer) buffers.push_back(spec.name);
  Value states = Value::dict(
      {{keys::kModule, {}},
       {keys::kBufferNames, Value::list_of(buffers)},
       {keys::kOptimizer, {}},
       {keys::kParamShapes, param_shapes(run.optimizer)},
       {keys::kFrozenParamShapes, {}},
       {keys::kSharedParams, Value::dict()},
       {keys::kFrozenParamFragments, {}},
       {keys::kLrScheduler, scheduler_state(run, state)},
       {keys::kDataSampler, {}},
       {keys::kRandomLtd, {}},
       {keys::kSkippedSteps, state.skipped_steps},
       {keys::kGlobalSteps, state.iteration},
       {keys::kGlobalSamples, state.consumed_train_samples},
       {keys::kDpWorldSize, mesh.dp_size},
       {keys::kMpWorldSize, mesh.pp_size * mesh.tp_size},
       {keys::kParallelDimensions,
        Value::dict({{keys::kPpDegree, mesh.pp_size}, {keys::kTpDegree, mesh.tp_size}})},
       {keys::kDsConfig, deepspeed_config(run)},
       {keys::kDsVersion, kWrittenLikeDeepSpeed},
       {keys::kUniversalInfo, universal_info(run, params, options.exclude_frozen_parameters)},
       {keys::kDropoutSeed, static_cast<int64_t>(state.dropout_seed)}});
  // A file that dp ranks share has the first one's place.
  if (const ExpertSpread spread = expert_spread(run, params); !spread.layers.empty()) {
    const bool zero3 = run.optimizer.stage().partitions_parameters();
    ExpertSpread::Rank rank = expert_rank(run);
    if (!zero3) rank.ep = rank.edp = 0;
    spread.record(states, rank, zero3);
  }
  if (!run.config.settings.empty()) add_megatrons(states, run, state);
  if (state.verified) states.set(keys::kVerifiedLoss, verified_loss(*state.verified));
  if (state.data) states.set(keys::kDataOrder, data_order(*state.data));
  return states;
}

Value client_state_of(const Value& metadata, const Value& own) {
  std::vector<Value::Entry> others;
  for (const auto& [key, value] : metadata.entries()) {
    const bool is_ours =
        key.is_string() && (own.contains(key.as_string()) || key == Value(keys::kVerifiedLoss) ||
                            key == Value(keys::kWeightsOnly));
    if (!is_ours) others.emplace_back(key, value);
  }
  return Value::dict(std::move(others));
}

LrSchedule schedule_of(const Value& metadata, LrSchedule schedule) {
  const Value saved = metadata.at(keys::kLrScheduler);
  if (!saved) return schedule;
  const auto read = [&](const char* key, double& field) {
    if (const Value value = saved.find(key)) field = value.as_double();
  };
  read("max_lr", schedule.max_lr);
  read("min_lr", schedule.min_lr);
  read("lr_warmup_steps", schedule.warmup_samples);
  read("lr_decay_steps", schedule.decay_samples);
  if (const Value style = saved.find("lr_decay_style");
      style && style.as_string() != schedule.style)
    schedule = built_in(style, std::move(schedule));
  read(kWsdDecaySteps, schedule.wsd_decay_samples);
  if (const Value style = saved.find(kWsdDecayStyle)) schedule.wsd_decay_style = style.as_string();
  return schedule;
}

TrainState train_state_of(const Value& metadata) {
  TrainState state;
  const Value iteration = metadata.find(keys::kIteration), args = args_of(metadata);
  state.iteration = iteration ? iteration.as_int() : metadata.at(keys::kGlobalSteps).as_int();
  const Value train = args.find(keys::kConsumedTrainSamples);
  state.consumed_train_samples =
      train ? train.as_int() : metadata.at(keys::kGlobalSamples).as_int();
  state.consumed_valid_samples = args.find(keys::kConsumedValidSamples).value_or(0).as_int();
  const Value scheduler = metadata.at(keys::kLrScheduler).value_or(Value::dict());
  state.scheduled_samples =
      scheduler.find("num_steps").value_or(state.consumed_train_samples).as_int();
  state.skipped_steps = metadata.find(keys::kSkippedSteps).value_or(0).as_int();
  if (const Value verified = metadata.find(keys::kVerifiedLoss)) {
    state.verified = {.loss = verified.at("loss").as_double(),
                      .first_sample = verified.at("first_sample").as_int(),
                      .samples = verified.at("samples").as_int()};
  }
  if (const Value order = metadata.find(keys::kDataOrder)) {
    state.data = {.train = order.at("train").as_ints(), .valid = order.at("valid").as_ints()};
    for (const auto& [flag, value] : order.at("facts").entries())
      state.data->facts.emplace_back(flag.as_string(), value.as_string());
  }
  const Value seed = metadata.find(keys::kDropoutSeed).value_or(args.find("seed"));
  state.dropout_seed = static_cast<uint64_t>(seed.value_or(0).as_int());
  return state;
}

}  // namespace anymesh
