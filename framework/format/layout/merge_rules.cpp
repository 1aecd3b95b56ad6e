#include "framework/format/layout/merge_rules.h"

#include <algorithm>
#include <cctype>

#include "framework/format/layout/affine_map.h"
#include "framework/format/layout/names.h"
#include "framework/format/layout/sub_params.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

constexpr size_t kMaxPattern = 500;  // std::regex compiles recursively

// Patterns and names come from files. Matching takes time linear in the name, without recursion.
// Libc++ cannot promise that, and throws where it would take too long.
#ifdef __GLIBCXX__
constexpr auto kLinear = std::regex::ECMAScript | std::regex_constants::__polynomial;
#else
constexpr auto kLinear = std::regex::ECMAScript;
#endif

constexpr size_t kMostStates = 1 << 18;  // over all patterns, at 48 bytes each
constexpr size_t kMostWidth = 1 << 12;   // over all patterns: the cost per character of a name
constexpr int64_t kAffineMapVersion = 1;
constexpr int64_t kMostMapNumbers = 1 << 23;  // in all affine maps

// Returns the product of all counts in braces, at most kMostStates + 1.
size_t repetitions(const std::string& pattern) {
  size_t product = 1, count = 0;
  bool counts = false;
  for (const char c : pattern) {
    if (c == '{' || c == ',' || c == '}') {
      product = std::min(product * std::max<size_t>(1, count), kMostStates + 1);
      count = 0;
      counts = c == '{' || (counts && c == ',');
    } else if (counts && '0' <= c && c <= '9') {
      count = std::min<size_t>(10 * count + static_cast<size_t>(c - '0'), kMostStates);
    }
  }
  return product;
}

// Returns a bound on how many places of a pattern a match can be at once: its forks plus 1.
size_t width_of(const std::string& pattern) {
  const auto forks = [](char c) { return std::string_view("*+?{|").find(c) != std::string::npos; };
  return 1 + static_cast<size_t>(std::ranges::count_if(pattern, forks));
}

// Whether a pattern has (?=...) or (?!...). Nested, they take time exponential in the depth.
bool looks_around(const std::string& pattern) {
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '\\') {
      ++i;
    } else if (in_class) {
      in_class = pattern[i] != ']';
    } else if (pattern[i] == '[') {
      in_class = true;
    } else if (pattern.compare(i, 2, "(?") == 0 && pattern.compare(i, 3, "(?:") != 0) {
      return true;
    }
  }
  return false;
}

// Returns the only name that a pattern such as ^lm_head\.weight$ matches, or nullopt. AutoTP writes
// such a pattern for each parameter.
std::optional<std::string> only_name(const std::string& pattern) {
  if (pattern.size() < 2 || pattern.front() != '^' || pattern.back() != '$') return std::nullopt;
  std::string name;
  for (size_t i = 1; i + 1 < pattern.size(); ++i) {
    const bool escaped = pattern[i] == '\\';
    if (escaped) ++i;
    const char c = pattern[i];
    const bool letter = std::isalnum(static_cast<unsigned char>(c)) || c == '_';
    if (i + 1 == pattern.size() || letter == escaped) return std::nullopt;
    name += c;
  }
  return name;
}

// The pattern lists, in the order in which they are written, compiled and reported.
constexpr std::pair<std::string_view, std::vector<std::string> UniversalInfo::*> kLists[] = {
    {keys::kVocabularyPatterns, &UniversalInfo::vocabulary},
    {keys::kPipelineReplicatedPatterns, &UniversalInfo::pipeline_replicated},
    {keys::kTpReplicatedPatterns, &UniversalInfo::tp_replicated},
    {keys::kAveragePatterns, &UniversalInfo::average},
    {keys::kRowParallelPatterns, &UniversalInfo::row_parallel},
    {keys::kTwoSubParamsPatterns, &UniversalInfo::two_sub_params}};

// Returns the sizes along the cut, rank by rank. Throws unless all other dims agree.
std::vector<int64_t> cut_sizes(const std::string& name, size_t dim, std::span<const Shape> shards) {
  std::vector<int64_t> sizes;
  for (const Shape& shard : shards) {
    Shape like_first = shard;
    if (dim < shard.size() && shard.size() == shards[0].size()) like_first[dim] = shards[0][dim];
    if (dim >= shard.size() || like_first != shards[0]) {
      throw DamagedFile(name + ": shards of shapes " + to_string(shards[0]) + " and " +
                        to_string(shard) + " cannot be joined along dim " + std::to_string(dim));
    }
    sizes.push_back(shard[dim]);
  }
  return sizes;
}

}  // namespace

