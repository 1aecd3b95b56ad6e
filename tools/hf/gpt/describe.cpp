#include <algorithm>
#include <map>

#include "framework/format/sharded.h"
#include "framework/util/errors.h"
#include "models/gpt/gpt_parameters.h"
#include "tools/hf/gpt/args.h"
#include "tools/hf/gpt/convert.h"
#include "tools/hf/gpt/family.h"
#include "tools/hf/gpt/lora.h"
#include "tools/hf/gpt/parameters.h"
#include "tools/hf/gpt/peft.h"
#include "tools/hf/tensors.h"

namespace anymesh {
namespace {

// Returns the model without its adapters.
HfModel model_of(const Checkpoint& checkpoint, const GptConfig& of_run) {
  const GptConfig gpt = with_lora(of_run);
  const Value args = args_of(checkpoint), type = args ? args.find(kModelType) : Value();
  try {
    return {.family = &family_of(gpt, type && type.is_string() ? type.as_string() : ""),
            .gpt = gpt};
  } catch (const DamagedFile& error) {
    throw DamagedFile(checkpoint.path.string() + ": " + error.what());
  }
}

// Throws unless the checkpoint has as many experts, before each of them gets a name.
void check_experts(const Checkpoint& checkpoint, const GptConfig& gpt) {
  const std::vector<GptParameter> parameters = gpt_parameters(gpt);
  const auto experts = std::ranges::find_if(parameters, &GptParameter::experts);
  if (experts == parameters.end()) return;
  const std::string& stored =
      checkpoint.contains(experts->name) ? experts->name : experts->other_name;
  const Shape shape = checkpoint.parameter(stored).shape;
  if (shape.empty() || shape[0] != gpt.num_experts)
    throw_error<DamagedFile>(checkpoint.path.string(), ": ", stored, " is ", to_string(shape),
                             ", expected one of ", gpt.num_experts, " experts");
}

// Returns the settings of the adapters that are to be exported; rank 0 if there are none.
Lora lora_of(const Checkpoint& checkpoint, const LoraExport& adapters) {
  const bool asked = adapters.merge || !adapters.base.empty();
  if (has_lora(checkpoint) != asked)
    throw UserError(checkpoint.path.string() +
                    (asked
                         ? ": has no LoRA adapters; expected some, by --merge or --adapter"
                         : ": has LoRA adapters; --merge adds them to the weights, --adapter BASE "
                           "exports them alone, for PEFT"));
  if (!asked) return {};
  return lora_of_args(run_args(checkpoint, "give a checkpoint of a run"));
}

// Lets the model have its adapters added to its weights.
void merge(const Checkpoint& checkpoint, const HfModel& model, const Lora& lora,
           HfDescription& description) {
  const std::vector<LoraPart> parts = lora_parts(model, lora);
  const auto changes = merging(checkpoint, parts, lora);
  for (HfParameter& parameter : description.parameters)
    if (const auto change = changes.find(parameter.name); change != changes.end())
      parameter.change = change->second;
  for (HfParameter& parameter : lora_parameters(parts, lora.rank)) {
    parameter.theirs.clear();
    description.parameters.push_back(std::move(parameter));
  }
}

// Describes the adapters alone. The checkpoint may have the model too, or not.
HfDescription described_adapter(const Checkpoint& checkpoint, const HfModel& model,
                                const Lora& lora, const std::string& base) {
  std::vector<HfParameter> parameters = lora_parameters(lora_parts(model, lora), lora.rank);
  for (const HfParameter& parameter : parameters)
    if (parameter.theirs.empty())
      throw DamagedFile(checkpoint.path.string() + ": has " + parameter.name + ", whose matrix a " +
                        model.family->name +
                        " has in one with others, so that PEFT has no such adapter; --merge adds "
                        "it to the weights");
  HfDescription description{.model = std::string("LoRA adapter for ") + model.family->name,
                            .config = peft_config_text(model, lora, base),
                            .parameters = std::move(parameters),
                            .files = {kPeftConfigFile, kPeftWeights}};
  for (HfParameter& parameter : hf_parameters(model)) {
    parameter.theirs.clear();
    if (checkpoint.contains(parameter.name) || checkpoint.contains(parameter.other_name))
      description.parameters.push_back(std::move(parameter));
  }
  return description;
}

HfDescription described(const Checkpoint& checkpoint, HfModel model, const TokenIds& ids,
                        const LoraExport& adapters) {
  const Lora lora = lora_of(checkpoint, adapters);
  if (static_cast<size_t>(model.gpt.num_layers) > checkpoint.names().size())
    throw_error<DamagedFile>(checkpoint.path.string(), ": has too few parameters for ",
                             model.gpt.num_layers, " layers");
  if (!adapters.base.empty()) return described_adapter(checkpoint, model, lora, adapters.base);
  check_experts(checkpoint, model.gpt);
  if (model.token_ids.empty()) model.token_ids = ids;
  HfDescription description{.model = model.family->name,
                            .config = hf_config_text(model),
                            .parameters = hf_parameters(model)};
  if (adapters.merge) merge(checkpoint, model, lora, description);
  if (!model.token_ids.contains("eos_token_id"))
    description.notes.push_back(
        "nothing says which token ends a text, so config.json leaves eos_token_id out, and "
        "transformers takes its own default; --tokenizer FOLDER has it");
  description.notes.insert(description.notes.end(), model.notes.begin(), model.notes.end());
  return description;
}

}  // namespace

GptConfig gpt_of_checkpoint(const Checkpoint& checkpoint) {
  const Value args = run_args(checkpoint, "give the config.json of such a model with --config");
  GptConfig gpt = gpt_of_args(args);
  const Value info = checkpoint.metadata.find(keys::kUniversalInfo);
  const Value rows = info ? info.find(keys::kOriginalVocabSize) : Value();
  gpt.vocab_size =
      static_cast<int>(rows ? rows.as_int() : args.at(keys::kPaddedVocabSize).as_int());
  return gpt;
}

HfDescription describe_gpt(const Checkpoint& checkpoint, const GptConfig& gpt,
                           const TokenIds& ids) {
  return described(checkpoint, model_of(checkpoint, gpt), ids, {});
}

HfDescription describe_gpt(const Checkpoint& checkpoint, const TokenIds& ids,
                           const std::filesystem::path& config, const LoraExport& adapters) {
  return described(
      checkpoint,
      config.empty() ? model_of(checkpoint, gpt_of_checkpoint(checkpoint)) : read_hf_config(config),
      ids, adapters);
}

SplitParameter split_gpt(const Checkpoint& checkpoint, bool megatron) {
  lora_of(checkpoint, {});  // or throws
  HfModel model = model_of(checkpoint, gpt_of_checkpoint(checkpoint));
  check_experts(checkpoint, model.gpt);
  if (megatron && (model.gpt.num_experts > 1 || model.gpt.apply_embedding_scaling))
    throw UserError(checkpoint.path.string() + ": is a " + model.family->name +
                    ", whose names in Megatron-Core are not known; --to dcp has transformers'");
  if (megatron) model.family = &kMegatronCore;
  std::map<std::string, HfParameter> parameters;
  for (HfParameter& parameter : hf_parameters(model)) {
    if (!checkpoint.contains(parameter.name) && !checkpoint.contains(parameter.other_name))
      throw DamagedFile(checkpoint.path.string() + ": has no " + parameter.name);
    parameters[parameter.other_name] = parameter;
    parameters[parameter.name] = std::move(parameter);
  }
  // The table of a tied model is its head too, which transformers lists and its optimizer does not.
  const std::string table = hf_parameters(model)[0].name,
                    head =
                        model.gpt.untie_embeddings_and_output_weights || megatron
                            ? ""
                            : tensors_of(*model.family)["lm_head"].get<std::string>() + ".weight";
  return [=, path = checkpoint.path](const std::string& name, std::string_view state,
                                     const TensorRecord& tensor) {
    const auto parameter = parameters.find(name);
    if (parameter == parameters.end())
      throw DamagedFile(path.string() + ": has " + name + ", which no " + model.family->name +
                        " has");
    if (tensor.shape != parameter->second.shape)
      throw Unreadable(path.string() + ": " + std::string(state) + " of " + name + " is " +
                       to_string(tensor.shape) + ", expected " +
                       to_string(parameter->second.shape));
    NamedTensors theirs;
    const auto bytes = theirs_of(parameter->second, as_float32(tensor).bytes);
    for (size_t i = 0; i < bytes.size(); ++i) {
      const auto& [their, shape] = parameter->second.theirs[i];
      theirs.emplace_back(their, TensorRecord{DType::kFloat32, shape, false, bytes[i]});
    }
    if (parameter->second.name == table && state == kFp32State && !head.empty())
      theirs.emplace_back(head, theirs[0].second);
    return theirs;
  };
}

}  // namespace anymesh
