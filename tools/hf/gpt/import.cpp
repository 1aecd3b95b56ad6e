#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include "framework/format/folder.h"
#include "framework/format/io.h"
#include "framework/format/layout.h"
#include "framework/format/sharded.h"
#include "framework/format/torch_file.h"
#include "framework/format/whole.h"
#include "framework/util/errors.h"
#include "framework/util/printable.h"
#include "framework/util/shell_word.h"
#include "framework/util/stopwatch.h"
#include "models/gpt/gpt_parameters.h"
#include "tools/hf/gpt/args.h"
#include "tools/hf/gpt/convert.h"
#include "tools/hf/gpt/family.h"
#include "tools/hf/gpt/lora.h"
#include "tools/hf/gpt/parameters.h"
#include "tools/hf/gpt/peft.h"
#include "tools/hf/gpt/wrappers.h"
#include "tools/hf/tensors.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using NameSet = std::set<std::string>;

constexpr const char* kMegatronTable = "embedding.word_embeddings.weight";

[[noreturn]] void fail_as_adapter(const fs::path& path) {
  throw DamagedFile(path.string() +
                    ": is of an adapter of PEFT, not of a model. Give its base model too: "
                    "hf_convert import BASE SAVE --adapter " +
                    shell_word(path.parent_path()));
}

void check_count(const fs::path& folder, size_t tensors, const GptConfig& gpt) {
  const auto require = [&](size_t least, const std::string& parts) {
    if (least > tensors)
      throw DamagedFile(folder.string() + ": " + std::to_string(tensors) +
                        " tensors, which are too few for the " + parts + " that its " +
                        kHfConfigFile + " has");
  };
  require(static_cast<size_t>(gpt.num_layers), std::to_string(gpt.num_layers) + " layers");
  size_t expert_layers = 0;
  for (int i = 0; i < gpt.num_layers; ++i) expert_layers += gpt.has_experts(i);
  require(
      expert_layers * static_cast<size_t>(gpt.num_experts),
      std::to_string(gpt.num_experts) + " experts of " + std::to_string(expert_layers) + " layers");
}

// Gives the weights the names that the model has. Returns a note, or "" if they had them.
std::string unwrap(const fs::path& folder, StoredWeights& weights, const NameSet& known) {
  const auto is_known = [&](const std::string& name) { return known.contains(name); };
  std::string note;
  std::map<std::string, Value> tensors;
  for (const auto& [stored, tensor] : weights.tensors) {
    const std::string name = unwrapped(stored, is_known);
    if (!tensors.emplace(name, tensor).second)
      throw DamagedFile(folder.string() + ": has " + printable(name) + " twice, once as " +
                        printable(stored) + ", with a wrapper's prefix");
    if (note.empty() && name != stored)
      note = "names of tensors had what a trainer's wrapper adds: " + printable(stored) +
             " is taken as " + printable(name) + ", and others likewise";
  }
  weights.tensors = std::move(tensors);
  std::map<std::string, fs::path> absent;
  for (const auto& [stored, file] : weights.absent) absent[unwrapped(stored, is_known)] = file;
  weights.absent = std::move(absent);
  return note;
}

// Returns the name of the output layer's weight.
std::string head_name(const HfModel& model) {
  return tensors_of(*model.family)["lm_head"].get<std::string>() + ".weight";
}

// Returns what names of the bare model's files are without.
std::string base_of(const HfModel& model) { return tensors_of(*model.family)["base"]; }

std::string bare_name(const std::string& name, const std::string& base) {
  return name.starts_with(base) ? name.substr(base.size()) : name;
}

// Throws a DamagedFile if the folder has an adapter of PEFT, with the command that imports it.
void refuse_adapter(const fs::path& folder) {
  if (const fs::path config = folder / kPeftConfigFile; fs::exists(config)) fail_as_adapter(config);
}

// The weights of a Hugging Face folder, under the names that transformers' model has. The
// additions of a trainer's wrappers are taken off, with a note:
//
//   module._orig_mod.model.layers.0._checkpoint_wrapped_module.mlp   model.layers.0.mlp
//
// Leaves out names of the index that no file has and the model does not need, as of a tied head.
struct HfWeights {
  Checkpoint checkpoint;
  std::vector<std::string> notes;  // for the user, a line each
};

