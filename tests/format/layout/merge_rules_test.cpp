#include "framework/format/layout/merge_rules.h"

#include "framework/format/layout/names.h"
#include "tests/support/fixtures.h"

namespace anymesh {
namespace {

using Kind = MergeRule::Kind;

UniversalInfo example() {
  UniversalInfo info;
  info.original_vocab_size = 257;
  info.vocabulary = {"tied_modules.embed.word_embeddings.weight"};
  info.pipeline_replicated = {"tied_modules.embed.word_embeddings.weight"};
  info.tp_replicated = {R"(\d+.input_layernorm.weight)", R"(\d+.weight)"};
  info.average = {R"(\d+.scale)"};
  info.row_parallel = {R"(\d+.mlp.dense_4h_to_h.weight)"};
  info.two_sub_params = {R"(\d+.mlp.dense_h_to_4h.weight)"};
  return info;
}

TEST(UniversalInfo, RoundTripsThroughItsValue) {
  const Value value = example().to_value();
  const UniversalInfo info = UniversalInfo::from_value(value);
  EXPECT_EQ(info.to_value(), value);
  EXPECT_EQ(info.original_vocab_size, 257);
  EXPECT_TRUE(info.has_row_parallel);
}

TEST(UniversalInfo, ReadsThatOfMegatron) {
  const auto folder = fixture("z1-bf16-tp2pp2dp1") / "checkpoint" / tag_folder(10);
  const Value value = read_torch_file(folder / model_states_file(0)).at(keys::kUniversalInfo);
  const UniversalInfo info = UniversalInfo::from_value(value);
  EXPECT_EQ(info.to_value(), value);
  EXPECT_EQ(info.tp_replicated.size(), 9u);
  const Value at_tp1 = read_torch_file(fixture("z1-bf16-tp1pp1dp2") / "checkpoint" /
                                       tag_folder(10) / model_states_file(0));
  EXPECT_FALSE(UniversalInfo::from_value(at_tp1.at(keys::kUniversalInfo)).has_row_parallel);
}

TEST(UniversalInfo, RefusesWhatItCannotMerge) {
  Value value = example().to_value();
  value.set(keys::kAffineMap, Value::dict({{"version", 2}, {"params", Value::dict()}}));
  EXPECT_THROW(UniversalInfo::from_value(value), Unreadable);
  value.set(keys::kAffineMap, Value::dict({{"version", 1}, {"params", 1}}));
  EXPECT_THROW(UniversalInfo::from_value(value), DamagedFile);
  value.erase(keys::kAffineMap).set(keys::kUnsupportedPatterns, Value::dict({{"p", "reason"}}));
  EXPECT_THROW(UniversalInfo::from_value(value), Unreadable);
  value.erase(keys::kUnsupportedPatterns).set(keys::kVocabularyPatterns, "not a list");
  EXPECT_THROW(UniversalInfo::from_value(value), DamagedFile);
}

TEST(MergeRules, PatternsMatchFromTheStartOnly) {
  const UniversalInfo info = example();
  MergeRules rules(info);
  EXPECT_EQ(rules.classify("12.mlp.dense_4h_to_h.weight").cat_dim, 1);
  EXPECT_EQ(rules.classify("x.12.mlp.dense_4h_to_h.weight").cat_dim, 0);
  EXPECT_EQ(rules.classify("12.mlp.dense_4h_to_h.weight_scale").cat_dim, 1);  // as re.match does
  EXPECT_EQ(rules.classify("6.weight").kind, Kind::kReplicated);
  EXPECT_EQ(rules.classify("2.self_attention.query_key_value.weight").kind, Kind::kConcatenate);
  EXPECT_EQ(rules.classify("2.mlp.dense_h_to_4h.weight").kind, Kind::kTwoSubParams);
  EXPECT_EQ(rules.classify("2.scale").kind, Kind::kAverage);
  const MergeRule embedding = rules.classify("tied_modules.embed.word_embeddings.weight");
  EXPECT_TRUE(embedding.vocabulary && embedding.pipeline_replicated);
}

// AutoTP has such a pattern for each parameter, far more than a regular expression may cost.
TEST(MergeRules, PatternsOfOneNameCostNothing) {
  UniversalInfo info;
  for (int layer = 0; layer < 10000; ++layer)
    info.tp_replicated.push_back("^layers\\." + std::to_string(layer) + "\\.norm\\-1$");
  MergeRules rules(info);
  EXPECT_EQ(rules.classify("layers.9999.norm-1").kind, Kind::kReplicated);
  EXPECT_EQ(rules.classify("layers.9999.norm-12").kind, Kind::kConcatenate);
  EXPECT_EQ(rules.classify("layersX1.norm-1").kind, Kind::kConcatenate);
  EXPECT_EQ(rules.unused().size(), 9999u);
  info.tp_replicated = {"^a.c$", "^d\\d$"};  // these have several
  MergeRules several(info);
  EXPECT_EQ(several.classify("abc").kind, Kind::kReplicated);
  EXPECT_EQ(several.classify("d1").kind, Kind::kReplicated);
}

TEST(MergeRules, ReportsPatternsWithoutParameter) {
  const UniversalInfo info = example();
  MergeRules rules(info);
  rules.classify("2.input_layernorm.weight");
  rules.classify("tied_modules.embed.word_embeddings.weight");
  EXPECT_EQ(rules.unused(),
            (std::vector<std::string>{info.tp_replicated[1], info.average[0], info.row_parallel[0],
                                      info.two_sub_params[0]}));
}

TEST(MergeRules, RefusesTwoPatternsOfACategory) {
  UniversalInfo info = example();
  info.tp_replicated.push_back(R"(\d+.*norm.*)");
  MergeRules rules(info);
  EXPECT_REFUSES(rules.classify("2.input_layernorm.weight"), "both match 2.input_layernorm.weight");
  info.tp_replicated = {"("};
  EXPECT_REFUSES(MergeRules broken(info), "cannot read the pattern '('");
  info.tp_replicated = {std::string(100000, '(')};
  EXPECT_REFUSES(MergeRules huge(info), "of 100000 characters");
  // These are small, but large once compiled.
  for (const auto& bombs : {std::vector<std::string>{"a{99999}b{2,9}"},
                            {"((a{100}){,100}){100,}"},
                            std::vector<std::string>(10000, std::string(100, 'a'))}) {
    info.tp_replicated = bombs;
    EXPECT_REFUSES(MergeRules huge(info), "patterns too large") << bombs[0];
  }
  // Each of these doubles the time for every level.
  for (const std::string look : {"(?=", "(?!", "(?<=", "(?:(?="}) {
    std::string nested = "a";
    for (int depth = 0; depth < 20; ++depth)
      nested = look + nested + (look.size() > 4 ? "))" : ")");
    info.tp_replicated = {nested + ".*"};
    EXPECT_REFUSES(MergeRules nests(info), "may begin with (?: and no other") << nested;
  }
  info.tp_replicated = {R"((a)\1)"};  // a back-reference needs backtracking
  EXPECT_NE(message_of([&] { MergeRules back(info); }), "");
  info.tp_replicated = {R"((?:[(?=]\(\?=)\.w)"};  // these only look like groups
  EXPECT_EQ(MergeRules(info).classify("?(?=.w").kind, Kind::kReplicated);
  info.tp_replicated = {R"(\d{1,3}\.w)"};
  EXPECT_EQ(MergeRules(info).classify("12.w").kind, Kind::kReplicated);
}

// A backtracking matcher would not end on the first pattern, and would overflow the stack on the
// second.
TEST(MergeRules, MatchesAnyPatternInLinearTime) {
  UniversalInfo info = example();
  info.average = {"(x+x+)+y", ".*z"};
  MergeRules rules(info);
  EXPECT_EQ(rules.classify(std::string(5000, 'x') + "y").kind, Kind::kAverage);
  EXPECT_NE(rules.classify(std::string(5000, 'x')).kind, Kind::kAverage);
  EXPECT_EQ(rules.classify(std::string(1000000, '1') + "z").kind, Kind::kAverage);
  EXPECT_EQ(pattern_of(std::string(1000000, '1') + ".w"), R"(\d+.w)");
}

MergeRule rule_of(Kind kind, int cat_dim = 0, bool vocabulary = false) {
  MergeRule rule;
  rule.kind = kind;
  rule.cat_dim = cat_dim;
  rule.vocabulary = vocabulary;
  return rule;
}

TEST(MergeShape, FollowsTheRule) {
  const auto merged = [](const MergeRule& rule, std::vector<Shape> shards) {
    return merge_shape("p", rule, shards, 10).full;
  };
  EXPECT_EQ(merged(rule_of(Kind::kConcatenate), {{4, 3}, {4, 3}}), (Shape{8, 3}));
  EXPECT_EQ(merged(rule_of(Kind::kConcatenate), {{4, 3}, {5, 3}}), (Shape{9, 3}));  // uneven
  EXPECT_EQ(merged(rule_of(Kind::kConcatenate, 1), {{4, 3}, {4, 3}}), (Shape{4, 6}));
  EXPECT_EQ(merged(rule_of(Kind::kReplicated), {{4}, {4}}), (Shape{4}));
  EXPECT_EQ(merged(rule_of(Kind::kTwoSubParams), {{4, 3}, {4, 3}}), (Shape{8, 3}));
  EXPECT_EQ(merged(rule_of(Kind::kConcatenate, 0, true), {{6, 3}, {6, 3}}), (Shape{10, 3}));
  EXPECT_EQ(merged(rule_of(Kind::kConcatenate), {{}}), (Shape{}));
}

TEST(MergeShape, RefusesShardsThatDoNotFit) {
  const auto merge = [](const MergeRule& rule, std::vector<Shape> shards,
                        std::optional<int64_t> vocabulary = 10) {
    return merge_shape("p", rule, shards, vocabulary);
  };
  EXPECT_THROW(merge(rule_of(Kind::kConcatenate), {{4, 3}, {4, 2}}), DamagedFile);
  EXPECT_THROW(merge(rule_of(Kind::kConcatenate, 1), {{4}, {4}}), DamagedFile);
  EXPECT_THROW(merge(rule_of(Kind::kConcatenate), {{}, {}}), DamagedFile);
  EXPECT_THROW(merge(rule_of(Kind::kReplicated), {{4}, {5}}), DamagedFile);
  EXPECT_THROW(merge(rule_of(Kind::kTwoSubParams), {{3}, {3}}), DamagedFile);
  EXPECT_THROW(merge(rule_of(Kind::kConcatenate, 0, true), {{4, 3}, {4, 3}}), DamagedFile);
  EXPECT_THROW(merge(rule_of(Kind::kConcatenate, 0, true), {{6, 3}, {6, 3}}, std::nullopt),
               DamagedFile);
  EXPECT_THROW(merge(rule_of(Kind::kReplicated, 0, true), {{12, 3}, {12, 3}}), DamagedFile);
}

TEST(MergeShape, SubParametersHaveSizesAndWidthsOfTheirOwn) {
  Value spec = Value::dict({{keys::kPatterns, Value::list({"qkv"})},
                            {keys::kShape, Value::tuple({Value::tuple({8, 4, 4}), 3})},
                            {keys::kPartitionDim, 0}});
  UniversalInfo info;
  info.sub_params =
      UniversalInfo::from_value(example().to_value().set(keys::kSubParams, Value::list({spec})))
          .sub_params;
  info.sub_param_widths["qkv"] = {{6, 2}, {2, 2}, {2, 2}};
  MergeRules rules(info);
  const MergeRule rule = rules.classify("qkv");
  const MergeShape merged = merge_shape("qkv", rule, std::vector<Shape>{{10, 3}, {6, 3}}, {});
  EXPECT_EQ(merged.full, (Shape{16, 3}));
  EXPECT_EQ(merged.cut.parts, (std::vector<int64_t>{8, 4, 4}));
  EXPECT_EQ(ShardLayout::make(merged.full, merged.cut, 2, 1).shard_shape(), (Shape{6, 3}));
  EXPECT_TRUE(merge_keys(rule)[0].second.is_object("SubparamShape"));
  EXPECT_THROW(merge_shape("qkv", rule, std::vector<Shape>{{8, 3}, {8, 3}}, {}), DamagedFile);
  spec.set(keys::kShape, Value::tuple({Value::tuple({INT64_MAX, 1}), 3}));
  EXPECT_REFUSES(
      UniversalInfo::from_value(example().to_value().set(keys::kSubParams, Value::list({spec}))),
      "['parameter_with_sub_params'][0]['shape'][0]: expected sizes that add up");
}

// Returns the merged shape of the only sub-parameters in an info of this version.
MergeShape merge_fused(const Value& shape, int dim, double version, std::vector<Shape> shards,
                       std::vector<std::vector<int64_t>> widths = {}) {
  const Value spec = Value::dict({{keys::kPatterns, Value::list({"^qkv$"})},
                                  {keys::kShape, shape},
                                  {keys::kPartitionDim, dim}});
  UniversalInfo info = UniversalInfo::from_value(
      Value::dict({{keys::kUniversalVersion, version}, {keys::kSubParams, Value::list({spec})}}));
  info.sub_param_widths["^qkv$"] = std::move(widths);
  return merge_shape("qkv", MergeRules(info).classify("qkv"), shards, {});
}

TEST(MergeShape, OneSizeOfAFusedShapeMayBeOpen) {
  const Value sizes = Value::tuple({8, 4, 4});
  const MergeShape merged =
      merge_fused(Value::list({sizes, -1}), 0, 0.4, {{10, 3}, {6, 3}}, {{6, 2}, {2, 2}, {2, 2}});
  EXPECT_EQ(merged.full, (Shape{16, 3}));
  // A view of three dims, of which tp cuts the middle one; the shards are matrices.
  const MergeShape middle =
      merge_fused(Value::list({3, Value::tuple({3}), -1}), 1, 0.4, {{6, 8}, {3, 8}}, {{2, 1}});
  EXPECT_EQ(middle.full, (Shape{3, 3, 8}));
  EXPECT_EQ(ShardLayout::make(middle.full, middle.cut, 2, 1).shard_shape(), (Shape{3, 1, 8}));
  EXPECT_THROW(merge_fused(Value::list({sizes, -1}), 0, 0.4, {{10, 3}, {6, 2}}), DamagedFile);
  EXPECT_THROW(merge_fused(Value::list({-1, -1}), 0, 0.4, {{10, 3}, {6, 3}}), DamagedFile);
  EXPECT_THROW(merge_fused(Value::list({0, -1}), 0, 0.4, {{0, 3}, {0, 3}}), DamagedFile);
  EXPECT_THROW(merge_fused(Value::list({-2, 3}), 0, 0.4, {{1, 3}, {1, 3}}), DamagedFile);
  EXPECT_THROW(merge_fused(Value::list({Value::tuple(), 3}), 0, 0.4, {{1, 3}}), DamagedFile);
}

TEST(MergeShape, OldFusedShapesHaveTheNumberOfParts) {
  const Value shape = Value::tuple({3, -1});
  const MergeShape merged = merge_fused(shape, 0, 0.2, {{6, 5}, {6, 5}});
  EXPECT_EQ(merged.full, (Shape{12, 5}));
  EXPECT_EQ(merged.cut.parts, (std::vector<int64_t>{4, 4, 4}));
  EXPECT_THROW(merge_fused(shape, 0, 0.2, {{5, 5}, {5, 5}}), DamagedFile);
  EXPECT_THROW(merge_fused(shape, 0, 0.2, {{9, 5}, {6, 5}}), DamagedFile);  // 5 / 2
  EXPECT_THROW(merge_fused(Value::tuple({INT64_MAX, -1}), 0, 0.2, {{0, 5}}), DamagedFile);
}

TEST(MergeKeys, AreThoseOfDeepSpeed) {
  const auto keys_of = [](const MergeRule& rule) {
    std::string text;
    for (const auto& [key, value] : merge_keys(rule))
      text += key.as_string() + "=" + value.found() + " ";
    return text;
  };
  EXPECT_EQ(keys_of(rule_of(Kind::kReplicated)), "");
  EXPECT_EQ(keys_of(rule_of(Kind::kConcatenate, 1)), "cat_dim=1 ");
  EXPECT_EQ(keys_of(rule_of(Kind::kConcatenate, 0, true)), "cat_dim=0 vocab_tensor=True ");
  EXPECT_EQ(keys_of(rule_of(Kind::kTwoSubParams)), "cat_dim=0 param_n_sub_params=2 ");
}

}  // namespace
}  // namespace anymesh
