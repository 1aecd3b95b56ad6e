#include "framework/format/reshard/target.h"

#include <charconv>

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
  for (const std::string_view item : split(text, ',')) {
    const size_t equals = item.find('=');
    const std::string_view key = item.substr(0, equals),
                           value = equals == item.npos ? "" : item.substr(equals + 1);
    if (key == "dp") {
      set(item, target.dp_size, number(item, value, 1, kMostRanks));
    } else if (key == "tp") {
      set(item, target.tp_size, number(item, value, 1, kMostRanks));
    } else if (key == "pp") {
      set(item, target.pp_size, number(item, value, 1, kMostRanks));
    } else if (key == "ep") {
      set(item, target.ep_size, number(item, value, 1, kMostRanks));
    } else if (key == "zero") {
      set(item, target.stage, number(item, value, 0, 3));
    } else if (key == "dtype") {
      set(item, target.dtype, precision(item, value));
    } else {
      fail(item, "dp=, tp=, pp=, ep=, zero= or dtype=");
    }
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

}  // namespace anymesh
