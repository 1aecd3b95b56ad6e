#include "framework/format/dialects/distributed_optimizer.h"

#include <algorithm>
#include <map>
#include <set>

#include "framework/format/dialects/box_tensor.h"
#include "framework/format/dialects/torch_dist.h"
#include "framework/format/sharded/tensor_views.h"
#include "framework/util/errors.h"
#include "framework/util/printable.h"

namespace anymesh {
namespace {

constexpr int64_t kMostParts = 1 << 14, kMostPartsOfAll = 1 << 18, kMostComparisons = 1 << 20;
constexpr int64_t kAligned = 64;  // parameters begin there in a bucket; their other parts anywhere
constexpr std::string_view kStates = "optimizer.state.", kMasters = "optimizer.state.param.";

// Returns a state that is a grid of ranks' flat parts in the weight's shape, others as they are.
// `left` is how many parts the folder may still have.
TensorRecord unflattened(const std::string& name, const TensorRecord& state, const Shape& shape,
                         int64_t& left) {
  const size_t dims = shape.size();
  if (state.shape.size() != dims + 1 || state.numel() != numel(shape)) return state;
  Shape part = shape;
  int64_t parts = 1;
  for (size_t dim = 0; dim < dims; ++dim) {
    const int64_t count = state.shape[dim];
    if (count <= 0 || shape[dim] % count != 0) return state;
    if (count > std::min(kMostParts, left) / parts)
      throw Unreadable(printable(name) + ": is cut into more parts than can be joined");
    part[dim] /= count;
    parts *= count;
  }
  left -= parts;
  std::vector<TensorBox> boxes;
  for (int64_t i = 0; i < parts; ++i) {
    TensorBox box{Shape(dims), part, state.slice(i * numel(part), part).bytes};
    int64_t rest = i;
    for (size_t dim = dims; dim-- > 0; rest /= state.shape[dim])
      box.offsets[dim] = rest % state.shape[dim] * part[dim];
    boxes.push_back(std::move(box));
  }
  return tensor_of_boxes(name, state.dtype, shape, std::move(boxes));
}

// Returns the bytes of some elements, rounded.
std::string rounded(const TensorRecord& tensor, int64_t begin, int64_t count, DType dtype) {
  const TensorRecord some = as_dtype(tensor.slice(begin, {count}), dtype);
  std::string bytes(some.nbytes(), '\0');
  some.bytes->read(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

// Whether a tensor from element `at` on, rounded, has the bits of another at three places.
bool has_bits_of(const TensorRecord& other, const TensorRecord& tensor, int64_t at = 0) {
  const int64_t size = other.numel(), count = std::min<int64_t>(size, 1024);
  if (size > tensor.numel() - at) return false;
  return std::ranges::all_of(Shape{0, (size - count) / 2, size - count}, [&](int64_t begin) {
    return rounded(other, begin, count, other.dtype) ==
           rounded(tensor, at + begin, count, other.dtype);
  });
}

// The ranks' parts of all weights.
class WeightParts {
 public:
  struct Part {
    std::string name;
    TensorBox box;
    TensorRecord weight;
    std::string text() const { return printable(name) + " at " + to_string(box.offsets); }
  };

  explicit WeightParts(const DcpFolder& folder) {
    for (const auto& [name, tensor] : folder.tensors) {
      if (!is_floating(tensor.dtype) || element_size(tensor.dtype) == 1) continue;
      const auto cut = folder.cut.find(name);
      if (cut == folder.cut.end())
        add({name, {Shape(tensor.shape.size()), tensor.shape, tensor.bytes}, tensor});
      else
        for (const TensorBox& box : cut->second)
          add({name, box, {tensor.dtype, box.shape, false, box.bytes}});
    }
  }

  // Returns the part whose masters begin at this element of a bucket; null if there is none.
  const Part* at(const TensorRecord& masters, int64_t begin) {
    const Part* found = nullptr;
    for (const auto& [dtype, count] : beginnings_) {
      if (begin + count > masters.numel()) continue;
      const auto [first, last] = parts_.equal_range(rounded(masters, begin, count, dtype));
      for (auto it = first; it != last; ++it) {
        const Part& part = it->second;
        if (++comparisons_ > kMostComparisons)
          throw Unreadable("has more weights that begin alike than can be compared");
        if (&part == found || !has_bits_of(part.weight, masters, begin)) continue;
        if (found)
          throw Unreadable(found->text() + " and " + part.text() +
                           " have the same values, by which a bucket's parameters are known");
        found = &part;
      }
    }
    return found;
  }

 private:
  void add(Part part) {
    const int64_t count = std::min<int64_t>(part.weight.numel(), 64);
    if (count == 0) return;
    beginnings_.emplace(part.weight.dtype, count);
    parts_.emplace(rounded(part.weight, 0, count, part.weight.dtype), std::move(part));
  }

  std::set<std::pair<DType, int64_t>> beginnings_;
  std::multimap<std::string, Part> parts_;  // by their first elements
  int64_t comparisons_ = 0;
};

using Bucket = std::map<std::string, TensorRecord>;  // the states, each flat

// Takes the buckets out of the folder, by name.
std::map<std::string, Bucket> taken_buckets(DcpFolder& folder) {
  std::map<std::string, Bucket> buckets;
  std::erase_if(folder.tensors, [&](const auto& entry) {
    const auto& [name, tensor] = entry;
    const size_t point = name.rfind('.');
    const bool is_taken = name.find(kBuckets) != std::string::npos;
    if (is_taken) buckets[name.substr(0, point)][name.substr(point + 1)] = tensor;
    return is_taken;
  });
  return buckets;
}

void name_buckets(DcpFolder& folder, const std::map<std::string, Bucket>& buckets) {
  WeightParts weights(folder);
  // Where a part is first. A norm, say, is in the buckets of all ranks of tp.
  std::map<const WeightParts::Part*, std::pair<const Bucket*, int64_t>> known;
  std::map<std::pair<std::string, std::string>, std::vector<TensorBox>> states;  // by weight
  for (const auto& [name, bucket] : buckets) {
    const auto masters = bucket.find("param");
    for (const auto& [state, flat] : bucket)
      if (masters == bucket.end() || flat.dtype != DType::kFloat32 || flat.shape.size() != 1 ||
          flat.shape != masters->second.shape)
        throw Unreadable(printable(name) + ": is no bucket of float32s, with masters");
    const WeightParts::Part* last = nullptr;
    for (int64_t at = 0; at < masters->second.numel();) {
      const WeightParts::Part* part = weights.at(masters->second, at);
      if (at % kAligned != 0 && (!part || part->name != last->name)) {  // padding
        at += kAligned - at % kAligned;
        continue;
      }
      if (!part)
        throw Unreadable(printable(name) +
                         ": no weights have the bits of the masters from element " +
                         std::to_string(at) + " on");
      const TensorBox& box = part->box;
      const auto& [first, first_at] = known.try_emplace(part, std::pair(&bucket, at)).first->second;
      for (const auto& [state, flat] : bucket) {
        const TensorRecord own = flat.slice(at, box.shape);
        const auto same = first->find(state);
        if (first == &bucket && first_at == at)
          states[{part->name, state}].push_back({box.offsets, box.shape, own.bytes});
        else if (same == first->end() || !has_bits_of(own, same->second, first_at))
          throw Unreadable(part->text() + " has two states " + printable(state) + " that differ");
      }
      at += part->weight.numel();
      last = part;
    }
  }
  for (auto& [key, boxes] : states) {
    const std::string name = std::string(kStates) + key.second + "." + key.first;
    folder.tensors[name] = tensor_of_boxes(name, DType::kFloat32,
                                           folder.tensors.at(key.first).shape, std::move(boxes));
    folder.keys[name] = {name};
    folder.order.push_back(name);
  }
}

void unflatten_states(DcpFolder& folder) {
  int64_t left = kMostPartsOfAll;
  for (auto& [name, state] : folder.tensors) {
    const size_t point = name.find('.', kStates.size());
    if (!name.starts_with(kStates) || point == std::string::npos) continue;
    const auto weight = folder.tensors.find(name.substr(point + 1));
    if (weight == folder.tensors.end()) continue;
    state = unflattened(name, state, weight->second.shape, left);
    if (name.starts_with(kMasters) && !has_bits_of(weight->second, state))
      throw Unreadable(
          printable(name) +
          " is not the master of these weights; Megatron-Core 0.16 shifts it, and the moments," +
          " where buckets of the optimizer are padded");
  }
}

}  // namespace

std::string name_distributed_states(DcpFolder& folder) {
  const std::map<std::string, Bucket> buckets = taken_buckets(folder);
  const auto object = folder.objects.lower_bound(std::string(kBuckets) + "dp_group");
  try {
    unflatten_states(folder);
    if (!buckets.empty())
      name_buckets(folder, buckets);
    else if (object != folder.objects.end() && object->first.starts_with(kBuckets))
      return "its distributed optimizer has saved objects and no tensors (dp_zero_gather_scatter)";
    return "";
  } catch (const Unreadable& error) {
    std::erase_if(folder.tensors, [](const auto& each) { return each.first.starts_with(kStates); });
    return error.what();
  }
}

}  // namespace anymesh
