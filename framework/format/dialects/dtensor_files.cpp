#include "framework/format/dialects/dtensor_files.h"

#include <algorithm>
#include <charconv>
#include <span>

#include "framework/format/dialects/box_tensor.h"
#include "framework/format/dialects/deepspeed_view.h"
#include "framework/format/layout/names.h"
#include "framework/format/torch_file/torch_file.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kModelFiles = "model_world_size_", kEnd = "_rank_0.pt";
constexpr int kMostRanks = 1 << 16;

// Returns the number of ranks that the name of rank 0's file tells; 0: it is no such file.
int world_size_in(const std::string& file) {
  if (!file.starts_with(kModelFiles) || !file.ends_with(kEnd)) return 0;
  const char *begin = file.data() + kModelFiles.size(),
             *end = file.data() + file.size() - kEnd.size();
  int size = 0;
  const auto [stop, error] = std::from_chars(begin, end, size);
  return error == std::errc() && stop == end && size > 0 && size <= kMostRanks ? size : 0;
}

int world_size_of(const fs::path& folder) {
  int found = 0;
  std::error_code unreadable;
  for (const auto& entry : fs::directory_iterator(folder, unreadable)) {
    const int size = world_size_in(entry.path().filename());
    if (size > 0 && found > 0)
      throw Unreadable(folder.string() + ": has files of " + std::to_string(found) + " and of " +
                       std::to_string(size) + " ranks; move those of one run elsewhere");
    found = std::max(found, size);
  }
  return found;
}

// A rank's part of a tensor.
struct Part {
  Shape whole;
  TensorBox box;
  DType dtype;
  bool operator==(const Part& other) const {
    return whole == other.whole && box.offsets == other.box.offsets &&
           box.shape == other.box.shape && dtype == other.dtype;
  }
};

// How dims of the mesh cut a dim of the tensor: (parts, this rank's), the outermost first. FSDP
// cuts what tp has cut, but comes first in the mesh; its split_factor is the number of tp's parts.
using Cuts = std::vector<std::pair<int64_t, int64_t>>;

Cuts cuts_of(const Value& placements, size_t dim, const Shape& mesh, const Shape& coordinate) {
  Cuts cuts, strided;
  for (size_t d = 0; d < mesh.size(); ++d) {
    const Value placement = placements.at(d);
    if (placement.is_object("Replicate")) continue;
    const bool is_strided = placement.is_object("_StridedShard");
    if (placement.at("dim").as_int() != static_cast<int64_t>(dim)) continue;
    (is_strided ? strided : cuts).emplace_back(mesh[d], coordinate[d]);
    if (!is_strided) continue;
    int64_t inner = 1;
    for (size_t later = d + 1; later < mesh.size(); ++later)
      if (placements.at(later).is_object("Shard") &&
          placements.at(later).at("dim") == placement.at("dim"))
        inner *= mesh[later];
    if (strided.size() > 1 || inner != placement.at("split_factor").as_int())
      placement.refuse("a split_factor of " + std::to_string(inner) + ", as later dims cut");
  }
  cuts.insert(cuts.end(), strided.begin(), strided.end());
  return cuts;
}

// Returns the part of a DTensor that its rank has.
Part part_of(const Value& value) {
  if (value.is_tensor()) {
    const TensorRecord& tensor = value.as_tensor();
    return {
        tensor.shape, {Shape(tensor.shape.size(), 0), tensor.shape, tensor.bytes}, tensor.dtype};
  }
  if (!value.is_object("_rebuild_from_type_v2")) value.refuse("a tensor or a DTensor");
  const auto& args = value.as_object().args;  // (function, class, its arguments, (dict, slots))
  if (args.size() != 4 || !args[3].is_sequence() || args[3].size() != 2) value.refuse("a DTensor");
  const Value attributes = args[3].at(1), spec = attributes.at("_spec"), mesh = spec.at("mesh"),
              placements = spec.at("placements"), layout = mesh.find("_layout");
  const TensorRecord local = attributes.at("_local_tensor").as_tensor();
  const Shape sizes = layout ? layout.at("shape").as_shape() : mesh.at("mesh").as_tensor().shape,
              coordinate = mesh.at("_coordinate_on_dim").as_shape();
  Part part{args[2].at(2).as_shape(), {{}, {}, local.bytes}, local.dtype};
  if (coordinate.size() != sizes.size() || placements.size() != sizes.size())
    placements.fail(std::to_string(sizes.size()) + ", one for each dim of the mesh");
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (coordinate[d] < 0 || coordinate[d] >= sizes[d] || sizes[d] > kMostRanks)
      mesh.fail("a place within a mesh of at most " + std::to_string(kMostRanks) + " ranks");
    const Value placement = placements.at(d);
    if (placement.is_object("Replicate")) continue;
    if (!placement.is_object("Shard") && !placement.is_object("_StridedShard"))
      placement.refuse("Shard, _StridedShard or Replicate");
    if (const int64_t dim = placement.at("dim").as_int(); dim < 0 || dim >= std::ssize(part.whole))
      placement.at("dim").fail("a dim of the tensor");
  }
  for (size_t dim = 0; dim < part.whole.size(); ++dim) {
    int64_t begin = 0, count = part.whole[dim];
    for (const auto& [parts, own] : cuts_of(placements, dim, sizes, coordinate)) {
      const int64_t each = count / parts + (count % parts != 0),
                    first = std::min(count, own * each);
      begin += first;
      count = std::min(each, count - first);
    }
    part.box.offsets.push_back(begin);
    part.box.shape.push_back(count);
  }
  if (part.box.shape != local.shape)
    attributes.at("_local_tensor").fail("one of " + to_string(part.box.shape) + ", as cut");
  return part;
}

