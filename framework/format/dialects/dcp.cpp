#include "framework/format/dialects/dcp.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <mutex>
#include <optional>
#include <set>

#include "framework/format/torch_file/pickle.h"
#include "framework/format/torch_file/torch_file.h"
#include "framework/util/errors.h"
#include "framework/util/printable.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// Decoded, a box takes some twenty times its part of the pickle.
constexpr uint64_t kMemory = 64 << 20, kMemoryOfByte = 32;

// The elements of an item's tensor.
class ItemBytes : public ByteSource {
 public:
  ItemBytes(std::string name, DcpItem item, DType dtype, Shape shape, RecordChecksums* checks)
      : name_(std::move(name)),
        item_(std::move(item)),
        expected_{dtype, std::move(shape), false, nullptr},
        checks_(checks) {}

  uint64_t size() const override { return expected_.nbytes(); }
  void read(uint64_t offset, std::span<std::byte> out) const override { bytes().read(offset, out); }
  std::vector<FileRange> places(uint64_t offset, uint64_t count) const override {
    return bytes().places(offset, count);
  }

 private:
  const ByteSource& bytes() const {
    std::call_once(opened_, [this] {
      const Value content = read_torch_file(item_.open(), checks_);
      const TensorRecord& tensor = content.as_tensor();
      if (tensor.dtype != expected_.dtype || tensor.shape != expected_.shape)
        content.fail("a " + Value(expected_).found() + " at offset " +
                     std::to_string(item_.offset) + ", a part of " + printable(name_));
      bytes_ = tensor.bytes;
    });
    return *bytes_;
  }

  std::string name_;
  DcpItem item_;
  TensorRecord expected_;
  RecordChecksums* checks_;
  mutable std::once_flag opened_;
  mutable BytesPtr bytes_;
};

class DcpReader {
 public:
  DcpReader(const fs::path& path, RecordChecksums* checks) : checks_(checks) {
    folder_.path = path;
    const File file(path / kDcpMetadata);
    std::vector<std::byte> pickle(file.size());
    file.read(0, pickle);
    const auto no_storage = [&](const std::string&, DType, int64_t) -> BytesPtr {
      throw DamagedFile(file.path().string() + ": has a tensor of its own");
    };
    metadata_ = decode_pickle(pickle, no_storage, file.path().string(),
                              kMemory + kMemoryOfByte * pickle.size());
    if (!metadata_.is_object() || !metadata_.contains("storage_data"))
      metadata_.fail("the Metadata of torch.distributed.checkpoint");
  }

  DcpFolder read() {
    for (const auto& [index, info] : metadata_.at("storage_data").entries()) locate(index, info);
    check_apart();
    const Value planned = metadata_.find("planner_data");
    if (planned.is_dict())
      for (const auto& [name, keys] : planned.entries()) read_keys(name.as_string(), keys);
    for (const auto& [key, entry] : metadata_.at("state_dict_metadata").entries()) {
      const std::string& name = key.as_string();
      if (folder_.keys.try_emplace(name, std::vector<std::string>{name}).second)
        folder_.order.push_back(name);
      if (entry.is_object("BytesStorageMetadata"))
        folder_.objects.emplace(name, item_of(name, "", entry));
      else
        folder_.tensors.emplace(name, tensor_of(name, entry));
    }
    std::erase_if(folder_.order, [&](const std::string& name) {
      return !folder_.tensors.contains(name) && !folder_.objects.contains(name);
    });
    return std::move(folder_);
  }

 private:
  void locate(const Value& index, const Value& info) {
    if (const Value by = info.find("transform_descriptors"); by && by.size() > 0)
      by.refuse("none: transformed items are not known");
    const std::string name = info.at("relative_path").as_string();
    if (name.empty() || fs::path(name) != fs::path(name).filename() || name == "..")
      info.at("relative_path").fail("the name of a file in the folder");
    std::shared_ptr<const File>& file = files_[name];
    if (!file) file = std::make_shared<const File>(folder_.path / name);
    const int64_t offset = info.at("offset").as_int(), length = info.at("length").as_int();
    const auto size = static_cast<int64_t>(file->size());
    if (offset < 0 || length < 0 || offset > size || length > size - offset)
      throw DamagedFile(file->path().string() + ": has " + std::to_string(size) +
                        " bytes; an item of " + std::to_string(length) + " at offset " +
                        std::to_string(offset) + " lies outside");
    const DcpItem item{file, static_cast<uint64_t>(offset), static_cast<uint64_t>(length)};
    const Value at = index.find("offset");
    if (!places_
             .emplace(std::pair(index.at("fqn").as_string(), at ? to_string(at.as_shape()) : ""),
                      item)
             .second)
      index.fail("no second item of this tensor and place");
    folder_.items.push_back(item);
  }

