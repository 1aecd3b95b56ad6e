#include "framework/format/whole/weights_files.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <unordered_map>

#include "framework/format/io/file_io.h"
#include "framework/format/layout/names.h"
#include "framework/format/torch_file/record_checksums.h"
#include "framework/format/torch_file/torch_file.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/util/json.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// Splits tensors into shards, in order. A tensor that does not fit starts a new shard, and a tensor
// larger than a shard gets its own. With `tied`, names of one storage stay together and count once.
// Adds the bytes of all tensors to `stored`.
std::vector<NamedTensors> shards_of(const NamedTensors& tensors, uint64_t max_size, bool tied,
                                    uint64_t& stored) {
  std::vector<NamedTensors> shards;
  std::unordered_map<const ByteSource*, size_t> shard_of;
  std::optional<size_t> open;  // the shard being filled
  uint64_t size = 0;
  for (const auto& named : tensors) {
    const ByteSource* storage = named.second.bytes.get();
    if (const auto known = shard_of.find(storage); known != shard_of.end()) {
      shards[known->second].push_back(named);
      continue;
    }
    const uint64_t bytes = named.second.nbytes();
    stored += bytes;
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

std::string file_name(const std::string& stem, const std::string& suffix, size_t i, size_t count) {
  if (count == 1) return stem + suffix;
  return stem + string_printf("-%05zu-of-%05zu", i + 1, count) + suffix;
}

StreamedFile streamed_shard(const fs::path& path, const NamedTensors& shard, bool safetensors) {
  if (safetensors) return streamed_safetensors(path, shard);
  return streamed_torch_file(path, Value::ordered_dict({shard.begin(), shard.end()}));
}

std::string index_of(const std::vector<WeightsFile>& files, uint64_t total_size) {
  nlohmann::json map = nlohmann::json::object();
  for (const WeightsFile& file : files)
    for (const auto& [name, tensor] : file.tensors) map[name] = file.name;
  const nlohmann::json index = {{"metadata", {{"total_size", total_size}}},
                                {"weight_map", std::move(map)}};
  return json_text(index, "the index", 2) + "\n";
}

}  // namespace

WrittenWeights write_weights(const NamedTensors& tensors, const WeightsOptions& options,
                             RecordChecksums& checks, const ProgressCallback& progress) {
  WrittenWeights written;
  auto shards = shards_of(tensors, options.max_shard_size, !options.safetensors, written.weights);
  if (shards.empty()) shards.emplace_back();
  const std::string &stem = options.stem, suffix = options.safetensors ? ".safetensors" : ".bin",
                    index = stem + suffix + kIndexSuffix;
  std::vector<StreamedFile> streamed;
  BuildPlan plan{.others = {index}};
  for (NamedTensors& shard : shards) {
    written.tensors += static_cast<int64_t>(shard.size());
    const std::string name = file_name(stem, suffix, written.files.size(), shards.size());
    plan.files.insert(name);
    streamed.push_back(streamed_shard(options.folder / name, shard, options.safetensors));
    written.files.push_back({name, streamed.back().layout.size, std::move(shard)});
  }
  options.prepare(plan);
  const WriteResult result = write_files(streamed, write_threads(), progress);
  checks.finish(write_threads());
  for (size_t i = 0; i < streamed.size(); ++i)
    written.listed.push_back(
        {written.files[i].name, written.files[i].bytes, result.crcs[i], host_name()});
  if (written.files.size() > 1) {
    const std::string text = index_of(written.files, written.weights);
    write_text_atomically(options.folder / index, text);
    written.listed.push_back(file_of_text(index, text));
  }
  return written;
}

bool is_weights_file(const std::string& name, bool safetensors) {
  static const std::regex bin(R"(pytorch_model(-\d{5}-of-\d{5})?\.bin(\.index\.json)?)"),
      safe(R"(model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?)");
  return std::regex_match(name, safetensors ? safe : bin);
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
  throw UserError("'" + text + "' is not a size; expected e.g. 5GB, 1.5GB or 300MB");
}

}  // namespace anymesh