UniversalInfo UniversalInfo::from_value(const Value& value) {
  if (const Value refused = value.find(keys::kUnsupportedPatterns); refused && refused.size() > 0) {
    const auto [pattern, reason] = refused.entries()[0];
    throw Unreadable(refused.where() + ": DeepSpeed marked " + std::to_string(refused.size()) +
                     " parameters as impossible to convert, first " + pattern.as_string() + ": " +
                     reason.as_string());
  }
  UniversalInfo info;
  info.where = value.where();
  info.version = value.at(keys::kUniversalVersion).as_double();
  if (const Value size = value.find(keys::kOriginalVocabSize))
    info.original_vocab_size = size.as_int();
  if (const Value size = value.find(keys::kPaddedVocabSize)) info.padded_vocab_size = size.as_int();
  for (const auto& [key, list] : kLists)
    if (const Value patterns = value.find(key)) info.*list = patterns.as_strings();
  info.has_row_parallel = value.contains(keys::kRowParallelPatterns);
  info.has_pipeline_replicated = value.contains(keys::kPipelineReplicatedPatterns);
  for (const Value& item : value.find(keys::kSubParams).value_or(Value::list()).items())
    info.sub_params.push_back(read_sub_params(item, info.version));
  const Value widths = value.find(keys::kSubParamShardWidths).value_or(Value::dict());
  for (const auto& [pattern, parts] : widths.entries()) {
    for (const Value& part : parts.items())
      info.sub_param_widths[pattern.as_string()].push_back(part.as_ints());
  }
  if (const Value map = value.find(keys::kAffineMap); map && map.size() > 0) {
    const Value version = map.find(keys::kAffineVersion).value_or(kAffineMapVersion);
    if (version.as_int() > kAffineMapVersion)
      version.refuse("version " + std::to_string(kAffineMapVersion) + " of affine maps");
    for (const auto& [pattern, entry] : map.at(keys::kAffineParams).entries())
      info.affine_maps.emplace_back(pattern.as_string(), entry);
  }
  return info;
}

UniversalInfo UniversalInfo::of(const std::set<ParameterCut>& parameters) {
  const auto patterns = [&](bool (*is_such)(const ParameterCut&)) {
    std::set<std::string> found;
    for (const ParameterCut& cut : parameters)
      if (is_such(cut)) found.insert(cut.pattern);
    return std::vector<std::string>(found.begin(), found.end());
  };
  UniversalInfo info;
  info.vocabulary = patterns([](const ParameterCut& cut) { return cut.vocabulary; });
  info.pipeline_replicated = patterns([](const ParameterCut& cut) { return cut.tied; });
  info.tp_replicated = patterns([](const ParameterCut& cut) { return cut.split_dim < 0; });
  info.row_parallel = patterns([](const ParameterCut& cut) { return cut.split_dim == 1; });
  info.two_sub_params = patterns([](const ParameterCut& cut) { return cut.sub_params == 2; });
  for (const ParameterCut& cut : parameters)  // one along a later dim has no list of its own
    if (cut.split_dim > 1)
      info.sub_params.push_back(whole_cut(cut.pattern, cut.shape, cut.split_dim));
  return info;
}

Value UniversalInfo::to_value() const {
  Value value = Value::dict({{keys::kUniversalVersion, version}});
  if (original_vocab_size) value.set(keys::kOriginalVocabSize, *original_vocab_size);
  if (padded_vocab_size) value.set(keys::kPaddedVocabSize, *padded_vocab_size);
  for (const auto& [key, list] : kLists)
    if (key != keys::kAveragePatterns) value.set(key, Value::list_of(this->*list));
  std::vector<Value> groups;
  for (const SubParams& group : sub_params) groups.push_back(group.source);
  if (!groups.empty()) value.set(keys::kSubParams, Value::list(std::move(groups)));
  return value;
}