  // Two items with the same bytes would be a tensor that is another's.
  void check_apart() const {
    std::vector<const DcpItem*> items;
    for (const DcpItem& item : folder_.items) items.push_back(&item);
    std::ranges::sort(items, {}, [](const DcpItem* i) { return std::pair(i->file, i->offset); });
    for (size_t i = 1; i < items.size(); ++i) {
      const DcpItem &last = *items[i - 1], &item = *items[i];
      if (last.file == item.file && item.offset < last.offset + last.length)
        throw DamagedFile(item.file->path().string() + ": the items at offsets " +
                          std::to_string(last.offset) + " and " + std::to_string(item.offset) +
                          " overlap");
    }
  }

  void read_keys(const std::string& name, const Value& keys) {
    const auto [path, is_new] = folder_.keys.try_emplace(name);
    if (!is_new) keys.fail("the keys of a name once");
    folder_.order.push_back(name);
    for (const Value& key : keys.items())
      path->second.push_back(key.is_int() ? std::to_string(key.as_int()) : key.as_string());
  }

  DcpItem item_of(const std::string& name, const std::string& place, const Value& entry) const {
    const auto found = places_.find({name, place});
    if (found == places_.end())
      entry.fail("a part of " + printable(name) + (place.empty() ? "" : " at " + place) +
                 " that storage_data has");
    return found->second;
  }

  TensorRecord tensor_of(const std::string& name, const Value& entry) {
    const Value properties = entry.at("properties");
    const auto& state = properties.as_object().state;
    if (!state) properties.fail("a tensor's properties");
    const Value named = state->is_dict() ? state->at("dtype") : state->at(0);
    const auto dtype = dtype_of_name(named.as_global().name);
    if (!dtype) named.refuse("a dtype that is known");
    const Shape shape = entry.at("size").as_shape();
    std::vector<TensorBox> boxes;
    for (const Value& chunk : entry.at("chunks").items()) {
      TensorBox box{chunk.at("offsets").as_shape(), chunk.at("sizes").as_shape(), nullptr};
      if (std::ranges::all_of(box.shape, [](int64_t size) { return size > 0; }))
        box.bytes = std::make_shared<ItemBytes>(name, item_of(name, to_string(box.offsets), chunk),
                                                *dtype, box.shape, checks_);
      boxes.push_back(std::move(box));
    }
    if (boxes.size() > 1) folder_.cut[name] = boxes;
    return tensor_of_boxes(name, *dtype, shape, std::move(boxes));
  }

  RecordChecksums* checks_;
  DcpFolder folder_;
  Value metadata_;
  std::map<std::string, std::shared_ptr<const File>> files_;
  std::map<std::pair<std::string, std::string>, DcpItem> places_;  // by name and offsets
};

constexpr std::string_view kState = "state.", kGroups = "param_groups.", kMaster = "fp32_param",
                           kDistributedMaster = "param", kMegatron = "optimizer.";

// Returns what stands before an optimizer's keys: "optim.", or nothing; none without an optimizer.
std::optional<std::string> optimizer_prefix(const DcpFolder& folder) {
  for (const auto& [name, keys] : folder.keys) {
    const size_t point = name.find('.');
    if (name.starts_with(kGroups)) return "";
    if (point != std::string::npos && std::string_view(name).substr(point + 1).starts_with(kGroups))
      return name.substr(0, point + 1);
  }
  const std::string megatron(kMegatron), states = megatron + std::string(kState);
  const auto first = folder.tensors.lower_bound(states);
  if (first != folder.tensors.end() && first->first.starts_with(states)) return megatron;
  return std::nullopt;
}

using Parameters = std::map<std::string, DcpModel::Parameter>;

