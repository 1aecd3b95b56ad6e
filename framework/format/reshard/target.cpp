#include "framework/format/reshard/target.h"

#include <algorithm>
#include <charconv>
#include <tuple>

#include "framework/format/layout/names.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/util/printable.h"

namespace anymesh {
namespace {

constexpr int kMostRanks = 1 << 14;  // each takes 40 KB of memory while its files are planned
constexpr std::pair<std::string_view, DType> kDTypes[] = {
    {"bf16", DType::kBFloat16}, {"fp16", DType::kFloat16}, {"fp32", DType::kFloat32}};

[[noreturn]] void fail(std::string_view item, const std::string& expected) {
  throw UserError("--target: expected " + expected + ", found '" + printable(std::string(item)) +
                  "'; an example: --target dp=6,zero=2,dtype=bf16");
}

int number(std::string_view item, std::string_view text, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most)
    fail(item, "a number from " + std::to_string(least) + " to " + std::to_string(most));
  return value;
}

DType precision(std::string_view item, std::string_view text) {
  for (const auto& [name, dtype] : kDTypes)
    if (name == text) return dtype;
  fail(item, "dtype=bf16, fp16 or fp32");
}

// Throws a UserError that names a target which works.
[[noreturn]] void refuse_target(const CheckpointMesh& to, const std::string& why,
                                const std::string& instead) {
  throw UserError("--target: " + to_string(to) + ": " + why + "; " + instead);
}

// Returns how the target spreads the experts of a checkpoint. Throws if it cannot.
ExpertSpread spread_experts(ExpertSpread experts, const CheckpointMesh& to) {
  if (experts.has_older())
    throw UserError(
        "this is one of DeepSpeed's older mixtures of experts (deepspeed_moe), which ds_reshard "
        "does not cut; ds_to_universal and zero_to_fp32 read it");
  if (experts.layers.empty() && to.ep_size > 1)
    refuse_target(to, "the model has no experts", "leave ep out");
  if (experts.layers.empty()) return experts;
  const std::string dp = "dp=" + std::to_string(to.ep_size);
  if (to.dp_size % to.ep_size != 0)
    refuse_target(to, "ep is cut out of dp, which must be a multiple of it", "give ep=1, or " + dp);
  for (const ExpertSpread::Layer& layer : experts.layers)
    if (layer.experts % to.ep_size != 0)
      refuse_target(to, "ep must divide the " + std::to_string(layer.experts) + " experts",
                    "give ep=1");
  if (experts.whole && to.tp_size > 1)
    refuse_target(to,
                  "tp does not cut these experts (--expert-tensor-parallel-size 1), and no other "
                  "job than pretrain_gpt has them so; it resumes them on any mesh as they are",
                  "give tp=1");
  if (to.stage == 0 && to.dtype != DType::kFloat32)
    refuse_target(to, "experts at ZeRO 0 are written in fp32 alone", "give zero=1, or dtype=fp32");
  experts.ep_size = to.ep_size;
  experts.whole = false;
  return experts;
}

}  // namespace

std::string to_string(const CheckpointMesh& mesh) {
  std::string_view name = dtype_name(mesh.dtype);
  for (const auto& [known, dtype] : kDTypes)
    if (dtype == mesh.dtype) name = known;
  return "ZeRO " + std::to_string(mesh.stage) + ", tp " + std::to_string(mesh.tp_size) + ", pp " +
         std::to_string(mesh.pp_size) + ", dp " + std::to_string(mesh.dp_size) + ", " +
         (mesh.ep_size > 1 ? "ep " + std::to_string(mesh.ep_size) + ", " : "") + std::string(name);
}

ReshardTarget ReshardTarget::parse(const std::string& text) {
  ReshardTarget target;
  const auto set = [](std::string_view item, auto& field, auto value) {
    if (field) fail(item, "each key once");
    field = value;
  };
  const std::tuple<std::string_view, std::optional<int>&, int, int> numbers[] = {
      {"dp", target.dp_size, 1, kMostRanks},
      {"tp", target.tp_size, 1, kMostRanks},
      {"pp", target.pp_size, 1, kMostRanks},
      {"ep", target.ep_size, 1, kMostRanks},
      {"zero", target.stage, 0, 3}};
  for (const std::string_view item : split(text, ',')) {
    const size_t equals = item.find('=');
    const std::string_view key = item.substr(0, equals),
                           value = equals == item.npos ? "" : item.substr(equals + 1);
    if (key == "dtype") {
      set(item, target.dtype, precision(item, value));
      continue;
    }
    const auto known =
        std::ranges::find(numbers, key, [](const auto& row) { return std::get<0>(row); });
    if (known == std::end(numbers)) fail(item, "dp=, tp=, pp=, ep=, zero= or dtype=");
    const auto& [name, field, least, most] = *known;
    set(item, field, number(item, value, least, most));
  }
  return target;
}

CheckpointMesh ReshardTarget::applied_to(CheckpointMesh mesh) const {
  mesh.tp_size = tp_size.value_or(mesh.tp_size);
  mesh.pp_size = pp_size.value_or(mesh.pp_size);
  mesh.dp_size = dp_size.value_or(mesh.dp_size);
  mesh.ep_size = ep_size.value_or(mesh.ep_size);
  mesh.stage = stage.value_or(mesh.stage);
  mesh.dtype = dtype.value_or(mesh.dtype);
  const int64_t ranks = int64_t{mesh.tp_size} * mesh.pp_size * mesh.dp_size;
  if (ranks > kMostRanks)
    throw UserError("--target: " + to_string(mesh) + " are " + std::to_string(ranks) +
                    " ranks, expected at most " + std::to_string(kMostRanks));
  return mesh;
}

ExpertSpread check_target(const Value& model_state, bool partitioned, const ExpertSpread& experts,
                          const CheckpointMesh& from, const CheckpointMesh& to) {
  const bool pipeline = !model_state.find(keys::kModule),
             ours = !model_state.find(keys::kDropoutSeed).is_none();
  if (to.stage == 0 && to.dtype != DType::kFloat32 && !(from.stage == 0 && from.dtype == to.dtype))
    refuse_target(
        to,
        "at ZeRO 0, the class that DeepSpeed keeps a half-precision optimizer in depends on the "
        "next job's optimizer, which no file tells",
        "give zero=1, or dtype=fp32");
  if (pipeline && to.stage >= 2 && !ours)
    refuse_target(to, "DeepSpeed's pipelines train with ZeRO 0 and 1 alone", "give zero=1");
  const ExpertSpread spread = spread_experts(experts, to);
  if (to.stage == 0 && to.dtype != DType::kFloat32 && partitioned)
    refuse_target(to, "DeepSpeed cannot load the BF16_Optimizer that it saves at ZeRO 0",
                  "give zero=1, which takes the same steps");
  return spread;
}

}  // namespace anymesh
