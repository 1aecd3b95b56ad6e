#include "framework/param_spec.h"

#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <regex>
#include <set>

#include "framework/comm/agreement.h"
#include "framework/kernels/normal_numbers.h"
#include "framework/storage.h"
#include "framework/util/fnv.h"

namespace anymesh {
namespace {

// Draws elements [begin, begin + out.numel()) of the slice, in chunks because it draws in double.
// Elements from `real` on are vocabulary padding.
void draw(const Slice& slice, Init init, uint64_t key, int64_t real, int64_t begin,
          const torch::Tensor& out) {
  constexpr int64_t kChunk = int64_t{1} << 18;
  torch::Tensor chunk = torch::empty({std::min(kChunk, out.numel())}, torch::kDouble);
  double* data = chunk.data_ptr<double>();
  for (int64_t done = 0; done < out.numel(); done += kChunk) {
    const int64_t count = std::min(kChunk, out.numel() - done), first = begin + done;
    at::parallel_for(0, count, 4096, [&](int64_t from, int64_t to) {
      const int64_t padding = std::clamp(real - first, from, to);
      normal_numbers(slice, first + from, padding - from, init.mean, init.std, key, data + from);
      std::fill(data + padding, data + to, 0);
    });
    out.narrow(0, done, count).copy_(chunk.narrow(0, 0, count));
  }
}

std::regex regex_of(const std::string& pattern) {
  try {
    return std::regex(pattern);
  } catch (const std::regex_error& error) {
    throw CollectiveError("--freeze " + pattern + ": not a regular expression: " + error.what());
  }
}

}  // namespace

std::pair<int, int> ParamSpec::replica_at(const Topology& mesh, Coord at) const {
  return experts ? std::pair(mesh.edp_rank_of(at), mesh.edp_size())
                 : std::pair(at.dp, mesh.dp_size);
}

bool ParamSpec::counts_at(const Topology& mesh, Coord at, bool partitioned) const {
  const bool tp_shares = !experts && split_dim < 0;
  return (!tp_shares || at.tp == 0) && (partitioned || replica_at(mesh, at).first == 0);
}

std::string ParamSpec::name_in_layer() const {
  constexpr std::string_view kTied = "tied_modules.";
  return name.substr(name.find('.', name.starts_with(kTied) ? kTied.size() : 0) + 1);
}

void ParamSpec::materialize() const {
  allocate_storage(tensor);
  initialize(0, tensor.detach().view(-1));
}

const std::vector<ParamSpec>& freeze_params(const std::vector<ParamSpec>& params,
                                            const std::vector<std::string>& patterns,
                                            Communicator& pp) {
  if (patterns.empty()) return params;
  std::vector<std::string> mine;
  for (const ParamSpec& spec : params)
    if (!spec.buffer) mine.push_back(spec.name);
  std::string list;
  std::set<std::string> names, frozen;
  for (const std::string& name : gather_lines(pp, mine))
    if (names.insert(name).second) list += "\n  " + name;
  for (const std::string& pattern : patterns) {
    const std::regex regex = regex_of(pattern);
    bool found = false;
    for (const std::string& name : names) {
      if (!std::regex_search(name, regex)) continue;
      frozen.insert(name);
      found = true;
    }
    if (!found)
      throw CollectiveError("--freeze " + pattern +
                            ": no parameter's name has that. There are:" + list);
  }
  if (frozen.size() == names.size())
    throw CollectiveError("--freeze: nothing would be left to train. There are:" + list);
  for (const ParamSpec& spec : params) {
    if (!frozen.contains(spec.name)) continue;
    spec.tensor.requires_grad_(false);
    if (spec.second_use.defined()) spec.second_use.requires_grad_(false);
  }
  return params;
}

torch::Tensor ParamBuilder::add(ParamSpec spec, Init init) {
  const int64_t tp_size = tp_.size(), tp_rank = tp_.rank();
  std::vector<int64_t> local = spec.shape;
  int64_t real = c10::multiply_integers(spec.shape);  // elements that are not padding
  Slice slice{.width = real, .stride = real};         // each sub-parameter is a row of its own
  if (spec.experts && ep.whole) spec.split_dim = -1;
  if (spec.split_dim >= 0) {
    const auto dim = static_cast<size_t>(spec.split_dim);
    const int64_t inner = c10::numelements_from_dim(spec.split_dim + 1, spec.shape);
    const int64_t multiple = spec.vocabulary ? vocabulary_multiple * tp_size : tp_size;
    const int64_t padded = (spec.shape[dim] + multiple - 1) / multiple * multiple;
    TORCH_INTERNAL_ASSERT(spec.vocabulary ? dim == 0 : padded == spec.shape[dim], spec.name,
                          " is not divisible by tp ", tp_size);
    local[dim] = padded / tp_size;
    TORCH_INTERNAL_ASSERT(local[dim] % spec.sub_params == 0, spec.name, " is not divisible by tp ",
                          tp_size);
    slice = {.width = local[dim] / spec.sub_params * inner,
             .stride = spec.shape[dim] / spec.sub_params * inner};
    slice.offset = tp_rank * slice.width;
    real = spec.vocabulary ? std::clamp<int64_t>(slice.stride - slice.offset, 0, slice.width)
                           : c10::multiply_integers(local);
  }
  if (spec.experts) {
    TORCH_INTERNAL_ASSERT(local[0] % ep.size() == 0 && spec.split_dim != 0, spec.name,
                          " is not divisible by ep ", ep.size());
    local[0] /= ep.size();
    slice.offset += ep.rank() * local[0] * c10::numelements_from_dim(1, spec.shape);
    real = c10::multiply_integers(local);
  }
  spec.initialize = [slice, init, real, key = seed_ ^ fnv(spec.name)](int64_t begin,
                                                                      const torch::Tensor& out) {
    draw(slice, init, key, real, begin, out);
  };
  spec.layer = layer;
  spec.units = {unit};
  spec.chunk = chunk;
  spec.tensor = empty_without_storage(
      local,
      spec.buffer ? options_.dtype(at::toOpMathType(options_.dtype().toScalarType())) : options_);
  spec.tensor.requires_grad_(!spec.buffer);
  specs_.push_back(std::move(spec));
  return specs_.back().tensor;
}

torch::Tensor ParamBuilder::use_again(const std::string& name) {
  const auto spec = std::find_if(specs_.begin(), specs_.end(),
                                 [&](const ParamSpec& s) { return s.name == name; });
  TORCH_INTERNAL_ASSERT(spec != specs_.end(), "no parameter ", name);
  spec->second_use = spec->tensor.detach().requires_grad_(spec->tensor.requires_grad());
  spec->units.push_back(unit);
  return spec->second_use;
}

}  // namespace anymesh
