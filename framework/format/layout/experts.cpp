#include "framework/format/layout/experts.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "framework/format/layout/names.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

constexpr std::string_view kOlder = ".deepspeed_experts.";
constexpr std::string_view kGroupPrefix = "ep_size_";
constexpr int64_t kMostExperts = 1 << 20;

std::optional<int64_t> number(std::string_view text) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size() || n < 0 || n > kMostExperts)
    return std::nullopt;
  return n;
}

// A name of an older mixture: what is before the expert's number, the number, and what is behind
// it.
struct OlderName {
  std::string before;
  int64_t expert;
  std::string behind;
};
std::optional<OlderName> older_name(const std::string& name) {
  const size_t at = name.find(kOlder);
  if (at == std::string::npos) return std::nullopt;
  const size_t first = at + kOlder.size(), dot = std::min(name.find('.', first), name.size());
  const auto expert = number(std::string_view(name).substr(first, dot - first));
  if (!expert) return std::nullopt;
  return OlderName{name.substr(0, first), *expert, name.substr(dot)};
}

// Returns an entry that must be a number of this range.
int64_t count_in(const Value& entry, std::string_view key) {
  const Value value = entry.at(key);
  if (value.as_int() < 1 || value.as_int() > kMostExperts) value.fail("a plausible number");
  return value.as_int();
}

}  // namespace

std::string ExpertSpread::prefix_of(const std::string& name) {
  return name.substr(0, std::min(name.rfind('.'), name.size()));
}

ExpertSpread ExpertSpread::from(std::span<const Value> model_states) {
  ExpertSpread spread;
  std::map<int64_t, Layer> by_number;
  for (const Value& state : model_states) {
    const Value listed = state.find(keys::kAutoEpLayers).value_or(Value::list());
    for (const Value& entry : listed.items()) {
      const int64_t id = entry.at(keys::kMoeLayerId).as_int(), ep = count_in(entry, keys::kEpSize);
      Layer layer{entry.at(keys::kExpertKeyPrefix).as_string(), count_in(entry, keys::kNumExperts)};
      if (layer.experts % ep != 0 ||
          (!by_number.empty() && ep != spread.ep_size && spread.ep_size > 0))
        entry.at(keys::kEpSize).fail("one divisor of all layers' experts");
      spread.ep_size = static_cast<int>(ep);
      const auto [known, is_new] = by_number.try_emplace(id, layer);
      if (!is_new && known->second.prefix != layer.prefix)
        entry.fail("another number than that of " + known->second.prefix);
    }
    const Value groups = state.find(keys::kParamShapes);
    for (const Value& group : groups.value_or(Value::list()).items()) {
      for (const auto& [name, shape] : group.entries()) {
        const auto older = older_name(name.as_string());
        if (older)
          spread.locals_[older->before] =
              std::max(spread.locals_[older->before], older->expert + 1);
      }
    }
  }
  for (auto& [id, layer] : by_number) spread.layers.push_back(std::move(layer));
  if (model_states.empty()) return spread;
  const Value folding = model_states[0].find(keys::kFolding),
              config = model_states[0].find(keys::kDsConfig);
  spread.whole = model_states[0].find(keys::kWholeExperts).value_or(false).as_bool() ||
                 (folding.is_dict() && folding.find(keys::kEtpSize) == Value(1) &&
                  folding.find(keys::kFoldingTpSize).value_or(1).as_int() > 1);
  if (config.is_dict())
    spread.data_first_ = config.find(keys::kDataBeforeExperts).value_or(false).as_bool();
  return spread;
}

void ExpertSpread::record(Value& state, const Rank& rank, bool zero3) const {
  std::vector<Value> counts, entries;
  for (size_t id = 0; id < layers.size(); ++id) {
    const auto& [prefix, experts] = layers[id];
    const int64_t local = experts / rank.ep_size;
    counts.emplace_back(experts);
    entries.push_back(
        Value::dict({{keys::kMoeLayerId, static_cast<int64_t>(id)},
                     {"module_path", prefix_of(prefix)},
                     {keys::kNumExperts, experts},
                     {"num_local_experts", local},
                     {keys::kEpSize, rank.ep_size},
                     {keys::kExpertKeyPrefix, prefix},
                     {"checkpoint_format", zero3 ? "zero3_partitioned" : "per_expert_files"},
                     {"checkpoint_format_version", zero3 ? Value(1) : Value()},
                     {"ep_group_name", group_name(rank.ep_size)},
                     {"ep_rank", rank.ep},
                     {"expert_data_parallel_rank", rank.edp},
                     {"expert_data_parallel_world_size", rank.edp_size},
                     {"global_expert_start", rank.ep * local},
                     {"global_expert_end", (rank.ep + 1) * local}}));
  }
  state.set(keys::kNumExperts, Value::list(std::move(counts)));
  state.set(keys::kAutoEpLayers, Value::list(std::move(entries)));
  if (whole) state.set(keys::kWholeExperts, true);
}