// Returns the tensor that all ranks have together.
TensorRecord joined_ranks(const std::string& name, const std::vector<Value>& ranks,
                          bool* cut = nullptr) {
  std::vector<TensorBox> boxes;
  std::vector<Part> kept;
  for (const Value& rank : ranks) {
    Part part = part_of(rank);
    if (!kept.empty() && (part.whole != kept[0].whole || part.dtype != kept[0].dtype))
      rank.fail("what rank 0 has, " + to_string(kept[0].whole) + " of " +
                std::string(dtype_name(kept[0].dtype)));
    if (std::ranges::find(kept, part) == kept.end()) kept.push_back(std::move(part));
  }
  for (const Part& part : kept) boxes.push_back(part.box);
  if (cut) *cut = boxes.size() > 1;
  return tensor_of_boxes(name, kept[0].dtype, kept[0].whole, std::move(boxes));
}

// Returns each rank's file.
std::vector<Value> read_ranks(const fs::path& folder, const std::string& prefix, int size,
                              RecordChecksums* checks) {
  std::vector<Value> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.push_back(read_torch_file(
        folder / (prefix + std::to_string(size) + "_rank_" + std::to_string(rank) + ".pt"),
        checks));
  return ranks;
}

// Returns the entry of each rank.
template <class Key>
std::vector<Value> entries_of(const std::vector<Value>& ranks, const Key& key) {
  std::vector<Value> entries;
  for (const Value& rank : ranks) {
    entries.push_back(rank.find(key));
    if (!entries.back()) rank.fail("an entry that rank 0 has");
  }
  return entries;
}

// Returns the names of a group's parameters; none if they are not known.
std::vector<std::string> names_of_group(const DcpModel& model, const Value& groups,
                                        const Value& group) {
  const std::vector<Value> params = group.at(keys::kParams).items();
  if (!params.empty() && params[0].is_string()) return group.at(keys::kParams).as_strings();
  if (groups.size() != 1 || params.size() > model.order.size()) return {};
  for (size_t i = 0; i < params.size(); ++i)
    if (params[i].as_int() != static_cast<int64_t>(i)) return {};
  const std::span names(model.order), own = names.first(params.size());
  const auto weight = [&](const std::string& name) { return model.parameters.at(name).weight; };
  const auto is_tied = [&](const std::string& second) {
    return std::ranges::any_of(
        own, [&](const std::string& first) { return are_same(weight(second), weight(first)); });
  };
  if (!std::ranges::all_of(names.subspan(params.size()), is_tied)) return {};
  return {own.begin(), own.end()};
}

void add_states(DcpModel& model, const std::vector<Value>& ranks) {
  const Value groups = ranks[0].at(keys::kParamGroups);
  const std::vector<Value> states = entries_of(ranks, keys::kState);
  for (const Value& group : groups.items()) {
    const std::vector<std::string> names = names_of_group(model, groups, group);
    const std::vector<Value> params = group.at(keys::kParams).items();
    const auto refuse = [&](const std::string& why) {
      throw Unreadable(group.where() + ": " + why);
    };
    if (names.size() != params.size())
      refuse(
          "its params are numbers, and which parameters they are is known only of one group that "
          "has all");
    for (size_t i = 0; i < names.size(); ++i) {
      const auto found = model.parameters.find(names[i]);
      if (found == model.parameters.end()) refuse("has " + names[i] + ", which the model has not");
      const Value first = params[i].is_string() ? states[0].find(params[i].as_string())
                                                : states[0].find(params[i].as_int());
      if (!first) continue;  // it has had no gradient
      const std::vector<Value> own = params[i].is_string()
                                         ? entries_of(states, params[i].as_string())
                                         : entries_of(states, params[i].as_int());
      for (const auto& [key, value] : first.entries()) {
        if (!value.is_tensor() && !value.is_object()) continue;
        const std::string& state = key.as_string();
        const TensorRecord tensor = joined_ranks(names[i] + "'s " + state, entries_of(own, state));
        const Shape& shape = found->second.weight.shape;
        if (state != kStepState && tensor.shape != shape)
          refuse(state + " of " + names[i] + " has the shape " + to_string(tensor.shape) +
                 ", the parameter " + to_string(shape));
        found->second.states.emplace(state, tensor);
      }
    }
    Value settings = group;
    model.groups.push_back({names, settings.erase(keys::kParams)});
  }
}

}  // namespace

bool has_dtensor_files(const fs::path& folder) { return world_size_of(folder) > 0; }

DcpModel read_dtensor_files(const fs::path& folder, RecordChecksums* checks) {
  const int size = world_size_of(folder);
  const std::vector<Value> ranks = read_ranks(folder, std::string(kModelFiles), size, checks);
  DcpModel model;
  for (const auto& [key, value] : ranks[0].entries()) {
    const std::string& name = key.as_string();
    DcpModel::Parameter& parameter = model.parameters[name];
    parameter.weight = joined_ranks(name, entries_of(ranks, name), &parameter.cut);
    model.order.push_back(name);
  }
  const std::string optimizer = "optim_world_size_";
  if (!fs::exists(folder / (optimizer + std::to_string(size) + std::string(kEnd)))) return model;
  DcpModel with_states = model;
  try {
    add_states(with_states, read_ranks(folder, optimizer, size, checks));
    return with_states;
  } catch (const Unreadable& error) {
    model.states_refused = error.what();
    return model;
  }
}

}  // namespace anymesh
