#include <algorithm>
#include <set>
#include <span>

#include "framework/format/whole.h"
#include "framework/util/errors.h"
#include "framework/util/plain_words.h"
#include "tools/ckpt/ckpt.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostFiles = 60, kMostParameters = 400;
constexpr size_t kMostChildren[] = {40, 20, 4, 2, 2};  // children shown of a container, by depth

// Returns whether the value is a list of integers short enough to be shown in place.
bool is_shape(const Value& value) {
  if (!value.is_sequence() || value.size() > 8) return false;
  const auto items = value.items();
  return std::all_of(items.begin(), items.end(), [](const Value& item) { return item.is_int(); });
}

std::vector<Value::Entry> children(const Value& value) {
  const bool object = value.is_object() && value.as_object().state;
  if (value.is_dict() || (object && value.as_object().state->is_dict())) return value.entries();
  std::vector<Value::Entry> children;
  if (!value.is_sequence() || is_shape(value)) return children;
  for (const Value& item : value.items())
    children.emplace_back("[" + std::to_string(children.size()) + "]", item);
  return children;
}

// Prints the children of a value, a line each; without --all only the first few.
void print_value(std::ostream& out, const Value& value, size_t depth, const CkptOptions& options) {
  if (depth == std::size(kMostChildren) && !options.all) return;
  const std::string indent(2 * depth + 4, ' ');
  const auto entries = children(value);
  const size_t count = std::min(entries.size(), options.all ? SIZE_MAX : kMostChildren[depth]);
  for (const auto& [key, child] : std::span(entries).first(count)) {
    out << indent << (key.is_string() ? printable(key.as_string()) : key.found()) << ": "
        << (is_shape(child) ? to_string(child.as_ints()) : child.found()) << '\n';
    print_value(out, child, depth + 1, options);
  }
  print_rest(out, indent, entries.size() - count);
}

// Looks into the first of the files that differ only in their rank; with --all into every file.
void print_files(const fs::path& path, const std::vector<fs::path>& files,
                 const CkptOptions& options, std::ostream& out) {
  out << "\nfiles\n";
  std::set<std::string> kinds;
  const size_t shown = options.all ? files.size() : std::min(files.size(), kMostFiles);
  for (const fs::path& file : std::span(files).first(shown)) {
    const fs::path name = file == path ? path.filename() : fs::relative(file, path);
    out << "  " << printable(name.string(), 1000) << "  " << fs::file_size(file) << " bytes\n";
    const auto rank = parse_checkpoint_file_name(file.filename().string());
    const std::string kind =
        rank ? std::to_string(static_cast<int>(rank->kind)) + "/" + std::to_string(rank->layer)
             : file.filename().string();
    const bool first = kinds.insert(kind).second;
    if (!(first || options.all) || !holds_tensors(file)) continue;
    try {
      print_value(out, read_weights_file(file), 0, options);
    } catch (const std::exception& error) {
      out << "    cannot be read: " << printable_message(error) << '\n';
    }
  }
  print_rest(out, "  ", files.size() - shown);
}

void print_run(const Value& metadata, std::ostream& out) {
  const Value config = metadata.find(keys::kDsConfig);
  std::string precision = "fp32";
  for (const char* half : {"bf16", "fp16"}) {
    const Value enabled = config_entry(config, half, keys::kEnabled);
    if (enabled && enabled.as_bool()) precision = half;
  }
  out << "  iteration " << step_of(metadata).found() << ", " << samples_of(metadata).found()
      << " samples consumed, " << precision << '\n';
}

