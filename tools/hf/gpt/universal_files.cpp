#include "tools/hf/gpt/universal_files.h"

#include <set>

#include "framework/format/layout.h"
#include "framework/format/torch_file.h"
#include "models/gpt/gpt_parameters.h"
#include "tools/hf/gpt/args.h"
#include "tools/hf/gpt/family.h"
#include "tools/hf/gpt/lora.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

UniversalInfo info_of(const GptConfig& gpt) {
  std::set<ParameterCut> cuts;
  for (const GptParameter& p : gpt_parameters(gpt))
    cuts.insert({pattern_of(p.name), p.split_dim, p.sub_params, p.vocabulary, p.tied, p.shape});
  UniversalInfo info = UniversalInfo::of(cuts);
  info.original_vocab_size = info.padded_vocab_size = gpt.vocab_size;
  return info;
}

// Says which layers have experts, all on one rank.
ExpertSpread spread_of(const GptConfig& gpt) {
  ExpertSpread spread;
  for (int i = 0; i < gpt.num_layers; ++i)
    if (gpt.has_experts(i))
      spread.layers.push_back({std::to_string(i + 2) + ".mlp.experts", gpt.num_experts});
  return spread;
}

Value optimizer_state_of(const PriorRun& prior) {
  if (!prior.model) return prior.checkpoint->optimizer_state;
  Value groups = Value::list();
  for (Value settings : prior.model->settings)
    groups.push_back(settings.set(keys::kParams, Value::list({int64_t(groups.size())})));
  return Value::dict({{keys::kParamGroups, groups},
                      {keys::kZeroStage, zero_stage_enum(1)},
                      {keys::kDsVersion, kWrittenLikeDeepSpeed}});
}

// Returns the shapes of what is trained: beside adapters, nothing else. A list for each group.
Value shapes_of(const std::vector<OurParameter>& ours, const PeftAdapter* adapter,
                const PriorRun& prior) {
  std::vector<std::vector<Value::Entry>> shapes(prior.model ? prior.model->groups.size() : 1);
  std::map<std::string, size_t> groups;
  for (size_t g = 0; prior.model && g < prior.model->groups.size(); ++g)
    for (const std::string& name : prior.model->groups[g]) groups[name] = g;
  for (size_t i = adapter ? ours.size() - adapter->parameters.size() : 0; i < ours.size(); ++i) {
    const auto group = groups.find(ours[i].theirs);
    if (prior.model && group == groups.end()) continue;  // frozen
    shapes[prior.model ? group->second : 0].emplace_back(ours[i].name, Value::size(ours[i].shape));
  }
  Value lists = Value::list();
  for (auto& list : shapes) lists.push_back(Value::ordered_dict(std::move(list)));
  return lists;
}

// Makes the model states of a run before its first step, as far as an import knows them, or after
// the steps of an earlier run.
Value metadata_of(const std::vector<OurParameter>& ours, const HfModel& model,
                  const UniversalInfo& info, const PeftAdapter* adapter, const PriorRun& prior) {
  Value args = args_of_gpt(with_lora(model.gpt, adapter ? adapter->lora : Lora()));
  args.set(keys::kPaddedVocabSize, model.gpt.vocab_size);
  if (model.family) args.set(kModelType, model.family->model_type);
  for (const auto& [name, ids] : model.token_ids) args.set(name, Value::list_of(ids));
  Value states = Value::dict(
      {{keys::kModule, {}},
       {keys::kBufferNames, Value::list()},
       {keys::kOptimizer, {}},
       {keys::kParamShapes, shapes_of(ours, adapter, prior)},
       {keys::kLrScheduler, {}},
       {keys::kSkippedSteps, 0},
       {keys::kGlobalSteps, 0},
       {keys::kGlobalSamples, 0},
       {keys::kDpWorldSize, 1},
       {keys::kMpWorldSize, 1},
       {keys::kParallelDimensions, Value::dict({{keys::kPpDegree, 1}, {keys::kTpDegree, 1}})},
       {keys::kUniversalInfo, info.to_value()},
       {keys::kDropoutSeed, static_cast<int64_t>(RunConfig{}.seed)},
       {keys::kArgs, std::move(args)},
       {keys::kIteration, 0}});
  if (const ExpertSpread spread = spread_of(model.gpt); !spread.layers.empty())
    spread.record(states, {}, /*zero3=*/false);
  if (!prior.checkpoint) return states.set(keys::kWeightsOnly, true);
  const Value& run = prior.checkpoint->metadata;
  for (const auto key : {keys::kSkippedSteps, keys::kGlobalSteps, keys::kGlobalSamples,
                         keys::kDsConfig, keys::kDsVersion})
    if (const Value value = run.find(key)) states.set(key, value);
  return states.set(keys::kIteration, prior.iteration());
}

}  // namespace

int64_t PriorRun::iteration() const {
  return checkpoint ? checkpoint->metadata.at(keys::kGlobalSteps).as_int() : 0;
}

std::vector<StreamedFile> universal_files(const fs::path& folder, const HfModel& model,
                                          const std::vector<OurParameter>& ours,
                                          const PeftAdapter* adapter, const PriorRun& prior) {
  const UniversalInfo info = info_of(with_lora(model.gpt, adapter ? adapter->lora : Lora()));
  MergeRules rules(info);
  const ExpertSpread spread = spread_of(model.gpt);
  std::vector<StreamedFile> files;
  for (const OurParameter& parameter : ours) {
    const std::string& name = parameter.name;
    const ExpertSpread::Layer* experts = spread.layer_of(name);
    const auto add = [&](std::string_view state, const Value& content) {
      files.push_back(
          streamed_torch_file(folder / kZeroFolder / name / state_file(state), content));
    };
    const std::vector<Value::Entry> cut =
        experts ? expert_keys(experts->experts) : merge_keys(rules.classify(name));
    for (const auto& [state, tensor] : parameter.states)
      add(state, Value::dict(cut).set(keys::kParam, tensor));
    if (parameter.step) add(kStepState, parameter.step);
  }
  if (prior.checkpoint)
    files.push_back(
        streamed_torch_file(folder / kZeroFolder / kOptimizerStateFile, optimizer_state_of(prior)));
  files.push_back(streamed_torch_file(folder / model_states_file(0),
                                      metadata_of(ours, model, info, adapter, prior)));
  return files;
}

}  // namespace anymesh