const ExpertSpread::Layer* ExpertSpread::layer_of(const std::string& name) const {
  const auto found = std::ranges::find(layers, prefix_of(name), &Layer::prefix);
  return found == layers.end() ? nullptr : &*found;
}

bool ExpertSpread::is_expert(const std::string& name) const {
  return layer_of(name) || older_name(name);
}

ExpertSpread::Rank ExpertSpread::rank_of(int dp_rank, int dp_size, int tp_rank, int tp_size,
                                         const std::string& group) const {
  int ep = ep_size;
  if (group.starts_with(kGroupPrefix))
    ep = static_cast<int>(number(std::string_view(group).substr(kGroupPrefix.size())).value_or(ep));
  const int rank = whole ? dp_rank * tp_size + tp_rank : dp_rank,
            ranks = whole ? dp_size * tp_size : dp_size;
  if (ep < 1 || ranks % ep != 0)
    throw DamagedFile("experts over " + std::to_string(ep) + " ranks, which do not divide the " +
                      std::to_string(ranks) + " ranks that hold them");
  const int edp_size = ranks / ep;
  return data_first_ ? Rank{rank / edp_size, rank % edp_size, ep, edp_size, true}
                     : Rank{rank % ep, rank / ep, ep, edp_size};
}

ExpertSpread::Place ExpertSpread::place_of(const std::string& name, const Shape& shape,
                                           const Rank& rank) const {
  if (layer_of(name)) {
    Place place{name, shape, rank.ep * numel(shape)};
    if (shape.empty() || __builtin_mul_overflow(shape[0], rank.ep_size, &place.shape[0]))
      throw DamagedFile(name + ": experts of shape " + to_string(shape));
    numel(place.shape);  // throws beyond 2^63
    return place;
  }
  const auto older = older_name(name);
  if (!older) return {name, shape, 0};
  const auto local = locals_.find(older->before);
  const int64_t first = local == locals_.end() ? 0 : rank.ep * local->second;
  return {older->before + std::to_string(first + older->expert) + older->behind, shape, 0};
}

int ExpertSpread::layer_number_of(const std::string& name) const {
  return static_cast<int>(layer_of(name) - layers.data());
}

std::string ExpertSpread::file_of(const std::string& name, int64_t expert, int tp_rank) const {
  return expert_states_file(layer_number_of(name), expert, whole ? 0 : tp_rank);
}

std::string ExpertSpread::key_of(const std::string& name, int64_t expert) {
  return name + "." + std::to_string(expert);
}

std::pair<std::string, int64_t> ExpertSpread::split_key(const std::string& key) const {
  const size_t dot = key.rfind('.');
  if (dot != std::string::npos && layer_of(key.substr(0, dot))) {
    if (const auto expert = number(std::string_view(key).substr(dot + 1)))
      return {key.substr(0, dot), *expert};
  }
  return {key, -1};
}

Value zero_partition_group(int64_t sub_group, bool experts, const ExpertSpread::Rank& rank) {
  std::vector<Value> ranks;
  for (int i = 0; i < rank.edp_size; ++i)
    ranks.emplace_back(!experts        ? i
                       : rank.adjacent ? rank.ep * rank.edp_size + i
                                       : i * rank.ep_size + rank.ep);
  const Value name = experts ? ExpertSpread::group_name(rank.ep_size) : "replicated";
  return Value::dict({{"sub_group", sub_group},
                      {keys::kPartitionCount, rank.edp_size},
                      {"partition_rank", rank.edp},
                      {"partition_ranks", Value::list(std::move(ranks))},
                      {"families", Value::list({Value(experts ? "autoep_expert" : "replicated")})},
                      {"group_names", Value::list({name})}});
}

TensorRecord unstacked(const TensorRecord& stacked, int64_t i) {
  const Shape shape(stacked.shape.begin() + 1, stacked.shape.end());
  return stacked.slice(i * numel(shape), shape);
}

std::vector<Value::Entry> expert_keys(int64_t experts) {
  return {{keys::kCatDim, 0}, {keys::kIsExpertParam, true}, {keys::kEpNumExperts, experts}};
}

}  // namespace anymesh
