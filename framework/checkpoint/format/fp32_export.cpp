#include "framework/checkpoint/format/fp32_export.h"

#include <charconv>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <unordered_map>

#include "framework/checkpoint/format/deferred_checks.h"
#include "framework/checkpoint/format/file_io.h"
#include "framework/checkpoint/format/merged_tensor.h"
#include "framework/checkpoint/format/stopwatch.h"
#include "framework/checkpoint/format/torch_file.h"
#include "framework/checkpoint/format/whole_checkpoint.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// Of every pipeline stage: each one's model-states files list its own.
std::set<std::string> frozen_parameters(const fs::path& tag) {
  std::set<std::string> names;
  if (!fs::is_directory(tag)) return names;
  for (const auto& entry : fs::directory_iterator(tag)) {
    const auto file = parse_checkpoint_file_name(entry.path().filename().string());
    const bool has_metadata = file && file->dp_rank <= 0 &&
                              (file->kind == CheckpointFileName::Kind::kModelStates ||
                               file->kind == CheckpointFileName::Kind::kZero3ModelStates);
    if (!has_metadata) continue;
    if (const Value shapes = read_torch_file(entry.path()).find(keys::kFrozenParamShapes))
      for (const auto& [name, shape] : shapes.entries()) names.insert(name.as_string());
  }
  return names;
}

// Counts and masks, which fp32 does not hold exactly.
std::map<std::string, TensorRecord> integer_buffers(const Value& metadata) {
  std::map<std::string, TensorRecord> buffers;
  const Value names = metadata ? metadata.find(keys::kBufferNames) : Value();
  if (!names || names.size() == 0) return buffers;
  const std::vector<std::string> known = names.as_strings();
  for (const auto& [name, tensor] : module_tensors(metadata)) {
    if (!is_floating(tensor.dtype) && std::find(known.begin(), known.end(), name) != known.end())
      buffers.emplace(name, tensor);
  }
  return buffers;
}

// In order, a new shard when the next tensor does not fit; one that is larger than a shard gets its
// own. With `tied`, names of one storage stay together and count once.
std::vector<NamedTensors> shards_of(const NamedTensors& tensors, uint64_t max_size, bool tied) {
  std::vector<NamedTensors> shards;
  std::unordered_map<const ByteSource*, size_t> shard_of;
  std::optional<size_t> open;  // the one that is being filled
  uint64_t size = 0;
  for (const auto& named : tensors) {
    const ByteSource* storage = named.second.bytes.get();
    if (const auto known = shard_of.find(storage); known != shard_of.end()) {
      shards[known->second].push_back(named);
      continue;
    }
    const uint64_t bytes = named.second.nbytes();
    const bool alone = bytes > max_size;
    if (alone || !open || bytes > max_size - size) {
      shards.emplace_back();
      if (!alone) open = shards.size() - 1, size = 0;
    }
    const size_t shard = alone ? shards.size() - 1 : *open;
    if (!alone) size += bytes;
    if (tied) shard_of.emplace(storage, shard);
    shards[shard].push_back(named);
  }
  return shards;
}

// Of what is written: memory under several names once.
uint64_t stored_bytes(const NamedTensors& shard, bool tied) {
  std::set<const ByteSource*> storages;
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : shard)
    if (!tied || storages.insert(tensor.bytes.get()).second) bytes += tensor.nbytes();
  return bytes;
}

std::string file_name(const std::string& stem, const std::string& suffix, size_t i, size_t count) {
  if (count == 1) return stem + suffix;
  char number[32];
  std::snprintf(number, sizeof number, "-%05zu-of-%05zu", i + 1, count);
  return stem + number + suffix;
}

class CountedBytes : public ByteSource {
 public:
  CountedBytes(BytesPtr bytes, ProgressCounter& counter)
      : bytes_(std::move(bytes)), counter_(counter) {}
  uint64_t size() const override { return bytes_->size(); }
  void read(uint64_t offset, std::span<std::byte> out) const override {
    bytes_->read(offset, out);
    counter_.add(out.size());
  }

 private:
  BytesPtr bytes_;
  ProgressCounter& counter_;
};

// Names of one storage keep sharing it.
NamedTensors counted(NamedTensors shard, ProgressCounter& counter) {
  std::unordered_map<const ByteSource*, BytesPtr> storages;
  for (auto& [name, tensor] : shard) {
    BytesPtr& bytes = storages[tensor.bytes.get()];
    if (!bytes) bytes = std::make_shared<CountedBytes>(tensor.bytes, counter);
    tensor.bytes = bytes;
  }
  return shard;
}

StreamedFile streamed_shard(const fs::path& path, const NamedTensors& shard, bool safetensors) {
  if (safetensors) return streamed_safetensors(path, shard);
  std::vector<Value::Entry> entries;
  for (const auto& [name, tensor] : shard) entries.emplace_back(name, tensor);
  return streamed_torch_file(path, Value::ordered_dict(std::move(entries)));
}

