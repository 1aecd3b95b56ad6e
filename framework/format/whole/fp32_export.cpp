#include "framework/format/whole/fp32_export.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <map>
#include <set>

#include "framework/format/folder/folder_record.h"
#include "framework/format/folder/output_folder.h"
#include "framework/format/io/file_io.h"
#include "framework/format/sharded/source_files.h"
#include "framework/format/sharded/tensor_views.h"
#include "framework/format/torch_file/record_checksums.h"
#include "framework/format/torch_file/torch_file.h"
#include "framework/util/errors.h"
#include "framework/util/printable.h"
#include "framework/util/stopwatch.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// The names that the metadata lists. Each pipeline stage's model-states files list their own.
// Frozen parameters are listed from ZeRO 2 on.
struct Listed {
  std::set<std::string> trained, frozen, buffers;
};
Listed listed_names(const Checkpoint& checkpoint) {
  Listed listed;
  const auto add = [](const Value& shapes, std::set<std::string>& names) {
    for (const auto& [name, shape] : shapes.entries()) names.insert(name.as_string());
  };
  for (const Value& metadata : checkpoint.model_states) {
    listed.buffers.merge(buffer_names(metadata));
    if (const Value shapes = metadata.find(keys::kFrozenParamShapes)) add(shapes, listed.frozen);
    if (const Value groups = metadata.find(keys::kParamShapes))
      for (const Value& group : groups.items()) add(group, listed.trained);
  }
  return listed;
}

// Returns the first names of all parameters that are neither trained nor buffers.
std::set<std::string> frozen_names(const Checkpoint& checkpoint, const Listed& listed) {
  if (!checkpoint.metadata) {
    throw UserError(checkpoint.path.string() + ": " + checkpoint.description +
                    " does not say which parameters were frozen: "
                    "--exclude_frozen_parameters needs a checkpoint");
  }
  if (listed.trained.empty() && listed.frozen.empty()) {
    throw UserError(checkpoint.path.string() +
                    ": DeepSpeed does not record at ZeRO 0 which parameters were frozen: "
                    "drop --exclude_frozen_parameters");
  }
  std::set<std::string> frozen = listed.frozen;
  for (const std::string& name : checkpoint.names()) {
    const std::string& first = checkpoint.first_name(name);
    if (!listed.trained.contains(first) && !listed.buffers.contains(first)) frozen.insert(first);
  }
  return frozen;
}

// Throws if files are lost: by the manifest if there is one, and by the trained parameters that
// model-states files list.
void check_nothing_lost(const Checkpoint& checkpoint, const Listed& listed) {
  if (const auto manifest = read_manifest(checkpoint.path)) {
    const std::string damage = size_damage(checkpoint.path, manifest->files);
    if (!damage.empty()) throw DamagedFile(damage);
  }
  for (const std::string& name : listed.trained)
    if (!checkpoint.contains(name))
      throw UserError(checkpoint.path.string() + ": has no " + name +
                      ", which its model-states files list: files are missing");
}

// Returns the untrained tensors of other dtypes (counts, masks, packed weights). The fp32.pt files
// of DeepSpeed's universal folders do not hold them exactly.
std::map<std::string, TensorRecord> exact_tensors(const Value& metadata, const Listed& listed) {
  std::map<std::string, TensorRecord> tensors;
  if (!metadata) return tensors;
  for (const auto& [name, tensor] : module_tensors(metadata)) {
    if (widened(tensor).dtype != DType::kFloat32 && !listed.trained.contains(name))
      tensors.emplace(name, tensor);
  }
  return tensors;
}

// Throws if the output folder is a file or the source's folder, or lies in a checkpoint.
void check_output(const fs::path& output, const Checkpoint& checkpoint) {
  if (fs::exists(output) && !fs::is_directory(output))
    throw UserError(output.string() + " is a file; expected the folder to write the weights to");
  const bool is_weights = checkpoint.kind == Checkpoint::Kind::kWeights,
             is_file = fs::is_regular_file(checkpoint.path);
  const fs::path source = is_file ? fs::absolute(checkpoint.path).parent_path() : checkpoint.path;
  std::error_code absent;
  if (fs::equivalent(output, source, absent) || (!is_weights && is_inside(output, source)))
    throw UserError(output.string() + " holds the weights to be exported, or lies in " +
                    source.string() + ", which does; expected another output folder");
}