// Throws a DamagedFile for a folder that has other weights, too few of them, or an adapter's.
HfWeights open_hf_weights(const fs::path& folder, const HfModel& model) {
  if (checkpoint_kind(resolve_tag(folder)) != Checkpoint::Kind::kWeights)
    throw DamagedFile(folder.string() + ": expected a folder of Hugging Face, found " +
                      open_checkpoint(folder, /*threads=*/1).description);
  StoredWeights weights = read_weights(folder);
  check_count(folder, weights.tensors.size() + weights.absent.size(), model.gpt);
  const std::string base = base_of(model);
  NameSet needed;
  for (const HfParameter& parameter : hf_parameters(model))
    for (const HfTensor& tensor : parameter.theirs)
      needed.insert({tensor.name, bare_name(tensor.name, base)});
  NameSet known = needed;
  known.insert(head_name(model));
  std::vector<std::string> notes;
  if (!weights.inside.empty())
    notes.push_back(folder.string() + ": its weights are inside a trainer's file, under '" +
                    weights.inside + "'; the rest of it is left out");
  if (const std::string note = unwrap(folder, weights, known); !note.empty()) notes.push_back(note);
  for (const auto& [name, tensor] : weights.tensors)
    if (name.find(".lora_") != std::string::npos) fail_as_adapter(weights_entry(folder));
  std::erase_if(weights.absent, [&](const auto& item) { return !needed.contains(item.first); });
  return {checkpoint_of(folder, weights), notes};
}

// Returns whether it is a table that older versions of transformers saved.
bool is_buffer(const std::string& name, const Shape& shape, const HfModel& model) {
  return std::ranges::any_of(model.family->buffers, [&](const Family::Buffer& buffer) {
    if (!buffer.end || !name.ends_with(buffer.end)) return false;
    if (buffer.dims == 0) return numel(shape) == 1;
    if (buffer.dims == 1) return shape == Shape{model.gpt.rotary_width() / 2};
    return shape.size() == buffer.dims;
  });
}

// Whether a table has all rows of a smaller one.
bool has_rows_of(const Shape& table, const Shape& shape) {
  return table.size() == 2 && shape.size() == 2 && table[0] >= shape[0] && table[1] == shape[1];
}

// Whether it is a table of Megatron-Core, which has rows of padding behind those of the vocabulary.
bool may_be_padded(const std::string& name) {
  return name == std::string(kMegatronTable) || name == "output_layer.weight";
}

BytesPtr take_theirs(const Checkpoint& weights, const HfTensor& tensor, const std::string& base,
                     NameSet& left) {
  const SavedParameter saved =
      weights.contains(tensor.name) ? weights.parameter(tensor.name) : SavedParameter();
  if (may_be_padded(tensor.name) && has_rows_of(saved.shape, tensor.shape)) {
    left.erase(tensor.name);
    return as_float32(saved.weight().slice(0, tensor.shape)).bytes;
  }
  return take(weights, tensor.name, bare_name(tensor.name, base), tensor.shape, left,
              std::string(" by its ") + kHfConfigFile);
}

// Returns whether a tied model has a head of its own in the file. Transformers then unties it, and
// so do we. A copy of the table is the shared head anyway.
bool has_own_head(const Checkpoint& weights, const HfModel& model) {
  if (model.gpt.untie_embeddings_and_output_weights || !weights.contains(head_name(model)))
    return false;
  const HfTensor table = hf_parameters(model)[0].theirs[0];
  const auto read = [&](const std::string& name) {
    NameSet left;
    return TensorRecord{DType::kFloat32, table.shape, false,
                        take_theirs(weights, {name, table.shape}, base_of(model), left)};
  };
  return compare_tensors(read(table.name), read(head_name(model))).count > 0;
}

// A parameter as it is written: its weight, and the optimizer's states if there are any.
struct OurParameter {
  std::string name;
  Shape shape;
  std::map<std::string, TensorRecord, std::less<>> states;
  Value step = {};
  std::string theirs = {};  // the first of the tensors that it was made from
};

OurParameter our_parameter(const HfParameter& parameter, BytesPtr weight) {
  const TensorRecord record{DType::kFloat32, parameter.shape, /*requires_grad=*/true,
                            std::move(weight)};
  return {parameter.name, parameter.shape, {{std::string(kFp32State), record}}};
}