// All files, beside their names first, since an earlier export may be there.
void write_files(std::vector<Fp32File>& files, const Fp32Options& options, DeferredChecks& checks,
                 ProgressCounter& counter) {
  std::vector<StreamedFile> streamed;
  for (Fp32File& file : files) {
    streamed.push_back(streamed_shard(temporary_of(options.output / file.name),
                                      counted(file.tensors, counter), options.safetensors));
    file.bytes = streamed.back().layout({}).size;
  }
  stream_files(streamed, options.threads);
  checks.finish(options.threads);
  sync_file_system(options.output);
  for (const Fp32File& file : files)
    rename_durably(temporary_of(options.output / file.name), options.output / file.name);
}

// Files of earlier exports there will go: not those that are being read.
void make_output(const fs::path& output, const WholeCheckpoint& checkpoint) {
  if (fs::exists(output) && !fs::is_directory(output))
    throw std::runtime_error(output.string() +
                             " is a file; expected the folder to write the weights to");
  fs::create_directories(output);
  const bool is_file = fs::is_regular_file(checkpoint.path);
  const fs::path source = is_file ? fs::absolute(checkpoint.path).parent_path() : checkpoint.path;
  if (checkpoint.kind == WholeCheckpoint::Kind::kWeights && fs::equivalent(output, source))
    throw std::runtime_error(output.string() +
                             " holds the weights to be exported; expected another output folder");
}

// Of an earlier export, which had other files.
void remove_others(const fs::path& folder, const std::set<std::string>& kept) {
  static const std::regex ours(
      R"((pytorch_model(-\d{5}-of-\d{5})?\.bin|model(-\d{5}-of-\d{5})?\.safetensors)(\.index\.json)?)");
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (std::regex_match(name, ours) && !kept.contains(name)) fs::remove(entry.path());
  }
}

std::string index_of(const std::vector<Fp32File>& files, uint64_t total_size) {
  nlohmann::json map = nlohmann::json::object();
  for (const Fp32File& file : files)
    for (const auto& [name, tensor] : file.tensors) map[name] = file.name;
  const nlohmann::json index = {{"metadata", {{"total_size", total_size}}},
                                {"weight_map", std::move(map)}};
  return index.dump(2) + "\n";
}

}  // namespace

NamedTensors fp32_tensors(const WholeCheckpoint& checkpoint, bool exclude_frozen) {
  std::set<std::string> left_out;
  if (exclude_frozen) left_out = frozen_parameters(checkpoint.path);
  const auto exact = integer_buffers(checkpoint.metadata);
  std::map<std::string, TensorRecord> read;  // by first name
  NamedTensors tensors;
  for (const std::string& name : checkpoint.names()) {
    const std::string& first = checkpoint.first_name(name);
    if (left_out.contains(name) || left_out.contains(first)) continue;
    const auto [known, is_new] = read.try_emplace(first);
    TensorRecord& tensor = known->second;
    if (is_new) {
      const auto buffer = exact.find(first);
      tensor = buffer == exact.end() ? checkpoint.parameter(first).states[kFp32] : buffer->second;
      if (is_floating(tensor.dtype))
        tensor = {DType::kFloat32, tensor.shape, tensor.requires_grad, as_float32(tensor)};
    }
    tensors.emplace_back(name, tensor);
  }
  return tensors;
}

Fp32Report export_fp32(const Fp32Options& options, const ProgressCallback& progress) {
  const auto start = std::chrono::steady_clock::now();
  const fs::path source =
      options.tag.empty() ? options.checkpoint : options.checkpoint / options.tag;
  DeferredChecks checks;
  const WholeCheckpoint checkpoint = open_whole_checkpoint(source, options.threads, &checks);
  const bool tied = !options.safetensors;
  auto shards =
      shards_of(fp32_tensors(checkpoint, options.exclude_frozen), options.max_shard_size, tied);
  if (shards.empty()) shards.emplace_back();
  const std::string stem = options.safetensors ? "model" : "pytorch_model",
                    suffix = options.safetensors ? ".safetensors" : ".bin";
  Fp32Report report{.source = checkpoint.description};
  for (NamedTensors& shard : shards) {
    report.weights += stored_bytes(shard, tied);
    report.tensors += static_cast<int64_t>(shard.size());
    report.files.push_back(
        {file_name(stem, suffix, report.files.size(), shards.size()), 0, std::move(shard)});
  }
  make_output(options.output, checkpoint);
  ProgressCounter counter(report.weights, progress);
  write_files(report.files, options, checks, counter);
  std::set<std::string> kept;
  for (const Fp32File& file : report.files) kept.insert(file.name);
  if (report.files.size() > 1) {
    const std::string index = stem + suffix + ".index.json";
    write_text_atomically(options.output / index, index_of(report.files, report.weights));
    kept.insert(index);
  }
  remove_others(options.output, kept);
  report.seconds = seconds_since(start);
  return report;
}

uint64_t parse_size(const std::string& text) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  std::string unit(std::find_if(stop, end, [](char c) { return c != ' '; }), end);
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  static const std::pair<const char*, double> units[] = {
      {"", 1},      {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
      {"TB", 1e12}, {"KIB", 0x1p10}, {"MIB", 0x1p20}, {"GIB", 0x1p30}};
  for (const auto& [name, factor] : units) {
    const double bytes = number * factor;
    if (error == std::errc() && unit == name && bytes >= 1 && bytes < 0x1p63)
      return static_cast<uint64_t>(bytes);
  }
  throw std::invalid_argument("'" + text + "' is not a size; expected e.g. 5GB, 1.5GB or 300MB");
}

}  // namespace anymesh
