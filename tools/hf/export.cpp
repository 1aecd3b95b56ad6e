#include "tools/hf/export.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "framework/format/folder.h"
#include "framework/format/io.h"
#include "framework/format/sharded.h"
#include "framework/format/torch_file.h"
#include "framework/format/whole.h"
#include "framework/util/errors.h"
#include "framework/util/stopwatch.h"
#include "tools/hf/args.h"
#include "tools/hf/tensors.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

using Json = nlohmann::ordered_json;

constexpr const char* kWhat = "the output folder";  // in messages
constexpr FolderKind kExport{"an unchanged export of ours", recorded_entries};
constexpr const char* kSuffix = ".safetensors";

// The small files of an export, by name.
using Texts = std::map<std::string, std::string>;

// Whether it describes a model of transformers, rather than what belongs to one.
bool is_model(const HfDescription& described) {
  return described.files.config == std::string(kHfConfigFile);
}

// Returns the description's config.json, which says another dtype than float32.
std::string config_text(const HfDescription& model, DType dtype) {
  Json json = Json::parse(model.config, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded())
    throw UserError(std::string("the description's ") + model.files.config + " is no JSON");
  if (dtype == DType::kFloat32 || !json.is_object() || !is_model(model)) return model.config;
  json["dtype"] = dtype_name(dtype);
  if (json.contains("torch_dtype")) json["torch_dtype"] = dtype_name(dtype);  // of older versions
  return json.dump(2) + "\n";
}

// Returns what generate() reads of a config.json: the ids of special tokens; "" without any.
std::string generation_text(const std::string& config) {
  const Json json = Json::parse(config);
  Json generation;
  for (const char* id : kTokenIds)
    if (json.is_object() && json.contains(id) && !json[id].is_null()) generation[id] = json[id];
  return generation.empty() ? "" : generation.dump(2) + "\n";
}

// Returns the files to write beside the weights and the copied ones.
Texts texts_of(const HfDescription& model, DType dtype, const std::vector<std::string>& copied) {
  Texts texts{{model.files.config, config_text(model, dtype)}};
  if (!is_model(model)) return texts;
  const std::string generation = generation_text(texts[kHfConfigFile]);
  const bool is_copied = std::ranges::find(copied, kHfGenerationFile) != copied.end();
  if (!generation.empty() && !is_copied) texts[kHfGenerationFile] = generation;
  return texts;
}

// Throws if the folder has files that this export does not write too, and which would be lost. A
// generation_config.json of an earlier one may go.
void expect_no_more(const fs::path& folder, const HfDescription& model,
                    const std::vector<std::string>& others) {
  if (!fs::is_directory(folder)) return;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    const bool is_weights = is_model(model) ? is_weights_file(name, /*safetensors=*/true)
                                            : name == model.files.weights + std::string(kSuffix);
    if (!is_weights && name != kHfGenerationFile && std::ranges::find(others, name) == others.end())
      throw DamagedFile(folder.string() + " has " + name +
                        ", which is of no earlier export; it would be replaced. Give another");
  }
}

// Returns the imported model's ids, else those of the tokenizer in `folder`, else the run's.
TokenIds token_ids_of(const Checkpoint& checkpoint, const fs::path& folder) {
  TokenIds ids;
  if (const Value args = args_of(checkpoint))
    for (const char* name : kTokenIds)
      if (args.contains(name)) ids[name] = args.at(name).as_ints();
  if (ids.empty()) ids = token_ids_beside(folder);
  return ids.empty() ? token_ids_of_run(tokenizer_of(checkpoint)) : ids;
}

// Returns the model's tensors by their exported names. Throws if the checkpoint has others.
NamedTensors tensors_of(const Checkpoint& checkpoint, const HfDescription& model, DType dtype) {
  std::set<std::string> left(checkpoint.names().begin(), checkpoint.names().end()), names;
  NamedTensors tensors;
  for (const HfParameter& parameter : model.parameters) {
    validate(parameter);
    const auto theirs = theirs_of(
        parameter, take(checkpoint, parameter.name, parameter.other_name, parameter.shape, left));
    for (size_t i = 0; i < theirs.size(); ++i) {
      const auto& [name, shape] = parameter.theirs[i];
      if (!names.insert(name).second)
        throw UserError("the description of " + parameter.name + ": another one has " + name);
      tensors.emplace_back(name,
                           as_dtype(TensorRecord{DType::kFloat32, shape, false, theirs[i]}, dtype));
    }
  }
  if (!left.empty())
    throw DamagedFile(checkpoint.path.string() + ": has " + *left.begin() + ", which no " +
                      model.model + " of its shape has");
  return tensors;
}

}  // namespace

HfExport export_hf(const HfExportOptions& options, const DescribeHf& describe,
                   const ProgressCallback& progress) {
  const auto start = std::chrono::steady_clock::now();
  const fs::path path = resolve_tag(options.checkpoint, options.tag);
  const fs::path output = without_trailing_slash(options.output);
  const fs::path tokenizer = options.tokenizer.empty() ? options.checkpoint : options.tokenizer;
  std::vector<std::string> carried = tokenizer_files(tokenizer);
  if (carried.empty() && !options.tokenizer.empty())
    throw DamagedFile(tokenizer.string() + ": has no " + kHfTokenizerFiles[0] +
                      " nor another file of a tokenizer (--tokenizer)");
  const SourceFiles sources(path);
  const Checkpoint checkpoint = open_checkpoint(path, write_threads());
  HfDescription model = describe(checkpoint, token_ids_of(checkpoint, tokenizer));
  if (!is_model(model)) std::erase(carried, kHfGenerationFile);
  std::vector<std::string> others = carried;  // files beside the weights
  others.insert(others.end(), {model.files.config, std::string(kRecordFile)});
  expect_no_more(output, model, others);
  OutputFolder out(output, kWhat, kExport);
  const Texts texts = texts_of(model, options.dtype, carried);
  if (texts.contains(kHfGenerationFile)) others.emplace_back(kHfGenerationFile);
  const NamedTensors tensors = tensors_of(checkpoint, model, options.dtype);
  RecordChecksums none;  // records are checked before reading, since a matrix is read in pieces
  HfExport report{.model = std::move(model.model),
                  .tokenizer = carried,
                  .source = checkpoint.description,
                  .notes = std::move(model.notes)};
  const auto prepare = [&](BuildPlan plan) {
    plan.others.insert(others.begin(), others.end());
    out.prepare(plan);
  };
  report.written =
      write_weights(tensors,
                    {.folder = out.folder(),
                     .prepare = prepare,
                     .max_shard_size = is_model(model) ? options.max_shard_size : UINT64_MAX,
                     .safetensors = true,
                     .stem = model.files.weights},
                    none, progress);
  FolderRecord record(out.folder());
  for (const auto& [name, text] : texts) record.write_in(name, text);
  for (const std::string& name : carried) record.copy_in(tokenizer / name, name);
  record.add(report.written.listed);
  record.write();
  sources.expect_unchanged();
  out.publish();
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace anymesh