// Adds the optimizer's states, which are cut and joined as the weights are.
void add_states(OurParameter& our, const HfParameter& parameter, const Checkpoint& weights,
                const std::string& base) {
  std::map<std::string, std::vector<BytesPtr>> states;
  size_t tensors = 0;
  for (const HfTensor& tensor : parameter.theirs) {
    const std::string name =
        weights.contains(tensor.name) ? tensor.name : bare_name(tensor.name, base);
    const SavedParameter saved = weights.parameter(name);
    if (tensors++ > 0 && saved.step != our.step)
      throw Unreadable(weights.path.string() + ": " + name + " is at step " + saved.step.found() +
                       ", other parts of " + our.name + " at " + our.step.found());
    our.step = saved.step;
    for (const auto& [state, held] : saved.states) {
      if (state == kFp32State) continue;
      const bool cut = may_be_padded(name) && has_rows_of(held.shape, tensor.shape);
      if (held.shape != tensor.shape && !cut)
        throw Unreadable(weights.path.string() + ": " + state + " of " + name + " has the shape " +
                         to_string(held.shape) + ", and only states of each element are imported");
      states[state].push_back(as_float32(cut ? held.slice(0, tensor.shape) : held).bytes);
    }
  }
  for (auto& [state, parts] : states) {
    if (parts.size() != tensors)
      throw Unreadable(weights.path.string() + ": some parts of " + our.name + " have " + state +
                       ", and others do not");
    our.states[state] = {DType::kFloat32, our.shape, false, ours_of(parameter, std::move(parts))};
  }
}

// Makes our parameters from their tensors. Throws for a tensor that the model does not have.
std::vector<OurParameter> read_ours(const Checkpoint& weights, const HfModel& model) {
  const std::string base = base_of(model);
  NameSet left(weights.names().begin(), weights.names().end());
  std::vector<OurParameter> ours;
  for (const HfParameter& parameter : hf_parameters(model)) {
    std::vector<BytesPtr> theirs;
    for (const HfTensor& tensor : parameter.theirs)
      theirs.push_back(take_theirs(weights, tensor, base, left));
    ours.push_back(our_parameter(parameter, ours_of(parameter, std::move(theirs))));
    const std::string& theirs_first = parameter.theirs[0].name;
    ours.back().theirs =
        weights.contains(theirs_first) ? theirs_first : bare_name(theirs_first, base);
    add_states(ours.back(), parameter, weights, base);
  }
  if (!model.gpt.untie_embeddings_and_output_weights)
    left.erase(head_name(model));  // has_own_head()
  for (const std::string& name : left)
    if (!is_buffer(name, weights.parameter(name).shape, model))
      throw DamagedFile(weights.path.string() + ": has " + name + ", which no " +
                        model.family->name + " of its " + kHfConfigFile + " has");
  return ours;
}

// Adds an adapter's parameters to those of its base model.
void read_adapter(const PeftAdapter& adapter, std::vector<OurParameter>& ours) {
  for (const HfParameter& parameter : adapter.parameters) {
    NameSet left;
    const HfTensor& theirs = parameter.theirs[0];
    OurParameter our =
        our_parameter(parameter, take(adapter.weights, theirs.name, "", theirs.shape, left,
                                      std::string(" by its ") + kPeftConfigFile));
    if (adapter.has_states()) {
      SavedParameter saved = adapter.weights.parameter(theirs.name);
      our.states.merge(saved.states);
      our.step = saved.step;
    }
    ours.push_back(std::move(our));
  }
}

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

// The run that goes on from an import.
struct PriorRun {
  const Checkpoint* checkpoint = nullptr;  // with its metadata; null: it begins
  const UncutModel* model = nullptr;       // with the optimizer's groups, by their names

  int64_t iteration() const {
    return checkpoint ? checkpoint->metadata.at(keys::kGlobalSteps).as_int() : 0;
  }
  Value optimizer_state() const {
    if (!model) return checkpoint->optimizer_state;
    Value groups = Value::list();
    for (Value settings : model->settings)
      groups.push_back(settings.set(keys::kParams, Value::list({int64_t(groups.size())})));
    return Value::dict({{keys::kParamGroups, groups},
                        {keys::kZeroStage, zero_stage_enum(1)},
                        {keys::kDsVersion, kWrittenLikeDeepSpeed}});
  }
};

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
  args.set(kModelType, model.family->model_type);
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

