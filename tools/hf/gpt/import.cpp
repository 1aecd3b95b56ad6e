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
#include "tools/hf/gpt/convert.h"
#include "tools/hf/gpt/family.h"
#include "tools/hf/gpt/lora.h"
#include "tools/hf/gpt/parameters.h"
#include "tools/hf/gpt/peft.h"
#include "tools/hf/gpt/universal_files.h"
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
                     const std::string& source, NameSet& left) {
  const SavedParameter saved =
      weights.contains(tensor.name) ? weights.parameter(tensor.name) : SavedParameter();
  if (may_be_padded(tensor.name) && has_rows_of(saved.shape, tensor.shape)) {
    left.erase(tensor.name);
    return as_float32(saved.weight().slice(0, tensor.shape)).bytes;
  }
  return take(weights, tensor.name, bare_name(tensor.name, base), tensor.shape, left,
              " by " + source);
}

// Returns whether a tied model has a head of its own in the file. Transformers then unties it, and
// so do we. A copy of the table is the shared head anyway.
bool has_own_head(const Checkpoint& weights, const HfModel& model) {
  if (model.gpt.untie_embeddings_and_output_weights || !weights.contains(head_name(model)))
    return false;
  const HfTensor table = hf_parameters(model)[0].theirs[0];
  const auto read = [&](const std::string& name) {
    NameSet left;
    return TensorRecord{
        DType::kFloat32, table.shape, false,
        take_theirs(weights, {name, table.shape}, base_of(model), model.source, left)};
  };
  return compare_tensors(read(table.name), read(head_name(model))).count > 0;
}

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
      theirs.push_back(take_theirs(weights, tensor, base, model.source, left));
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
                        model.family->name + " of " + model.source + " has");
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

// Imports to `save`. The weights are those of the checkpoint, or of the folder. A model by flags
// has no folder, and no tokenizer.
HfImport import_model(HfModel of_source, const fs::path& folder, const fs::path& save,
                      const ProgressCallback& progress, bool overwrite,
                      const fs::path& adapter_folder, const fs::path& checkpoint_folder,
                      bool weights_only = false) {
  const auto start = std::chrono::steady_clock::now();
  HfImport report{.model = std::move(of_source)};
  HfModel& model = report.model;
  const bool trained = !checkpoint_folder.empty(), by_flags = folder.empty();
  const SourceFiles sources(trained ? resolve_tag(checkpoint_folder) : folder);
  RecordChecksums checks;  // safetensors have no checksums
  HfWeights opened;
  std::optional<UncutModel> optimizer;
  if (trained && weights_only) {
    opened.checkpoint = open_checkpoint(checkpoint_folder, write_threads(), &checks);
  } else if (trained) {
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
  if (!by_flags) report.tokenizer = tokenizer_files(folder);
  const std::vector<std::string> tokenizer = differing(report.tokenizer, folder, save);
  const auto check_tokenizer = [&](const FolderRecord& record) {
    if (!overwrite) record.expect_ours(tokenizer, ". Give another folder, or --overwrite");
  };
  OutputFolder out(report.output, "the output", kUniversal);
  check_tokenizer(FolderRecord(save));
  report.notes = std::move(opened.notes);
  HfModel stored = model;  // with the names that the weights have
  if (trained && weights.contains(kMegatronTable)) stored.family = &kMegatronCore;
  if (!stored.family) stored.family = model.family = &family_of(model.gpt);
  if (has_own_head(weights, stored)) {
    if (by_flags)
      throw UserError(weights.path.string() + ": its " + head_name(stored) +
                      " is another table than the embeddings; add "
                      "--untie-embeddings-and-output-weights");
    model.gpt.untie_embeddings_and_output_weights = true;
    report.notes.push_back(std::string(kHfConfigFile) + " ties the head to the embeddings, but " +
                           head_name(stored) + " is another table: imported as untied");
  }
  report.notes.insert(report.notes.end(), model.notes.begin(), model.notes.end());
  if (trained && !weights_only && !prior.checkpoint)
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
      universal_files(out.folder(), model, ours, adapter ? &*adapter : nullptr, prior);
  std::optional<FolderRecord> record;  // a run has locked its folder
  if (!by_flags) check_tokenizer(record.emplace(save, "the output folder"));
  report.bytes = out.stream(files, write_threads(), checks, progress).bytes;
  sources.expect_unchanged();
  if (adapter) adapter->sources.expect_unchanged();
  for (const std::string& name : tokenizer) record->copy_in(folder / name, name);
  if (record) record->write();
  out.publish(report.iteration);
  report.parameters = std::ssize(ours);
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace

HfImport import_hf(const fs::path& folder, const fs::path& save, const ProgressCallback& progress,
                   bool overwrite, const fs::path& adapter, const fs::path& checkpoint) {
  if (!fs::is_directory(folder))
    throw DamagedFile(folder.string() + ": no such folder" + list_parent(folder));
  refuse_adapter(folder);
  return import_model(read_hf_config(folder / kHfConfigFile), folder, save, progress, overwrite,
                      adapter, checkpoint);
}

std::vector<std::string> import_in_place(const GptConfig& gpt, const fs::path& checkpoint,
                                         bool weights_only) {
  const HfImport made = import_model({.gpt = gpt, .source = "the run's flags"}, {}, checkpoint, {},
                                     /*overwrite=*/false, {}, checkpoint, weights_only);
  std::vector<std::string> lines{checkpoint.string() + ": imported to " +
                                 made.output.filename().string() + " (" +
                                 std::to_string(made.parameters) + " parameters)"};
  lines.insert(lines.end(), made.notes.begin(), made.notes.end());
  return lines;
}

}  // namespace anymesh