// Returns the folder's weights files of this format: an earlier export, which will be removed.
// Throws on weights of the other format, because loaders might prefer them.
std::vector<std::string> earlier_weights(const Fp32Options& options, const FolderRecord& record) {
  std::vector<std::string> earlier;
  const bool safetensors = options.safetensors;
  for (const auto& entry : fs::directory_iterator(options.output)) {
    const std::string name = entry.path().filename();
    if (is_weights_file(name, safetensors)) earlier.push_back(name);
    if (is_weights_file(name, !safetensors))
      throw UserError(entry.path().string() + " is there, weights in " +
                      (safetensors ? "torch's format" : "safetensors") +
                      ", which loaders might take for these; remove it or export to "
                      "another folder");
  }
  std::ranges::sort(earlier);
  if (!options.overwrite) record.expect_ours(earlier, ". Give another folder, or --overwrite");
  return earlier;
}

// Rounds all floating-point tensors. Tied names keep sharing `bytes`.
NamedTensors rounded(NamedTensors tensors, DType dtype) {
  std::map<const ByteSource*, BytesPtr> known;
  for (auto& [name, tensor] : tensors) {
    if (!is_floating(tensor.dtype)) continue;
    BytesPtr& bytes = known[tensor.bytes.get()];
    if (!bytes) bytes = as_dtype(tensor, dtype).bytes;
    tensor.dtype = dtype;
    tensor.bytes = bytes;
  }
  return tensors;
}

}  // namespace

NamedTensors fp32_tensors(const Checkpoint& checkpoint, bool exclude_frozen) {
  const Listed listed = listed_names(checkpoint);
  if (checkpoint.metadata) check_nothing_lost(checkpoint, listed);
  std::set<std::string> left_out;
  if (exclude_frozen) left_out = frozen_names(checkpoint, listed);
  const auto exact = exact_tensors(checkpoint.metadata, listed);
  std::map<std::string, TensorRecord> read;  // by first name
  NamedTensors tensors;
  for (const std::string& name : checkpoint.names()) {
    const std::string& first = checkpoint.first_name(name);
    if (left_out.contains(first)) continue;
    const auto [known, is_new] = read.try_emplace(first);
    TensorRecord& tensor = known->second;
    if (is_new) {
      const auto found = exact.find(first);
      tensor = found == exact.end() ? checkpoint.parameter(first).weight() : found->second;
      const bool requires_grad = tensor.requires_grad;
      tensor = widened(tensor);
      tensor.requires_grad = requires_grad;
    }
    tensors.emplace_back(name, tensor);
  }
  return tensors;
}

DType parse_output_dtype(const std::string& text) {
  std::string name = text.starts_with("torch.") ? text.substr(6) : text;
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (name == "fp32" || name == "float32") return DType::kFloat32;
  if (name == "fp16" || name == "float16") return DType::kFloat16;
  if (name == "bf16" || name == "bfloat16") return DType::kBFloat16;
  throw UserError("the dtype " + printable(text) +
                  " is not supported; expected fp32, bf16, fp16, float32, bfloat16 or float16");
}

Fp32Report export_fp32(const Fp32Options& options, const ProgressCallback& progress) {
  const auto start = std::chrono::steady_clock::now();
  RecordChecksums checks;
  std::vector<std::string> notes;
  const fs::path path = resolve_tag(options.checkpoint, options.tag, &notes),
                 build = options.output / kWeightsBuildFolder;
  const SourceFiles sources(path);
  const Checkpoint checkpoint = open_checkpoint(path, write_threads(), &checks);
  NamedTensors tensors = fp32_tensors(checkpoint, options.exclude_frozen);
  if (options.dtype) tensors = rounded(std::move(tensors), *options.dtype);
  check_output(options.output, checkpoint);
  FolderRecord record(options.output, "the output folder");
  const std::vector<std::string> earlier = earlier_weights(options, record);
  Fp32Report report{
      write_weights(tensors,
                    {.folder = build,
                     .prepare = [&](const BuildPlan& plan) { prepare_build_folder(build, plan); },
                     .max_shard_size = options.max_shard_size,
                     .safetensors = options.safetensors},
                    checks, progress)};
  sources.expect_unchanged();
  sync_file_system(build);
  record.replace(earlier, build, report.listed);
  record.write();
  remove_build_folder(build);
  report.source = checkpoint.description;
  if (std::string note = checks.note(); !note.empty()) notes.push_back(std::move(note));
  report.notes = std::move(notes);
  if (checkpoint.weights_rounded) report.rounded = checkpoint.states_refused;
  report.seconds = seconds_since(start);
  return report;
}

}  // namespace anymesh
