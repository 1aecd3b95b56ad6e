// Finds the parameter of each optimizer tensor where the files do not record it.

#include <algorithm>
#include <bit>
#include <utility>

#include "framework/format/sharded/stages.h"
#include "framework/format/sharded/tensor_views.h"
#include "framework/format/torch_file/elements.h"

namespace anymesh {
namespace {

constexpr const char* kRemedy =
    " (ds_to_universal --assume_module_order takes the order of the module)";
constexpr int64_t kFirst = 64;         // elements that tell most parameters apart
constexpr int64_t kChunk = 256 << 10;  // elements compared at a time

uint32_t rounded(DType dtype, float value) {
  return dtype == DType::kBFloat16  ? to_bfloat16(value)
         : dtype == DType::kFloat16 ? to_half(value)
                                    : std::bit_cast<uint32_t>(value);
}

bool alike(const TensorRecord& master, const TensorRecord& weight, int64_t begin, int64_t end) {
  for (; begin < end; begin += kChunk) {
    const int64_t count = std::min(kChunk, end - begin);
    const std::vector<float> masters = floats_at(master, begin, count),
                             weights = floats_at(weight, begin, count);
    for (size_t i = 0; i < masters.size(); ++i)
      if (rounded(weight.dtype, masters[i]) != rounded(weight.dtype, weights[i])) return false;
  }
  return true;
}

// Matches masters to candidates; each match removes its candidate.
class Matcher {
 public:
  Matcher(std::vector<NamedShape> candidates, const Weights& weights, Order& order)
      : candidates_(std::move(candidates)), weights_(weights), order_(order) {
    std::erase_if(candidates_, [](const NamedShape& c) { return numel(c.shape) == 0; });
  }

  // Removes and returns the candidate with the weight that the master at `begin` rounds to. It must
  // have `shape`; null, for a flat master, allows any.
  NamedShape take(const Value& master, int64_t begin, const Shape* shape) {
    std::vector<size_t> found;
    for (size_t i = 0; i < candidates_.size(); ++i)
      if (fits(candidates_[i], master.as_tensor(), begin, shape)) found.push_back(i);
    const std::string where = master.where() + ", element " + std::to_string(begin) + ": ";
    if (found.empty())
      throw Unproven(where + "these masters do not round to the model's weights of any parameter");
    NamedShape result = candidates_[found[0]];
    if (found.size() > 1) doubt(where, result, found);
    candidates_.erase(candidates_.begin() + static_cast<std::ptrdiff_t>(found[0]));
    return result;
  }

 private:
  // Notes that several candidates match. Any of them will do if all have the same number of
  // elements; otherwise throws Unproven.
  void doubt(const std::string& where, const NamedShape& first, const std::vector<size_t>& found) {
    const std::string& second = candidates_[found[1]].name;
    const std::string text = where + "these masters may be those of " + first.name + " or of " +
                             second + ", as they round to the weights of both" + kRemedy;
    if (order_.doubt.empty()) order_.doubt = text;
    for (const size_t i : found) {
      if (numel(candidates_[i].shape) != numel(first.shape)) throw Unproven(text);
      order_.doubtful.insert(candidates_[i].name);
    }
  }

  bool fits(const NamedShape& candidate, const TensorRecord& master, int64_t begin,
            const Shape* shape) const {
    const int64_t count = numel(candidate.shape);
    if (shape ? candidate.shape != *shape : count > master.numel() - begin) return false;
    const TensorRecord& weight = weights_.at(candidate.name);
    const TensorRecord part = master.slice(begin, {count});
    return is_floating(weight.dtype) && alike(part, weight, 0, std::min(kFirst, count)) &&
           rounds_to(part, weight);
  }

  std::vector<NamedShape> candidates_;
  const Weights& weights_;
  Order& order_;
};

// Assigns states to candidates by their shapes, until each has the only candidate left that fits.
class ShapeMatcher {
 public:
  explicit ShapeMatcher(const std::vector<NamedShape>& candidates) {
    for (const NamedShape& candidate : candidates) left_[candidate.shape].push_back(&candidate);
  }