std::string cut_of(const SavedParameter& parameter, const Value& metadata) {
  const Value& keys = parameter.keys;
  if (!keys) return "whole";  // ZeRO 3 without tp, weights
  if (const Value fused = keys.find(keys::kSubParamShape))
    return "fused, tp along dim " + fused.at(keys::kPartitionDim).found();
  if (const Value experts = keys.find(keys::kEpNumExperts))
    return experts.found() + " experts along dim 0";
  const Value dim = keys.find(keys::kCatDim), info = metadata.find(keys::kUniversalInfo);
  if (!dim) return "replicated";
  std::string text = "tp along dim " + dim.found();
  if (const Value parts = keys.find(keys::kParamNSubParams))
    text += " of each of " + parts.found() + " parts";
  if (keys.find(keys::kVocabTensor)) {
    const Value padded = info ? info.find(keys::kPaddedVocabSize) : Value();
    text += ", vocabulary" + (padded ? " padded to " + padded.found() : std::string());
  }
  return text;
}

using Row = std::vector<std::string>;

Row row_of(const std::string& name, const SavedParameter& parameter, const Value& metadata) {
  std::string cut = cut_of(parameter, metadata);
  for (const int pp : parameter.pp_ranks)
    cut += (pp == parameter.pp_ranks[0] ? "; pp " : ", ") + std::to_string(pp);
  if (!parameter.has_moments()) cut += "; no moments";
  if (parameter.step) cut += "; step " + std::to_string(parameter.step.as_int());
  return {printable(name),
          std::string(dtype_name(parameter.weight().dtype)) + " " + to_string(parameter.shape),
          cut};
}

// Prints what the checkpoint is, and a table of its parameters.
void print_overview(const Checkpoint& whole, const std::vector<fs::path>& files,
                    const CkptOptions& options, std::ostream& out) {
  std::vector<Row> rows = {{"parameter", "whole shape", "cut; held by"}};
  const size_t count = whole.names().size(),
               shown = options.all ? count : std::min(count, kMostParameters);
  int64_t elements = 0;  // a tied weight's once
  for (size_t i = 0; i < count; ++i) {
    const std::string& name = whole.names()[i];
    const SavedParameter parameter = whole.parameter(name);
    if (whole.first_name(name) == name) elements += numel(parameter.shape);
    if (i < shown) rows.push_back(row_of(name, parameter, whole.metadata));
  }
  out << whole.description << '\n';
  if (whole.metadata) print_run(whole.metadata, out);
  out << "  " << count << " parameters of " << elements << " elements; " << files.size()
      << " files of " << bytes_of(files) << " bytes\n";
  if (!whole.states_refused.empty())
    out << "  the optimizer's states are not understood: " << printable(whole.states_refused, 1000)
        << '\n';
  out << '\n';
  print_table(std::move(rows), out);
  print_rest(out, "  ", count - shown);
}

}  // namespace

Value step_of(const Value& metadata) {
  return metadata.find(keys::kIteration).value_or(metadata.find(keys::kGlobalSteps));
}

Value samples_of(const Value& metadata) {
  const Value args = metadata.find(keys::kArgs),
              samples = args ? args.find(keys::kConsumedTrainSamples) : Value();
  return samples.value_or(metadata.find(keys::kGlobalSamples));
}

fs::path folder_of(const Checkpoint& checkpoint) {
  return fs::is_directory(checkpoint.path) ? checkpoint.path : checkpoint.path.parent_path();
}

int inspect_checkpoint(const fs::path& path, const CkptOptions& options, std::ostream& out) {
  std::vector<std::string> notes;
  const fs::path tag = resolve_tag(path, "", &notes);
  checkpoint_kind(tag);
  const std::vector<fs::path> files = files_under(tag);
  out << printable(tag.string(), 1000) << '\n';
  for (const std::string& note : notes) out << "note: " << printable_message(note) << '\n';
  int code = kExitAllWell;
  try {
    print_overview(open_checkpoint(tag, options.workers), files, options, out);
  } catch (const std::exception& error) {
    out << "the parameters cannot be listed: " << printable_message(error) << '\n';
    code = dynamic_cast<const Unreadable*>(&error) ? kExitNotUnderstood : kExitDiffers;
  }
  print_files(tag, files, options, out);
  return code;
}

}  // namespace anymesh
