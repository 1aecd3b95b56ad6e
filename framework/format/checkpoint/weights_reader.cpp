#include "framework/format/checkpoint/weights_reader.h"

#include <algorithm>
#include <set>

#include "framework/format/io/file_io.h"
#include "framework/format/layout/names.h"
#include "framework/format/torch_file/safetensors.h"
#include "framework/format/torch_file/torch_file.h"
#include "framework/util/errors.h"
#include "framework/util/json.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxIndex = 64 << 20;  // some 500,000 tensors

// Reads which file has each tensor, by an index.
std::map<std::string, fs::path> read_index(const fs::path& entry) {
  const auto index =
      nlohmann::json::parse(bounded(read_text(entry, kMaxIndex), entry), nullptr, false);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  std::map<std::string, fs::path> files;
  if (map == index.end() || !map->is_structured() || map->empty())
    throw DamagedFile(entry.string() + ": has no weight_map");
  for (const auto& [name, part] : map->items()) {
    const fs::path beside = part.is_string() ? part.get<std::string>() : "";
    if (beside.empty() || beside != beside.filename())
      throw DamagedFile(entry.string() + ": " + printable(part.dump()) + " is no file beside it");
    files[name] = entry.parent_path() / beside;
  }
  return files;
}

// Returns the dict inside a trainer's own, and adds its key to `inside`.
Value innermost(Value weights, std::string& inside) {
  constexpr const char* kKeys[] = {"state_dict", "model_state_dict", "model", "module"};
  const auto holds_dict = [&](const char* key) { return weights.find(key).is_dict(); };
  while (weights.is_dict()) {
    const auto key = std::ranges::find_if(kKeys, holds_dict);
    if (key == std::end(kKeys)) break;
    inside = *key;
    weights = weights.find(inside);
  }
  return weights;
}

}  // namespace

fs::path weights_entry(const fs::path& folder) {
  for (const fs::path file : {"model.safetensors", kWeightsFile.data()}) {
    for (const fs::path& entry : {folder / file, folder / (file.string() + kIndexSuffix)})
      if (fs::exists(entry)) return entry;
  }
  return {};
}

Value read_weights_file(const fs::path& file, RecordChecksums* checks) {
  if (file.extension() != ".safetensors") return read_torch_file(file, checks);
  const NamedTensors tensors = read_safetensors(file);
  return Value::dict({tensors.begin(), tensors.end()}).named(file.string());
}

StoredWeights read_weights(const fs::path& path, RecordChecksums* checks) {
  const bool folder = fs::is_directory(path);
  const fs::path entry = folder ? weights_entry(path) : path;
  StoredWeights weights;
  if (entry.string().ends_with(kIndexSuffix)) weights.absent = read_index(entry);
  const std::map<std::string, fs::path> listed = weights.absent;
  std::set<fs::path> files;
  for (const auto& [name, file] : listed) files.insert(file);
  if (listed.empty()) files = {entry};
  for (const fs::path& file : files) {
    Value content = read_weights_file(file, checks);
    if (folder) content = innermost(content, weights.inside);
    for (const auto& [key, tensor] : content.entries()) {
      const std::string name = key.as_string();
      if (const auto found = listed.find(name); found != listed.end() && found->second != file)
        continue;
      if (!weights.tensors.emplace(name, tensor).second)
        tensor.fail("no second tensor of this name");
      weights.absent.erase(name);
    }
  }
  return weights;
}

}  // namespace anymesh