// Returns the model's tensors: of the dicts that were saved beside the optimizer's, or of the
// tensors outside a dict, those with the most elements.
DcpModel weights_of(const DcpFolder& folder,
                    const std::function<bool(const std::string&)>& others) {
  std::map<std::string, DcpModel> dicts;  // "": outside
  std::map<std::string, int64_t> elements;
  for (const std::string& name : folder.order) {
    const auto tensor = folder.tensors.find(name);
    if (tensor == folder.tensors.end() || others(name)) continue;
    const auto& keys = folder.keys.at(name);
    const std::string dict = keys.size() > 1 ? keys[0] : "";
    const std::string within =
        name.substr(dict.empty() ? 0 : std::min(dict.size() + 1, name.size()));
    dicts[dict].parameters[within] = {tensor->second, {}, folder.cut.contains(name)};
    dicts[dict].order.push_back(within);
    elements[dict] += tensor->second.numel();
  }
  const auto most =
      std::ranges::max_element(elements, {}, [](const auto& dict) { return dict.second; });
  if (most == elements.end())
    throw Unreadable(
        folder.path.string() + ": has no tensors of a model; it has " +
        std::to_string(folder.keys.size()) + " entries" +
        (folder.keys.empty() ? "" : ", such as " + printable(folder.keys.begin()->first)));
  return std::move(dicts[most->first]);
}

// Splits "layers.0.weight.exp_avg", or Megatron-Core's "exp_avg.layers.0.weight", into a parameter
// and a state.
std::optional<std::pair<std::string, std::string>> split_state(const std::string& name,
                                                               const Parameters& parameters) {
  for (size_t at = name.rfind('.'); at != std::string::npos && at > 0; at = name.rfind('.', at - 1))
    if (parameters.contains(name.substr(0, at)))
      return std::pair(name.substr(0, at), name.substr(at + 1));
  const size_t at = name.find('.');
  if (at != std::string::npos && parameters.contains(name.substr(at + 1)))
    return std::pair(name.substr(at + 1), name.substr(0, at));
  return std::nullopt;
}

// Returns an entry that is a tensor or another object.
Value content_of(const DcpFolder& folder, const std::string& name) {
  const auto tensor = folder.tensors.find(name);
  return tensor != folder.tensors.end() ? Value(tensor->second)
                                        : read_torch_file(folder.objects.at(name).open());
}

// Whether it is an entry of a list of groups: ..., param_groups, 0, lr.
bool is_nested(const std::vector<std::string>& keys) {
  return keys.size() >= 3 && keys[keys.size() - 3] + "." == kGroups;
}

// Returns the groups from their list.
std::vector<DcpModel::Group> nested_groups(const DcpFolder& folder,
                                           const std::vector<std::string>& names) {
  std::vector<DcpModel::Group> groups;
  std::map<std::string, size_t> places;  // by index in the list
  for (const std::string& name : names) {
    const std::vector<std::string>& keys = folder.keys.at(name);
    if (!is_nested(keys)) continue;
    const auto [place, is_new] = places.try_emplace(keys[keys.size() - 2], groups.size());
    if (is_new) groups.push_back({{}, Value::dict()});
    DcpModel::Group& group = groups[place->second];
    const Value content = content_of(folder, name);
    if (keys.back() == keys::kParams)
      group.names = content.as_strings();
    else
      group.settings.set(keys.back(), content);
  }
  return groups;
}

// Returns the groups of parameters that follow one another and have the same settings.
std::vector<DcpModel::Group> flattened_groups(const DcpFolder& folder,
                                              const std::vector<std::string>& names, size_t prefix,
                                              const Parameters& parameters) {
  std::vector<DcpModel::Group> each;  // of one parameter
  std::map<std::string, size_t> places;
  for (const std::string& name : names) {
    const auto setting = split_state(name.substr(prefix), parameters);
    if (!setting)
      throw Unreadable(folder.path.string() + ": " + printable(name) +
                       " is no setting of a parameter that is there");
    const auto [place, is_new] = places.try_emplace(setting->first, each.size());
    if (is_new) each.push_back({{setting->first}, Value::dict()});
    each[place->second].settings.set(setting->second, content_of(folder, name));
  }
  std::vector<DcpModel::Group> groups;
  for (DcpModel::Group& group : each) {
    if (!groups.empty() && groups.back().settings == group.settings)
      groups.back().names.push_back(group.names[0]);
    else
      groups.push_back(std::move(group));
  }
  return groups;
}

