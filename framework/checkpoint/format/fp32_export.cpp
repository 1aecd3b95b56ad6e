#include "framework/checkpoint/format/fp32_export.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <unordered_map>

#include "framework/checkpoint/format/file_io.h"
#include "framework/checkpoint/format/merged_tensor.h"
#include "framework/checkpoint/format/safetensors.h"
#include "framework/checkpoint/format/torch_file.h"
#include "framework/checkpoint/format/whole_checkpoint.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

NamedTensors fp32_tensors(const WholeCheckpoint& checkpoint, bool exclude_frozen) {
  std::set<std::string> frozen;
  if (const Value shapes =
          checkpoint.metadata ? checkpoint.metadata.find(keys::kFrozenParamShapes) : Value())
    for (const auto& [name, shape] : shapes.entries()) frozen.insert(name.as_string());
  NamedTensors tensors;
  for (const std::string& name : checkpoint.names()) {
    if (exclude_frozen && frozen.contains(name)) continue;
    TensorRecord tensor = checkpoint.parameter(name).states[kFp32];
    if (tensor.dtype != DType::kFloat32)
      tensor = {DType::kFloat32, tensor.shape, false, as_float32(tensor)};
    tensors.emplace_back(name, std::move(tensor));
  }
  return tensors;
}

// Hugging Face's rule: in order, a new file when the next tensor doesn't fit; one that is larger than
// a file gets its own. Names of one storage stay together.
std::vector<NamedTensors> shards_of(const NamedTensors& tensors, uint64_t max_size) {
  std::vector<NamedTensors> shards;
  std::unordered_map<const ByteSource*, size_t> shard_of;
  NamedTensors current;
  std::set<const ByteSource*> in_current;
  uint64_t size = 0;
  const auto finish = [&](NamedTensors shard) {
    for (const auto& [name, tensor] : shard) shard_of[tensor.bytes.get()] = shards.size();
    shards.push_back(std::move(shard));
  };
  for (const auto& named : tensors) {
    const ByteSource* source = named.second.bytes.get();
    const uint64_t bytes = in_current.contains(source) ? 0 : named.second.nbytes();
    if (const auto known = shard_of.find(source); known != shard_of.end()) {
      shards[known->second].push_back(named);
    } else if (bytes > max_size) {
      finish({named});
    } else {
      if (size + bytes > max_size) {
        finish(std::exchange(current, {}));
        in_current.clear();
        size = 0;
      }
      current.push_back(named);
      in_current.insert(source);
      size += bytes;
    }
  }
  if (!current.empty()) finish(std::move(current));
  return shards;
}

std::string file_name(const std::string& stem, const std::string& suffix, size_t i, size_t count) {
  if (count == 1) return stem + suffix;
  char number[32];
  std::snprintf(number, sizeof number, "-%05zu-of-%05zu", i + 1, count);
  return stem + number + suffix;
}

uint64_t write_shard(const fs::path& path, const NamedTensors& shard, bool safetensors) {
  fs::path beside = path;
  beside += ".tmp";
  uint64_t bytes = 0;
  if (safetensors) {
    bytes = write_safetensors(beside, shard);
  } else {
    std::vector<Value::Entry> entries;
    for (const auto& [name, tensor] : shard) entries.emplace_back(name, tensor);
    bytes = write_torch_file(beside, Value::ordered_dict(std::move(entries))).bytes;
  }
  sync_file(beside);
  rename_durably(beside, path);
  return bytes;
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

}  // namespace

Fp32Report export_fp32(const Fp32Options& options, const Fp32Progress& progress) {
  const fs::path source =
      options.tag.empty() ? options.checkpoint : options.checkpoint / options.tag;
  const WholeCheckpoint checkpoint = open_whole_checkpoint(source, /*threads=*/4);
  const auto shards =
      shards_of(fp32_tensors(checkpoint, options.exclude_frozen), options.max_shard_size);
  const std::string stem = options.safetensors ? "model" : "pytorch_model",
                    suffix = options.safetensors ? ".safetensors" : ".bin";
  uint64_t total = 0, done = 0;
  for (const NamedTensors& shard : shards)
    for (const auto& [name, tensor] : shard) total += tensor.nbytes();

  if (fs::exists(options.output) && !fs::is_directory(options.output))
    throw std::runtime_error(options.output.string() +
                             " is a file; expected the folder to write the weights to");
  fs::create_directories(options.output);
  Fp32Report report{.files = static_cast<int>(shards.size()), .source = checkpoint.description};
  nlohmann::json index{{"metadata", {{"total_size", total}}},
                       {"weight_map", nlohmann::json::object()}};
  std::set<std::string> kept;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = file_name(stem, suffix, i, shards.size());
    report.bytes += write_shard(options.output / file, shards[i], options.safetensors);
    report.tensors += static_cast<int64_t>(shards[i].size());
    kept.insert(file);
    for (const auto& [name, tensor] : shards[i]) {
      index["weight_map"][name] = file;
      done += tensor.nbytes();
    }
    if (progress) progress(done, total);
  }
  if (shards.size() > 1) {
    const std::string file = stem + suffix + ".index.json";
    write_text_atomically(options.output / file, index.dump(2) + "\n");
    kept.insert(file);
  }
  remove_others(options.output, kept);
  return report;
}

uint64_t parse_size(const std::string& text) {
  uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  std::string unit(stop, end);
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  static const std::pair<const char*, uint64_t> units[] = {
      {"", 1},          {"KB", 1000},     {"MB", 1000'000}, {"GB", 1000'000'000},
      {"KIB", 1 << 10}, {"MIB", 1 << 20}, {"GIB", 1 << 30}, {"TB", 1000'000'000'000}};
  for (const auto& [name, factor] : units) {
    uint64_t bytes = 0;
    if (error == std::errc() && unit == name && number > 0 &&
        !__builtin_mul_overflow(number, factor, &bytes))
      return bytes;
  }
  throw std::invalid_argument("'" + text + "' is not a size; expected e.g. 5GB, 300MB or 2GiB");
}

}  // namespace anymesh