UniversalInfo::SubParams UniversalInfo::whole_cut(const std::string& pattern,
                                                  const std::vector<int64_t>& shape,
                                                  int partition_dim) {
  SubParams cut{.patterns = {pattern}, .partition_dim = partition_dim};
  std::vector<Value> sizes;
  for (const int64_t size : shape) {
    cut.shape.push_back({size});
    sizes.emplace_back(size);
  }
  cut.source = Value::dict({{keys::kPatterns, Value::list_of(cut.patterns)},
                            {keys::kShape, Value::tuple(std::move(sizes))},
                            {keys::kPartitionDim, partition_dim}});
  return cut;
}

std::string pattern_of(const std::string& name) {
  static const std::regex number(R"((^|\.)\d+\.)", kLinear);
  return std::regex_replace(name, number, R"($1\d+.)");
}

MergeRules::MergeRules(const UniversalInfo& info) : info_(info), map_budget_(kMostMapNumbers) {
  for (const auto& [key, list] : kLists)
    for (const std::string& text : info.*list)
      add({.text = text, .from = From::kList, .list = list});
  for (const UniversalInfo::SubParams& group : info.sub_params)
    for (const std::string& text : group.patterns)
      add({.text = text, .from = From::kSubParams, .sub_params = &group});
  for (const auto& [text, map] : info.affine_maps)
    add({.text = text, .from = From::kAffineMap, .map = map});
}

void MergeRules::add(Pattern pattern) {
  const size_t index = patterns_.size();
  if (const auto name = only_name(pattern.text)) {
    by_name_[*name].push_back(index);
  } else {
    check_size(pattern.text);
    try {
      pattern.regex = std::regex(pattern.text, kLinear);
    } catch (const std::regex_error& error) {
      throw Unreadable(cannot_read(pattern.text) + ": " + error.what());
    }
    regexes_.push_back(index);
  }
  patterns_.push_back(std::move(pattern));
}

std::string MergeRules::cannot_read(const std::string& text) const {
  return info_.where + ": cannot read the pattern '" + printable(text) + "'";
}

void MergeRules::check_size(const std::string& text) {
  if (text.size() > kMaxPattern) {
    throw Unreadable(cannot_read(text) + " of " + std::to_string(text.size()) +
                     " characters, expected " + std::to_string(kMaxPattern) + " at most");
  }
  if (looks_around(text))
    throw Unreadable(cannot_read(text) + ": a group may begin with (?: and no other (?");
  const size_t times = repetitions(text);
  states_ += text.size() * times;
  width_ += width_of(text) * times;
  if (states_ > kMostStates || width_ > kMostWidth)
    throw Unreadable(info_.where + ": patterns too large in all, up to '" + printable(text) + "'");
}

const MergeRules::Pattern* MergeRules::match(From from, List list, const std::string& name) {
  const Pattern* found = nullptr;
  const auto take = [&](const Pattern& pattern) {
    if (found) {
      throw DamagedFile(info_.where + ": the patterns '" + printable(found->text) + "' and '" +
                        printable(pattern.text) + "' both match " + printable(name));
    }
    found = &pattern;
  };
  const auto is_asked = [&](const Pattern& pattern) {
    return pattern.from == from && pattern.list == list;
  };
  if (const auto alone = by_name_.find(name); alone != by_name_.end()) {
    for (const size_t index : alone->second)
      if (is_asked(patterns_[index])) take(patterns_[index]);
  }
  for (const size_t index : regexes_) {
    const Pattern& pattern = patterns_[index];
    if (is_asked(pattern) &&
        std::regex_search(name, pattern.regex, std::regex_constants::match_continuous))
      take(pattern);
  }
  if (found) used_.insert(found->text);
  return found;
}

MergeRule MergeRules::classify(const std::string& name) {
  using Kind = MergeRule::Kind;
  const auto in = [&](List list) { return match(From::kList, list, name) != nullptr; };
  MergeRule rule;
  rule.vocabulary = in(&UniversalInfo::vocabulary);
  rule.pipeline_replicated = in(&UniversalInfo::pipeline_replicated);
  if (const Pattern* pattern = match(From::kAffineMap, nullptr, name)) {
    rule.kind = Kind::kAffineMap;
    rule.map = std::make_shared<AffineMap>(AffineMap::from_value(pattern->map, map_budget_));
    // The lists that older versions of DeepSpeed need are there too, and so have a use.
    for (const auto& [key, list] : kLists) in(list);
    match(From::kSubParams, nullptr, name);
    return rule;
  }
  if (in(&UniversalInfo::tp_replicated)) {
    rule.kind = Kind::kReplicated;
  } else if (in(&UniversalInfo::average)) {
    rule.kind = Kind::kAverage;
  } else if (in(&UniversalInfo::two_sub_params)) {
    rule.kind = Kind::kTwoSubParams;
  } else if (const Pattern* fused = match(From::kSubParams, nullptr, name)) {
    rule.kind = Kind::kSubParams;
    rule.sub_params = fused->sub_params;
    if (const auto widths = info_.sub_param_widths.find(fused->text);
        widths != info_.sub_param_widths.end()) {
      rule.widths = widths->second;
    }
  } else if (in(&UniversalInfo::row_parallel)) {
    rule.cat_dim = 1;
  }
  return rule;
}

