#include <algorithm>
#include <chrono>
#include <set>

#include "framework/format/folder.h"
#include "framework/format/io.h"
#include "framework/format/layout.h"
#include "framework/format/sharded.h"
#include "framework/format/torch_file.h"
#include "framework/format/whole.h"
#include "framework/util/errors.h"
#include "framework/util/stopwatch.h"
#include "tools/hf/gpt/args.h"
#include "tools/hf/gpt/convert.h"
#include "tools/hf/gpt/family.h"
#include "tools/hf/gpt/parameters.h"
#include "tools/hf/gpt/weights.h"
#include "tools/hf/tensors.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using Cut = GptParameter::Cut;

// Returns whether it is a table that older versions of transformers saved.
bool is_buffer(const std::string& name, const Shape& shape, const HfModel& model) {
  return std::ranges::any_of(model.family->buffers, [&](const Family::Buffer& buffer) {
    if (!name.ends_with(buffer.end)) return false;
    if (buffer.dims == 0) return numel(shape) == 1;
    if (buffer.dims == 1) return shape == Shape{model.gpt.rotary_width() / 2};
    return shape.size() == buffer.dims;
  });
}

BytesPtr take_theirs(const CheckpointReader& weights, const HfTensor& tensor, const Family& family,
                     std::set<std::string>& left) {
  return take(weights, tensor.name, bare_name(tensor.name, family), tensor.shape, left,
              std::string(" by its ") + kHfConfigFile);
}

// Returns whether a tied model has a head of its own in the file. Transformers then unties it, and
// so do we. A copy of the table is the shared head anyway.
bool has_own_head(const CheckpointReader& weights, const HfModel& model) {
  if (model.gpt.untie_embeddings_and_output_weights || !weights.contains(head_name(model)))
    return false;
  const HfTensor table = hf_parameters(model)[0].theirs[0];
  const auto read = [&](const std::string& name) {
    std::set<std::string> left;
    return TensorRecord{DType::kFloat32, table.shape, false,
                        take_theirs(weights, {name, table.shape}, *model.family, left)};
  };
  return compare_tensors(read(table.name), read(head_name(model))).count > 0;
}

// Makes our parameters from their tensors. Throws for a tensor that the model does not have.
std::vector<BytesPtr> read_ours(const CheckpointReader& weights, const HfModel& model,
                                const std::vector<GptParameter>& parameters) {
  std::set<std::string> left(weights.names().begin(), weights.names().end());
  std::vector<BytesPtr> ours;
  for (const GptParameter& parameter : parameters) {
    std::vector<BytesPtr> theirs;
    for (const HfTensor& tensor : parameter.theirs)
      theirs.push_back(take_theirs(weights, tensor, *model.family, left));
    ours.push_back(ours_of(parameter, std::move(theirs)));
  }
  if (!model.gpt.untie_embeddings_and_output_weights)
    left.erase(head_name(model));  // has_own_head()
  for (const std::string& name : left)
    if (!is_buffer(name, weights.parameter(name).shape, model))
      throw DamagedFile(weights.path.string() + ": has " + name + ", which no " +
                        model.family->name + " of its " + kHfConfigFile + " has");
  return ours;
}