  // Adds one parameter's states, which give `place` its name and shape.
  void add(const Value& entry, NamedShape& place) {
    std::vector<Value> states;
    for (const auto& [name, state] : entry.entries()) {
      if (!state.is_tensor() || name == Value(kStepState)) continue;
      if (!is_floating(state.as_tensor().dtype))
        throw Unproven(state.where() + ": expected floating-point numbers, found " + state.found());
      if (!state.as_tensor().shape.empty()) states.push_back(state);
    }
    if (states.empty()) return;
    Open& open = open_.emplace_back(Open{&place, states[0], {}});
    for (const auto& [shape, parameters] : left_) {
      const auto fits = [&shape = shape](const Value& state) {
        const Shape& own = state.as_tensor().shape;
        return own == shape || is_factored(own, shape);
      };
      if (std::ranges::all_of(states, fits)) open.shapes.push_back(shape);
    }
  }

  void match() {
    for (bool found = true; std::exchange(found, false);)
      std::erase_if(open_, [&](const Open& open) { return assign(open) && (found = true); });
    if (open_.empty()) return;
    const auto candidates = candidates_of(open_[0]);
    throw Unproven(open_[0].state.where() + ": may be that of " + candidates[0]->name + " or of " +
                   candidates[1]->name + ", by its shape " +
                   to_string(open_[0].state.as_tensor().shape) +
                   "; DeepSpeed does not record which at ZeRO 0" + kRemedy);
  }

 private:
  struct Open {
    NamedShape* place;
    Value state;  // one of the parameter's
    std::vector<Shape> shapes;
  };

  // Returns up to two candidates that are left.
  std::vector<const NamedShape*> candidates_of(const Open& open) const {
    std::vector<const NamedShape*> found;
    for (const Shape& shape : open.shapes) {
      for (const NamedShape* candidate : left_.at(shape)) {
        found.push_back(candidate);
        if (found.size() == 2) return found;
      }
    }
    return found;
  }

  // Assigns the only candidate. Returns false if there are several.
  bool assign(const Open& open) {
    const auto candidates = candidates_of(open);
    if (candidates.empty())
      throw Unproven(open.state.where() + ": no parameter is left of its shape " +
                     to_string(open.state.as_tensor().shape));
    if (candidates.size() > 1) return false;
    *open.place = *candidates[0];
    std::erase(left_.at(open.place->shape), candidates[0]);
    return true;
  }

  std::map<Shape, std::vector<const NamedShape*>> left_;
  std::vector<Open> open_;
};

}  // namespace

std::vector<float> floats_at(const TensorRecord& tensor, int64_t begin, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  as_float32(tensor).bytes->read(static_cast<uint64_t>(begin) * sizeof(float),
                                 std::as_writable_bytes(std::span(values)));
  return values;
}

bool rounds_to(const TensorRecord& master, const TensorRecord& weight) {
  return master.numel() == weight.numel() && alike(master, weight, 0, weight.numel());
}

Order order_by_value(const Value& masters, std::vector<NamedShape> candidates,
                     const Weights& weights) {
  Order order;
  Matcher matcher(std::move(candidates), weights, order);
  for (const Value& group : masters.items()) {
    auto& parameters = order.groups.emplace_back();
    if (group.is_tensor()) {  // flat
      for (int64_t at = 0; at < group.as_tensor().numel(); at += numel(parameters.back().shape))
        parameters.push_back(matcher.take(group, at, nullptr));
      continue;
    }
    for (const Value& master : group.items()) {
      const Shape& shape = master.as_tensor().shape;
      parameters.push_back(numel(shape) == 0 ? NamedShape{"", shape}
                                             : matcher.take(master, 0, &shape));
    }
  }
  return order;
}

Order order_by_shape(const Value& param_groups, const States& states,
                     const std::vector<NamedShape>& candidates) {
  Order order;
  ShapeMatcher matcher(candidates);
  order.groups.reserve(param_groups.size());
  for (const Value& group : param_groups.items()) {
    const std::vector<int64_t> indices = group.at(keys::kParams).as_ints();
    auto& parameters = order.groups.emplace_back(indices.size());  // unnamed unless with states
    for (size_t i = 0; i < indices.size(); ++i)
      if (const auto entry = states.find(indices[i]); entry != states.end())
        matcher.add(entry->second, parameters[i]);
  }
  matcher.match();
  return order;
}

}  // namespace anymesh