std::vector<std::string> MergeRules::unused() const {
  std::vector<std::string> result;
  for (const Pattern& pattern : patterns_) {
    if (pattern.from != From::kAffineMap && pattern.list != &UniversalInfo::pipeline_replicated &&
        !used_.contains(pattern.text))
      result.push_back(pattern.text);
  }
  return result;
}

bool is_megatron_row_parallel(const std::string& name) {
  return name.ends_with(".self_attention.dense.weight") ||
         name.ends_with(".mlp.dense_4h_to_h.weight");
}

MergeShape merge_shape(const std::string& name, const MergeRule& rule,
                       std::span<const Shape> shards, std::optional<int64_t> vocabulary) {
  using Kind = MergeRule::Kind;
  if (rule.map) return rule.map->merge(name, shards, rule.vocabulary ? vocabulary : std::nullopt);
  MergeShape result{shards[0], {}};
  CutRule& cut = result.cut;
  if (rule.vocabulary && rule.kind != Kind::kConcatenate) {
    throw DamagedFile(
        name + ": is a vocabulary, which can only be cut by rows, but a pattern says otherwise");
  }
  if (rule.kind == Kind::kReplicated || rule.kind == Kind::kAverage ||
      (shards.size() == 1 && shards[0].empty())) {
    cut.replicated = true;
    for (const Shape& shard : shards) {
      if (shard == shards[0]) continue;
      throw DamagedFile(name + ": should be the same on all tp ranks, but has the shapes " +
                        to_string(shards[0]) + " and " + to_string(shard));
    }
    return result;
  }
  if (rule.kind == Kind::kSubParams)
    return merge_sub_params(name, *rule.sub_params, rule.widths, shards);
  cut.dim = rule.cat_dim;
  const auto dim = static_cast<size_t>(cut.dim);
  const std::vector<int64_t> sizes = cut_sizes(name, dim, shards);
  result.full[dim] = sum_of(sizes);
  if (rule.kind == Kind::kTwoSubParams) {
    std::vector<int64_t> halves;
    for (const int64_t size : sizes) {
      if (size % 2 != 0)
        throw DamagedFile(name + ": two sub-parameters in " + std::to_string(size) + " rows");
      halves.push_back(size / 2);
    }
    cut.parts = {sum_of(halves), sum_of(halves)};
    cut.widths = {halves, halves};
    return result;
  }
  cut.widths = {sizes};
  if (rule.vocabulary) {
    if (!vocabulary)
      throw DamagedFile(name + ": is a vocabulary, but " + std::string(keys::kOriginalVocabSize) +
                        " is missing");
    if (dim != 0 || *vocabulary < 0 || *vocabulary > result.full[0]) {
      throw DamagedFile(name + ": has " + std::to_string(result.full[0]) +
                        " rows, expected a vocabulary of at least " + std::to_string(*vocabulary));
    }
    cut.padded = result.full[0];
    result.full[0] = *vocabulary;
  }
  return result;
}

std::vector<Value::Entry> merge_keys(const MergeRule& rule, const CutRule& cut) {
  std::vector<Value::Entry> entries;
  if (rule.kind == MergeRule::Kind::kSubParams) {
    entries.emplace_back(keys::kSubParamShape, sub_param_shape(*rule.sub_params, cut));
  } else if (rule.kind == MergeRule::Kind::kTwoSubParams ||
             rule.kind == MergeRule::Kind::kConcatenate) {
    entries.emplace_back(keys::kCatDim, rule.cat_dim);
    if (rule.kind == MergeRule::Kind::kTwoSubParams)
      entries.emplace_back(keys::kParamNSubParams, 2);
  }
  if (rule.vocabulary) entries.emplace_back(keys::kVocabTensor, true);
  return entries;
}

}  // namespace anymesh
