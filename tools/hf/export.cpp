#include <algorithm>
#include <chrono>
#include <set>

#include "framework/format/io.h"
#include "framework/format/output.h"
#include "framework/format/sharded.h"
#include "framework/format/torch_file.h"
#include "framework/format/whole.h"
#include "framework/util/errors.h"
#include "framework/util/stopwatch.h"
#include "models/gpt/gpt_names.h"
#include "tools/hf/args.h"
#include "tools/hf/hf_convert.h"
#include "tools/hf/parameters.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWhat = "the output folder";  // in messages

// Throws unless the folder may be replaced as a whole. It may hold only files that this export
// writes too, and only as earlier exports left them.
void check_replaceable_export(const fs::path& folder, const std::vector<std::string>& tokenizer) {
  if (!fs::exists(folder)) return;
  if (!fs::is_directory(folder))
    throw DamagedFile(folder.string() + " is a file; expected a folder");
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name != kHfConfigFile && name != kRecordFile &&
        !is_weights_file(name, /*safetensors=*/true) &&
        std::find(tokenizer.begin(), tokenizer.end(), name) == tokenizer.end())
      throw DamagedFile(folder.string() + " has " + name +
                        ", which is of no earlier export; it would be replaced. Give another");
  }
  if (const std::string foreign = first_foreign_entry(folder, recorded_entries(folder));
      !foreign.empty())
    throw DamagedFile(foreign +
                      " is of no export of ours, or was changed since; its folder would "
                      "be replaced. Give another");
}

// Reads the model from a config.json, if one is given, else from the checkpoint's args.
HfModel model_of(const CheckpointReader& checkpoint, const fs::path& config) {
  if (!config.empty()) return read_hf_config(config);
  const Value args = args_of(checkpoint);
  if (!args)
    throw_error<DamagedFile>(checkpoint.path.string(),
                             ": has no args, which define the model. "
                             "Give the config.json of such a model with --config");
  HfModel model{.gpt = gpt_of_args(args)};
  for (const char* name : kTokenIds)
    if (args.contains(name)) model.token_ids[name] = args.at(name).as_ints();
  const Value info = checkpoint.metadata.find(keys::kUniversalInfo);
  const Value rows = info ? info.find(keys::kOriginalVocabSize) : Value();
  model.gpt.vocab_size =
      static_cast<int>(rows ? rows.as_int() : args.at(keys::kPaddedVocabSize).as_int());
  try {
    model.family = family_of(model.gpt);
  } catch (const DamagedFile& error) {
    throw DamagedFile(args.where() + ": " + error.what());
  }
  return model;
}

// Returns the imported model's ids, else those of the tokenizer in `folder`, else the run's.
TokenIds token_ids_of(const HfModel& model, const CheckpointReader& checkpoint,
                      const fs::path& folder) {
  if (!model.token_ids.empty()) return model.token_ids;
  const TokenIds ids = token_ids_beside(folder);
  return ids.empty() ? token_ids_of_run(tokenizer_of(checkpoint)) : ids;
}

// Returns the model's tensors by their names in transformers. Throws if the checkpoint has others.
NamedTensors tensors_of(const CheckpointReader& checkpoint, const HfModel& model) {
  std::set<std::string> left(checkpoint.names().begin(), checkpoint.names().end());
  NamedTensors tensors;
  for (const HfParameter& parameter : hf_parameters(model)) {
    const std::string other = no_pipeline_name(parameter.name, model.gpt.num_layers);
    const auto theirs = theirs_of(parameter, model.gpt,
                                  take(checkpoint, parameter.name, other, parameter.shape, left));
    for (size_t i = 0; i < theirs.size(); ++i)
      tensors.emplace_back(
          parameter.theirs[i].name,
          TensorRecord{DType::kFloat32, parameter.theirs[i].shape, false, theirs[i]});
  }
  if (!left.empty())
    throw DamagedFile(checkpoint.path.string() + ": has " + *left.begin() + ", which no " +
                      family_name(model.family) + " of its shape has");
  return tensors;
}

void publish_export(const fs::path& temporary, const fs::path& output,
                    const std::vector<std::string>& tokenizer) {
  finish_build_folder(temporary);
  check_replaceable_export(output, tokenizer);
  if (const fs::path old = publish_folder(temporary, output); !old.empty())
    remove_ours(old, recorded_entries(old));
}

}  // namespace

HfExport export_hf(const HfExportOptions& options, const ProgressCallback& progress) {
  const auto start = std::chrono::steady_clock::now();
  const fs::path path = resolve_tag(options.checkpoint, options.tag);
  const fs::path normal = fs::absolute(options.output).lexically_normal(),
                 output = normal.has_filename() ? normal : normal.parent_path(),
                 temporary = temporary_of(output);
  const fs::path tokenizer = options.tokenizer.empty() ? options.checkpoint : options.tokenizer;
  const std::vector<std::string> carried = tokenizer_files(tokenizer);
  if (carried.empty() && !options.tokenizer.empty())
    throw DamagedFile(tokenizer.string() + ": has no " + kHfTokenizerFiles[0] +
                      " nor another file of a tokenizer (--tokenizer)");
  check_replaceable_export(output, carried);
  std::optional<OutputLock> claimed = claim_build(output, kWhat, recorded_entries);
  const SourceFiles sources(path);
  const CheckpointReader checkpoint = open_checkpoint(path, write_threads());
  HfExport report{.model = model_of(checkpoint, options.config),
                  .tokenizer = carried,
                  .source = checkpoint.description};
  if (static_cast<size_t>(report.model.gpt.num_layers) > checkpoint.names().size())
    throw_error<DamagedFile>(path.string(), ": has too few parameters for ",
                             report.model.gpt.num_layers, " layers");
  report.model.token_ids = token_ids_of(report.model, checkpoint, tokenizer);
  if (!report.model.token_ids.contains("eos_token_id"))
    report.notes.push_back(
        "nothing says which token ends a text, so config.json leaves eos_token_id out, and "
        "transformers takes its own default; --tokenizer FOLDER has it");
  if (!report.model.unknown_keys.empty()) report.notes.push_back(unknown_keys_note(report.model));
  const NamedTensors tensors = tensors_of(checkpoint, report.model);
  const OutputLock lock = lock_build(std::move(claimed), output, kWhat);
  std::vector<std::string> others = carried;
  for (const auto name : {std::string_view(kHfConfigFile), kRecordFile}) others.emplace_back(name);
  RecordChecksums none;  // records are checked before reading, since a matrix is read in pieces
  report.written = write_weights(tensors,
                                 {.folder = temporary,
                                  .others = others,
                                  .otherwise = recorded_entries(temporary),
                                  .max_shard_size = options.max_shard_size,
                                  .safetensors = true},
                                 none, progress);
  FolderRecord record(temporary);
  const std::string config = hf_config_text(report.model);
  write_text_atomically(temporary / kHfConfigFile, config);
  record.add({file_of_text(kHfConfigFile, config)});
  record.add(copy_files(carried, tokenizer, temporary));
  record.add(report.written.listed);
  record.write();
  sources.expect_unchanged();
  publish_export(temporary, output, carried);
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace anymesh
