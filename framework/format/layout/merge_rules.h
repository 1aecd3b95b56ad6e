#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <regex>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "framework/format/layout/shard_layout.h"
#include "framework/format/torch_file/value.h"

namespace anymesh {

struct AffineMap;  // layout/affine_map.h: the map of one parameter of DeepSpeed's AutoTP

// How the shards of a parameter make up the full tensor, as ParamSpec says it. `pattern` is
// pattern_of() its name.
struct ParameterCut {
  std::string pattern;
  int split_dim = -1, sub_params = 1;
  bool vocabulary = false, tied = false;
  std::vector<int64_t> shape;
  auto operator<=>(const ParameterCut&) const = default;
};

// `universal_checkpoint_info` of a model-states file. Its regular expressions over parameter names
// say how the tensor-parallel shards make up the full tensors. Patterns match from the start of a
// name but not to its end, as Python's re.match does: `\d+.mlp.dense_4h_to_h.weight`.
struct UniversalInfo {
  // Parameters made of several others, e.g. fused q, k and v of different sizes.
  struct SubParams {
    std::vector<std::string> patterns;
    std::vector<std::vector<int64_t>> shape;  // a dim may be a list of sizes, or -1 for any size
    int partition_dim = 0;
    bool is_count = false;  // the shape has the number of sub-parameters, not their sizes
    Value source;           // as in the file, to be copied
  };

  // Parameters of one shape that are cut along any dim, as one part.
  static SubParams whole_cut(const std::string& pattern, const std::vector<int64_t>& shape,
                             int partition_dim);

  std::string where = "universal_checkpoint_info";  // names the file in messages
  double version = 0.4;
  std::optional<int64_t> original_vocab_size, padded_vocab_size;
  std::vector<std::string> vocabulary, pipeline_replicated, tp_replicated, average, row_parallel,
      two_sub_params;
  bool has_row_parallel = false;  // whether the key was there; Megatron leaves it out at tp 1
  bool has_pipeline_replicated = false;  // the same; DeepSpeed's own pipelines publish nothing
  std::vector<SubParams> sub_params;
  // pattern -> [part][rank]
  std::map<std::string, std::vector<std::vector<int64_t>>> sub_param_widths;
  std::vector<std::pair<std::string, Value>> affine_maps;  // by pattern; they win over all others

  // Returns the info of a model with these parameters, but for its vocabulary's size.
  static UniversalInfo of(const std::set<ParameterCut>& parameters);
  // Throws Unreadable for layouts that DeepSpeed marked as unsupported, and for affine maps of a
  // newer version: this program cannot merge them. MergeRules refuses patterns that would take it
  // too long: look-around, and more repetitions than any system's patterns have.
  static UniversalInfo from_value(const Value& value);
  Value to_value() const;  // all keys of a Megatron checkpoint, at every tp size
};

// Returns the regular expression that a parameter's counterparts in all layers match:
// 2.weight -> \d+.weight, layers.0.weight -> layers.\d+.weight
std::string pattern_of(const std::string& name);

// How the shards of one parameter make up the full tensor.
struct MergeRule {
  enum class Kind { kReplicated, kAverage, kTwoSubParams, kSubParams, kConcatenate, kAffineMap };
  Kind kind = Kind::kConcatenate;
  int cat_dim = 0;
  bool vocabulary = false;
  bool pipeline_replicated = false;
  const UniversalInfo::SubParams* sub_params = nullptr;
  std::vector<std::vector<int64_t>> widths;  // sub-parameters', if recorded
  std::shared_ptr<const AffineMap> map;
};

// Finds the rule for a name. Throws if two patterns of the same category match the name.
class MergeRules {
 public:
  explicit MergeRules(const UniversalInfo& info);
  MergeRule classify(const std::string& name);
  // Patterns that are unmatched so far; never pipeline_replicated's, nor those of affine maps.
  std::vector<std::string> unused() const;

 private:
  using List = std::vector<std::string> UniversalInfo::*;
  enum class From { kList, kSubParams, kAffineMap };
  struct Pattern {
    std::string text;
    From from;
    List list = nullptr;                                   // that has it
    const UniversalInfo::SubParams* sub_params = nullptr;  // that have it
    Value map;                                             // that it is the key of
    std::regex regex = {};                                 // unless it stands for one name alone
  };
  void add(Pattern pattern);
  std::string cannot_read(const std::string& text) const;
  void check_size(const std::string& text);
  // Returns the only pattern of a list, of the sub-parameters or of the maps that matches.
  const Pattern* match(From from, List list, const std::string& name);

  const UniversalInfo& info_;
  std::vector<Pattern> patterns_;
  std::vector<size_t> regexes_;                                   // the patterns that have one
  std::unordered_map<std::string, std::vector<size_t>> by_name_;  // all others
  std::set<std::string> used_;
  int64_t map_budget_;
  size_t states_ = 0, width_ = 0;  // sums over all compiled patterns
};

// Megatron publishes the row-parallel patterns only at tp > 1. Without them, a universal checkpoint
// made at tp 1 would be cut along the wrong dim at the next tp size. These are its names.
bool is_megatron_row_parallel(const std::string& name);

// The full tensor's shape and the cut of its shards. merge_shape() finds them from the shards'
// shapes (one for each tp rank) and throws if the shards do not fit together. `vocabulary` is the
// true number of rows.
struct MergeShape {
  Shape full;
  CutRule cut;
};
MergeShape merge_shape(const std::string& name, const MergeRule& rule,
                       std::span<const Shape> shards, std::optional<int64_t> vocabulary);

// Returns a state file's keys about the rule and the cut, in DeepSpeed's order, without the tensor.
std::vector<Value::Entry> merge_keys(const MergeRule& rule, const CutRule& cut = {});

}  // namespace anymesh