// Makes the info as framework/checkpoint/metadata.cpp does from a run's parameters.
UniversalInfo info_of(const std::vector<GptParameter>& parameters, const HfModel& model) {
  const auto patterns = [&](const auto& chosen) {
    std::set<std::string> set;
    for (const GptParameter& parameter : parameters)
      if (chosen(parameter)) set.insert(pattern_of(parameter.name));
    return std::vector<std::string>(set.begin(), set.end());
  };
  const auto of_cut = [&](Cut cut) {
    return patterns([cut](const GptParameter& parameter) { return parameter.cut == cut; });
  };
  UniversalInfo info;
  info.original_vocab_size = info.padded_vocab_size = model.gpt.vocab_size;
  info.vocabulary = of_cut(Cut::kVocabulary);
  info.pipeline_replicated = patterns([](const GptParameter& parameter) {
    return parameter.cut == Cut::kVocabulary && parameter.name.starts_with(kTiedModules);
  });
  info.tp_replicated = of_cut(Cut::kWhole);
  info.row_parallel = of_cut(Cut::kColumns);
  std::set<std::string> thirds;
  for (const GptParameter& parameter : parameters)
    if (parameter.cut == Cut::kThird && thirds.insert(pattern_of(parameter.name)).second)
      info.sub_params.push_back(
          UniversalInfo::whole_cut(pattern_of(parameter.name), parameter.shape, 2));
  info.two_sub_params = patterns([](const GptParameter& parameter) { return parameter.halves; });
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

// Makes the model states of a run before its first step, as far as an import knows them.
Value metadata_of(const std::vector<GptParameter>& parameters, const HfModel& model,
                  const UniversalInfo& info) {
  std::vector<Value::Entry> shapes;
  for (const GptParameter& parameter : parameters)
    shapes.emplace_back(parameter.name, Value::size(parameter.shape));
  Value args = args_of_gpt(model.gpt);
  args.set(keys::kPaddedVocabSize, model.gpt.vocab_size);
  args.set(kModelType, model.family->model_type);
  for (const auto& [name, ids] : model.token_ids) args.set(name, Value::list_of(ids));
  Value states = Value::dict(
      {{keys::kModule, {}},
       {keys::kBufferNames, Value::list()},
       {keys::kOptimizer, {}},
       {keys::kParamShapes, Value::list({Value::ordered_dict(std::move(shapes))})},
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
       {keys::kIteration, 0},
       {keys::kWeightsOnly, true}});
  if (const ExpertSpread spread = spread_of(model.gpt); !spread.layers.empty())
    spread.record(states, {}, /*zero3=*/false);
  return states;
}

// Makes the files of a universal folder. Their tensors are read as they are written.
std::vector<StreamedFile> files_of(const fs::path& folder, const HfModel& model,
                                   const std::vector<GptParameter>& parameters,
                                   const std::vector<BytesPtr>& ours) {
  const UniversalInfo info = info_of(parameters, model);
  MergeRules rules(info);
  const ExpertSpread spread = spread_of(model.gpt);
  std::vector<StreamedFile> files;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const std::string& name = parameters[i].name;
    const ExpertSpread::Layer* experts = spread.layer_of(name);
    std::vector<Value::Entry> entries =
        experts ? expert_keys(experts->experts) : merge_keys(rules.classify(name));
    entries.emplace_back(keys::kParam, TensorRecord{DType::kFloat32, parameters[i].shape,
                                                    /*requires_grad=*/true, ours[i]});
    files.push_back(streamed_torch_file(folder / kZeroFolder / name / state_file(kFp32State),
                                        Value::dict(std::move(entries))));
  }
  files.push_back(
      streamed_torch_file(folder / model_states_file(0), metadata_of(parameters, model, info)));
  return files;
}

// Returns the files that `to` lacks or has with other content.
std::vector<std::string> differing(const std::vector<std::string>& names, const fs::path& from,
                                   const fs::path& to) {
  std::vector<std::string> others;
  for (const std::string& name : names) {
    const uint64_t size = fs::file_size(from / name);
    if (!fs::is_regular_file(to / name) || fs::file_size(to / name) != size ||
        read_text(to / name, size) != read_text(from / name, size))
      others.push_back(name);
  }
  return others;
}

}  // namespace

HfImport import_hf(const fs::path& folder, const fs::path& save, const ProgressCallback& progress,
                   bool overwrite) {
  const auto start = std::chrono::steady_clock::now();
  if (!fs::is_directory(folder))
    throw DamagedFile(folder.string() + ": no such folder" + list_parent(folder));
  refuse_adapter(folder);
  HfImport report{.model = read_hf_config(folder / kHfConfigFile),
                  .output = fs::absolute(save).lexically_normal() /
                            (tag_folder(0) + std::string(kUniversalSuffix))};
  HfModel& model = report.model;
  report.tokenizer = tokenizer_files(folder);
  const std::vector<std::string> tokenizer = differing(report.tokenizer, folder, save);
  const auto check_tokenizer = [&](const FolderRecord& record) {
    if (!overwrite) record.expect_ours(tokenizer, ". Give another folder, or --overwrite");
  };
  OutputFolder out(report.output, "the output", kUniversal);
  check_tokenizer(FolderRecord(save));
  const SourceFiles sources(folder);
  auto [weights, notes] = open_hf_weights(folder, model);
  report.notes = std::move(notes);
  if (has_own_head(weights, model)) {
    model.gpt.untie_embeddings_and_output_weights = true;
    report.notes.push_back(std::string(kHfConfigFile) + " ties the head to the embeddings, but " +
                           head_name(model) + " is another table: imported as untied");
  }
  report.notes.insert(report.notes.end(), model.notes.begin(), model.notes.end());
  const std::vector<GptParameter> parameters = hf_parameters(model);
  const std::vector<BytesPtr> ours = read_ours(weights, model, parameters);
  const std::vector<StreamedFile> files = files_of(out.folder(), model, parameters, ours);
  FolderRecord record(save, "the output folder");
  check_tokenizer(record);
  RecordChecksums none;  // safetensors have no checksums
  report.bytes = out.stream(files, write_threads(), none, progress).bytes;
  sources.expect_unchanged();
  for (const std::string& name : tokenizer) record.copy_in(folder / name, name);
  record.write();
  out.publish(/*iteration=*/0);
  report.parameters = static_cast<int64_t>(parameters.size());
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace anymesh