// Makes the files of a universal folder. Their tensors are read as they are written.
std::vector<StreamedFile> files_of(const fs::path& folder, const HfModel& model,
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
        streamed_torch_file(folder / kZeroFolder / kOptimizerStateFile, prior.optimizer_state()));
  files.push_back(streamed_torch_file(folder / model_states_file(0),
                                      metadata_of(ours, model, info, adapter, prior)));
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
                   bool overwrite, const fs::path& adapter_folder,
                   const fs::path& checkpoint_folder) {
  const auto start = std::chrono::steady_clock::now();
  if (!fs::is_directory(folder))
    throw DamagedFile(folder.string() + ": no such folder" + list_parent(folder));
  refuse_adapter(folder);
  HfImport report{.model = read_hf_config(folder / kHfConfigFile)};
  HfModel& model = report.model;
  const bool trained = !checkpoint_folder.empty();
  const SourceFiles sources(trained ? resolve_tag(checkpoint_folder) : folder);
  RecordChecksums checks;  // safetensors have no checksums
  HfWeights opened;
  std::optional<UncutModel> optimizer;
  if (trained) {
    OpenedUncut uncut =
        open_uncut(resolve_tag(checkpoint_folder, "", &opened.notes), write_threads(), checks);
    opened.checkpoint = std::move(uncut.checkpoint);
    optimizer = std::move(uncut.model);
  } else {
    opened = open_hf_weights(folder, model);
  }
  const Checkpoint& weights = opened.checkpoint;
  std::optional<PeftAdapter> adapter;
  if (!adapter_folder.empty()) adapter = open_peft(adapter_folder, model);
  PriorRun prior;
  if (adapter && adapter->has_states()) prior.checkpoint = &adapter->weights;
  if (optimizer) prior = {&weights, &*optimizer};
  report.resumes = prior.checkpoint != nullptr;
  report.iteration = prior.iteration();
  report.output = fs::absolute(save).lexically_normal() /
                  (tag_folder(report.iteration) + std::string(kUniversalSuffix));
  report.tokenizer = tokenizer_files(folder);
  const std::vector<std::string> tokenizer = differing(report.tokenizer, folder, save);
  const auto check_tokenizer = [&](const FolderRecord& record) {
    if (!overwrite) record.expect_ours(tokenizer, ". Give another folder, or --overwrite");
  };
  OutputFolder out(report.output, "the output", kUniversal);
  check_tokenizer(FolderRecord(save));
  report.notes = std::move(opened.notes);
  HfModel stored = model;  // with the names that the weights have
  if (trained && weights.contains(kMegatronTable)) stored.family = &kMegatronCore;
  if (has_own_head(weights, stored)) {
    model.gpt.untie_embeddings_and_output_weights = true;
    report.notes.push_back(std::string(kHfConfigFile) + " ties the head to the embeddings, but " +
                           head_name(stored) + " is another table: imported as untied");
  }
  report.notes.insert(report.notes.end(), model.notes.begin(), model.notes.end());
  if (trained && !prior.checkpoint)
    report.notes.push_back(weights.path.string() + ": has no optimizer's state; weights alone");
  if (prior.checkpoint && !prior.checkpoint->metadata.find(keys::kGlobalSamples))
    report.notes.push_back(prior.checkpoint->path.string() +
                           ": does not tell how many samples the run has consumed; data begins at "
                           "the first");
  stored.gpt = model.gpt;
  std::vector<OurParameter> ours = read_ours(weights, stored);
  if (adapter) {
    read_adapter(*adapter, ours);
    report.lora = adapter->lora;
    report.notes.insert(report.notes.end(), adapter->notes.begin(), adapter->notes.end());
  }
  const std::vector<StreamedFile> files =
      files_of(out.folder(), model, ours, adapter ? &*adapter : nullptr, prior);
  FolderRecord record(save, "the output folder");
  check_tokenizer(record);
  report.bytes = out.stream(files, write_threads(), checks, progress).bytes;
  sources.expect_unchanged();
  if (adapter) adapter->sources.expect_unchanged();
  for (const std::string& name : tokenizer) record.copy_in(folder / name, name);
  record.write();
  out.publish(report.iteration);
  report.parameters = std::ssize(ours);
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace anymesh