// Throws unless the groups have parameters that are there, each once.
void check_groups(const DcpFolder& folder, const DcpModel& model) {
  std::set<std::string> known;
  for (const DcpModel::Group& group : model.groups)
    for (const std::string& name : group.names)
      if (!model.parameters.contains(name) || !known.insert(name).second)
        throw Unreadable(folder.path.string() + ": " + std::string(kGroups) + "params names " +
                         printable(name) +
                         (known.contains(name) ? " twice" : ", which the model does not have"));
}

}  // namespace

ZipReader DcpItem::open() const {
  return ZipReader(std::make_shared<const File>(file, offset, length));
}

TensorRecord step_tensor(const Value& step) {
  if (step.is_tensor()) return step.as_tensor();
  const auto number = static_cast<float>(step.as_double());
  std::vector<std::byte> bytes(sizeof number);
  std::memcpy(bytes.data(), &number, sizeof number);
  return {DType::kFloat32, {}, false, std::make_shared<OwnedBytes>(std::move(bytes))};
}

std::vector<fs::path> dcp_folders(const fs::path& path) {
  if (fs::exists(path / kDcpMetadata)) return {path};
  const fs::path model = path / "pytorch_model_fsdp_0", optimizer = path / "optimizer_0";
  if (!fs::exists(model / kDcpMetadata)) return {};
  if (!fs::exists(optimizer / kDcpMetadata)) return {model};
  return {model, optimizer};
}

DcpFolder read_dcp(const fs::path& path, RecordChecksums* checks) {
  std::optional<DcpFolder> whole;
  for (const fs::path& folder : dcp_folders(path)) {
    DcpFolder part = DcpReader(folder, checks).read();
    if (!whole) {
      whole = std::move(part);
      continue;
    }
    whole->tensors.merge(part.tensors);
    whole->objects.merge(part.objects);
    whole->keys.merge(part.keys);
    whole->cut.merge(part.cut);
    std::ranges::move(part.order, std::back_inserter(whole->order));
    std::ranges::move(part.items, std::back_inserter(whole->items));
    if (!part.keys.empty())
      throw DamagedFile(folder.string() + ": has " + printable(part.keys.begin()->first) +
                        ", which the folder beside it has too");
  }
  if (!whole) throw UserError(path.string() + ": has no " + std::string(kDcpMetadata));
  whole->path = path;
  return *std::move(whole);
}

DcpModel dcp_model(const DcpFolder& folder) {
  const std::optional<std::string> prefix = optimizer_prefix(folder);
  const std::string states = prefix.value_or("") + std::string(kState),
                    groups = prefix.value_or("") + std::string(kGroups);
  const auto is_state = [&](const std::string& name) { return prefix && name.starts_with(states); };
  const auto is_group = [&](const std::string& name) { return prefix && name.starts_with(groups); };
  const auto is_optimizers = [&](const std::string& name) {
    return prefix &&
           (prefix->empty() ? is_state(name) || is_group(name) : name.starts_with(*prefix));
  };
  DcpModel model = weights_of(folder, is_optimizers);
  std::vector<std::string> settings;
  for (const std::string& name : folder.order) {
    if (is_group(name)) settings.push_back(name);
    const auto tensor = folder.tensors.find(name);
    if (tensor == folder.tensors.end() || is_group(name) || !is_optimizers(name)) continue;
    const auto state =
        is_state(name) ? split_state(name.substr(states.size()), model.parameters) : std::nullopt;
    if (!state)
      throw Unreadable(folder.path.string() + ": " + printable(name) +
                       " is no state of a parameter that is there");
    DcpModel::Parameter& parameter = model.parameters.at(state->first);
    if (state->second != kMaster && (state->second != kDistributedMaster || prefix != kMegatron))
      parameter.states.emplace(state->second, tensor->second);
    else if (tensor->second.shape == parameter.weight.shape)
      parameter.weight = tensor->second;
    else
      throw Unreadable(folder.path.string() + ": " + printable(name) + " has shape " +
                       to_string(tensor->second.shape) + ", and its weight " +
                       to_string(parameter.weight.shape));
  }
  const bool nested = std::ranges::any_of(
      settings, [&](const std::string& name) { return is_nested(folder.keys.at(name)); });
  model.groups = nested ? nested_groups(folder, settings)
                        : flattened_groups(folder, settings, groups.size(), model.parameters);
  check_groups(folder, model);
  return model;
}

}  // namespace anymesh
