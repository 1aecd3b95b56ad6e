#include "framework/format/dialects/dcp_writer.h"

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "framework/format/layout/names.h"
#include "framework/format/torch_file/pickle.h"
#include "framework/format/torch_file/torch_file.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using Attributes = std::vector<Value::Entry>;

constexpr uint64_t kChunk = 64 << 20;
constexpr const char *kMetadataModule = "torch.distributed.checkpoint.metadata",
                     *kDataFile = "__0_0.distcp";

Value metadata_object(const char* name, Attributes attributes) {
  return Value::object(kMetadataModule, name, std::move(attributes));
}

Value called(std::string module, std::string name, Value argument) {
  const Value::Global type{std::move(module), std::move(name)};
  return Value::Object{.type = std::make_shared<const Value::Global>(type),
                       .call = true,
                       .args = {std::move(argument)}};
}

// TensorProperties: dtype, layout, requires_grad, memory format, pin_memory.
Value properties_of(DType dtype) {
  Value properties = metadata_object("TensorProperties", {});
  Value::Object object = properties.as_object();
  object.state = std::make_shared<Value>(Value::tuple(
      {Value::dtype(dtype), called("torch.serialization", "_get_layout", "torch.strided"), false,
       called(kMetadataModule, "_MEM_FORMAT_ENCODING", 0), false}));
  return object;
}

// Joins torch files, end to end.
class ItemRow {
 public:
  // Returns the offset of the item in the file.
  uint64_t add(const Value& content) {
    const uint64_t offset = layout_.size;
    items_.push_back(streamed_torch_file("archive", content));
    append(layout_, items_.back().layout);
    return offset;
  }
  uint64_t size() const { return layout_.size; }

  StreamedFile file(const fs::path& path) && {
    const auto items = std::make_shared<const std::vector<StreamedFile>>(std::move(items_));
    return {path, std::move(layout_), [items](std::span<const uint32_t> crcs) {
              FileLayout whole;
              for (const StreamedFile& item : *items) {
                const auto tensors = std::ranges::count_if(
                    item.layout.pieces, [](const auto& piece) { return piece.source != nullptr; });
                append(whole, item.with_crcs(crcs.first(static_cast<size_t>(tensors))));
                crcs = crcs.subspan(static_cast<size_t>(tensors));
              }
              return whole;
            }};
  }

 private:
  static void append(FileLayout& whole, const FileLayout& item) {
    for (const FileLayout::Piece& piece : item.pieces)
      piece.source ? whole.add(piece.source) : whole.add(piece.text);
  }

  std::vector<StreamedFile> items_;
  FileLayout layout_;
};

std::string name_of(const std::vector<Value>& keys) {
  std::string name;
  for (const Value& key : keys)
    name +=
        (name.empty() ? "" : ".") + (key.is_int() ? std::to_string(key.as_int()) : key.as_string());
  return name;
}

// Collects what .metadata says of the items.
class MetadataOfItems {
 public:
  void add(const DcpEntry& entry) {
    const std::string name = name_of(entry.keys);
    planned_.emplace_back(name, Value::tuple(entry.keys));
    if (entry.content.is_tensor()) {
      states_.emplace_back(name, tensor(name, entry.content.as_tensor()));
    } else {
      states_.emplace_back(name, metadata_object("BytesStorageMetadata", {}));
      store({{"fqn", name}}, entry.content);
    }
  }

  std::vector<StreamedFile> files(const fs::path& folder) && {
    const Value metadata =
        metadata_object("Metadata", {{"state_dict_metadata", Value::dict(std::move(states_))},
                                     {"planner_data", Value::dict(std::move(planned_))},
                                     {"storage_data", Value::dict(std::move(stored_))},
                                     {"storage_meta", {}}});
    StreamedFile file{folder / kDcpMetadata, {}};
    file.layout.add(encode_pickle(metadata, [](const TensorRecord&) -> std::string {
      throw std::logic_error("a tensor in .metadata");
    }));
    return {std::move(items_).file(folder / kDataFile), std::move(file)};
  }

 private:
  Value tensor(const std::string& name, const TensorRecord& whole) {
    Value chunks = Value::list();
    const int64_t rows = whole.shape.empty() ? 1 : whole.shape[0];
    const uint64_t row = rows == 0 ? 0 : whole.nbytes() / static_cast<uint64_t>(rows);
    const int64_t most = static_cast<int64_t>(kChunk / std::max<uint64_t>(1, row));
    int64_t first = 0;
    do {  // a tensor without rows has a chunk too
      Shape shape = whole.shape, offsets(shape.size());
      if (!shape.empty()) {
        offsets[0] = first;
        shape[0] = std::min(std::max<int64_t>(1, most), rows - first);
      }
      first += shape.empty() ? 1 : shape[0];
      chunks.push_back(metadata_object("ChunkStorageMetadata", {{"offsets", Value::size(offsets)},
                                                                {"sizes", Value::size(shape)}}));
      const int64_t begin =
          shape.empty() ? 0 : offsets[0] * static_cast<int64_t>(row / element_size(whole.dtype));
      store({{"fqn", name},
             {"offset", Value::size(offsets)},
             {"index", static_cast<int64_t>(chunks.size() - 1)}},
            whole.slice(begin, shape));
    } while (first < rows);
    return metadata_object("TensorStorageMetadata", {{"properties", properties_of(whole.dtype)},
                                                     {"size", Value::size(whole.shape)},
                                                     {"chunks", chunks}});
  }

  void store(Attributes index, const Value& content) {
    const uint64_t offset = items_.add(content);
    stored_.emplace_back(metadata_object("MetadataIndex", std::move(index)),
                         Value::object("torch.distributed.checkpoint.filesystem", "_StorageInfo",
                                       {{"relative_path", kDataFile},
                                        {"offset", static_cast<int64_t>(offset)},
                                        {"length", static_cast<int64_t>(items_.size() - offset)}}));
  }

  ItemRow items_;
  Attributes states_, planned_, stored_;
};

}  // namespace

std::vector<StreamedFile> dcp_files(const fs::path& folder, const std::vector<DcpEntry>& entries) {
  MetadataOfItems metadata;
  for (const DcpEntry& entry : entries) metadata.add(entry);
  return std::move(metadata).files(folder);
}

std::vector<DcpEntry> dcp_entries(const DcpModel& model, const std::string& model_key,
                                  const std::string& optimizer_key) {
  std::vector<DcpEntry> entries;
  const Value optimizer = optimizer_key, groups = keys::kParamGroups;
  for (const std::string& name : model.order)
    entries.push_back({{model_key, name}, model.parameters.at(name).weight});
  for (const DcpModel::Group& group : model.groups)
    for (const std::string& name : group.names)
      for (const auto& [state, tensor] : model.parameters.at(name).states)
        entries.push_back({{optimizer, keys::kState, name, state}, tensor});
  for (size_t g = 0; g < model.groups.size(); ++g) {
    const auto& [names, settings] = model.groups[g];
    const auto number = static_cast<int64_t>(g);
    entries.push_back({{optimizer, groups, number, keys::kParams}, Value::list_of(names)});
    for (const auto& [key, value] : settings.entries())
      entries.push_back({{optimizer, groups, number, key}, value});
    for (const std::string& name : names)
      for (const auto& [key, value] : settings.entries())
        if (key != Value(keys::kParamNames))
          entries.push_back(
              {{optimizer, std::string(keys::kParamGroups) + "." + name + "." + key.as_string()},
               value});
  }
  return entries;
}

}  // namespace anymesh
