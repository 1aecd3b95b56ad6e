#include "tools/hf/gpt/lora.h"

#include <algorithm>
#include <set>

#include "framework/format/sharded.h"
#include "framework/util/errors.h"
#include "models/gpt/gpt_parameters.h"
#include "models/gpt/lora.h"
#include "tools/hf/gpt/args.h"
#include "tools/hf/gpt/parameters.h"
#include "tools/hf/tensors.h"

namespace anymesh {
namespace {

constexpr const char* kPeftPrefix = "base_model.model.";

// Returns the rows of part `i` of a matrix.
std::vector<HfParameter::Rows> rows_of(const GptConfig& gpt, const GptParameter& matrix, size_t i,
                                       size_t parts) {
  if (parts == 3) return qkv_rows(gpt, i);
  const int64_t count = matrix.shape[0] / static_cast<int64_t>(parts);
  return {{static_cast<int64_t>(i) * count, count}};
}

// Returns "2.mlp" of "2.mlp.dense_4h_to_h.weight".
std::string before_module(const std::string& name) {
  return name.substr(0, name.rfind('.', name.rfind('.') - 1));
}

std::string without_weight(const std::string& name) { return name.substr(0, name.rfind('.')); }

struct Factors {
  BytesPtr a, b;
  LoraPart part;
};

std::vector<float> floats_at(const BytesPtr& bytes, int64_t first, int64_t count) {
  std::vector<float> elements(static_cast<size_t>(count));
  bytes->read(static_cast<uint64_t>(first) * sizeof(float),
              std::as_writable_bytes(std::span(elements)));
  return elements;
}

// Adds scaling * B A to the elements of a matrix from `first` on.
void add_product(const Factors& factors, int64_t rank, float scaling, int64_t first,
                 std::span<float> elements) {
  const int64_t width = factors.part.in, end = first + std::ssize(elements);
  int64_t at = 0;  // B's row of the range's first
  std::vector<float> a, sum;
  for (const auto& [begin, count] : factors.part.rows) {
    const int64_t from = std::max(begin, first / width),
                  to = std::min(begin + count, (end + width - 1) / width);
    if (from < to) {
      if (a.empty()) a = floats_at(factors.a, 0, rank * width);
      const auto b = floats_at(factors.b, (at + from - begin) * rank, (to - from) * rank);
      for (int64_t row = from; row < to; ++row) {
        const int64_t left = std::max(first, row * width), right = std::min(end, (row + 1) * width);
        sum.assign(static_cast<size_t>(right - left), 0);
        for (int64_t k = 0; k < rank; ++k) {
          const float factor = b[static_cast<size_t>((row - from) * rank + k)];
          const float* const column = a.data() + k * width + (left - row * width);
          for (size_t i = 0; i < sum.size(); ++i) sum[i] += factor * column[i];
        }
        float* const out = elements.data() + (left - first);
        for (size_t i = 0; i < sum.size(); ++i) out[i] += scaling * sum[i];
      }
    }
    at += count;
  }
}

}  // namespace

bool has_lora(const Checkpoint& checkpoint) {
  return std::ranges::any_of(checkpoint.names(), [](const std::string& name) {
    return name.ends_with(kLoraA) || name.ends_with(kLoraB);
  });
}

Lora lora_of_args(const Value& args) {
  const GptConfig gpt = resolved(gpt_of_args(args));
  if (gpt.lora_rank == 0)
    throw DamagedFile(args.where() + ": has no lora_rank, but the checkpoint has adapters");
  return {gpt.lora_rank, gpt.lora_alpha, gpt.lora_dropout, gpt.lora_target};
}

GptConfig with_lora(GptConfig gpt, const Lora& lora) {
  const GptConfig defaults;
  gpt.lora_rank = lora.rank;
  gpt.lora_alpha = lora.rank > 0 ? Number(lora.alpha) : defaults.lora_alpha;
  gpt.lora_dropout = lora.dropout;
  gpt.lora_target = lora.targets;
  return gpt;
}

std::vector<LoraPart> lora_parts(const HfModel& model) {
  std::vector<LoraPart> parts;
  const std::vector<LoraMatrix> matrices = lora_matrices(model.gpt);
  const std::vector<GptParameter> ours = gpt_parameters(model.gpt);
  const std::vector<HfParameter> theirs = hf_parameters(model);
  for (size_t p = 0; p < ours.size(); ++p) {
    const auto matrix = std::ranges::find_if(matrices, [&](const LoraMatrix& adapted) {
      return ours[p].name.ends_with("." + adapted.name + ".weight");
    });
    const size_t count = matrix == matrices.end() ? 0 : matrix->parts.size();
    for (size_t i = 0; i < count; ++i) {
      const std::string end = "." + matrix->parts[i];
      LoraPart part{.target = matrix->parts[i],
                    .matrix = ours[p].name,
                    .name = before_module(ours[p].name) + end,
                    .other_name = before_module(ours[p].other_name) + end,
                    .in = ours[p].shape[1],
                    .rows = rows_of(model.gpt, ours[p], i, count)};
      for (const auto& [begin, rows] : part.rows) part.out += rows;
      if (theirs[p].theirs.size() == count) part.module = without_weight(theirs[p].theirs[i].name);
      parts.push_back(std::move(part));
    }
  }
  return parts;
}

std::vector<LoraPart> lora_parts(const HfModel& model, const Lora& lora) {
  std::vector<LoraPart> parts = lora_parts(model);
  std::erase_if(parts, [&](const LoraPart& part) {
    return std::ranges::find(lora.targets, part.target) == lora.targets.end();
  });
  return parts;
}

std::vector<HfParameter> lora_parameters(const std::vector<LoraPart>& parts, int rank) {
  std::vector<HfParameter> parameters;
  for (const LoraPart& part : parts) {
    for (const auto& [end, shape] :
         {std::pair(kLoraA, Shape{rank, part.in}), {kLoraB, {part.out, rank}}}) {
      parameters.push_back(
          {.name = part.name + end, .other_name = part.other_name + end, .shape = shape});
      if (!part.module.empty())
        parameters.back().theirs = {{kPeftPrefix + part.module + end, shape}};
    }
  }
  return parameters;
}

std::map<std::string, HfParameter::Change> merging(const Checkpoint& checkpoint,
                                                   const std::vector<LoraPart>& parts,
                                                   const Lora& lora) {
  const std::vector<HfParameter> parameters = lora_parameters(parts, lora.rank);
  const auto read = [&](const HfParameter& parameter) {
    std::set<std::string> left;
    return take(checkpoint, parameter.name, parameter.other_name, parameter.shape, left);
  };
  std::map<std::string, std::vector<Factors>> factors;
  for (size_t i = 0; i < parts.size(); ++i)
    factors[parts[i].matrix].push_back(
        {read(parameters[2 * i]), read(parameters[2 * i + 1]), parts[i]});
  const auto scaling = static_cast<float>(lora.alpha / lora.rank);
  std::map<std::string, HfParameter::Change> changes;
  for (const auto& item : factors)
    changes[item.first] = [of = item.second, rank = lora.rank, scaling](int64_t first,
                                                                        std::span<float> elements) {
      for (const Factors& part : of) add_product(part, rank, scaling, first, elements);
    };
  return changes;
}

}  // namespace anymesh
