#include <algorithm>

#include "framework/util/errors.h"
#include "models/gpt/gpt_parameters.h"
#include "tools/hf/gpt/args.h"
#include "tools/hf/gpt/convert.h"
#include "tools/hf/gpt/family.h"
#include "tools/hf/gpt/parameters.h"

namespace anymesh {
namespace {

HfModel model_of(const Checkpoint& checkpoint, const GptConfig& gpt) {
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

HfDescription described(const Checkpoint& checkpoint, HfModel model, const TokenIds& ids) {
  if (static_cast<size_t>(model.gpt.num_layers) > checkpoint.names().size())
    throw_error<DamagedFile>(checkpoint.path.string(), ": has too few parameters for ",
                             model.gpt.num_layers, " layers");
  check_experts(checkpoint, model.gpt);
  if (model.token_ids.empty()) model.token_ids = ids;
  HfDescription description{.model = model.family->name,
                            .config = hf_config_text(model),
                            .parameters = hf_parameters(model)};
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
  return described(checkpoint, model_of(checkpoint, gpt), ids);
}

HfDescription describe_gpt(const Checkpoint& checkpoint, const TokenIds& ids,
                           const std::filesystem::path& config) {
  return described(
      checkpoint,
      config.empty() ? model_of(checkpoint, gpt_of_checkpoint(checkpoint)) : read_hf_config(config),
      ids);
}

}  // namespace anymesh
