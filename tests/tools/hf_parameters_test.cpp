#include <algorithm>
#include <numeric>

#include "tests/support/checkpoints.h"
#include "tests/tools/hf_models.h"
#include "tools/hf/gpt/args.h"
#include "tools/hf/gpt/parameters.h"
#include "tools/hf/tensors.h"

namespace anymesh {
namespace {

class HfFamilies : public ::testing::TestWithParam<const char*> {};
std::vector<const char*> model_types() {
  std::vector<const char*> types;
  for (const Family* family : families()) types.push_back(family->model_type);
  return types;
}
INSTANTIATE_TEST_SUITE_P(All, HfFamilies, ::testing::ValuesIn(model_types()),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(HfFamilies, EveryElementHasOnePlaceOnTheOtherSide) {
  const HfModel model = tiny(GetParam());
  for (const HfParameter& parameter : hf_parameters(model)) {
    std::vector<float> values(static_cast<size_t>(numel(parameter.shape)));
    std::iota(values.begin(), values.end(), 0.0f);
    const auto theirs = theirs_of(parameter, bytes_of(values));
    ASSERT_EQ(theirs.size(), parameter.theirs.size());
    std::vector<float> seen;
    for (size_t i = 0; i < theirs.size(); ++i) {
      const std::vector<float> part = floats(*theirs[i]);
      EXPECT_EQ(part.size(), static_cast<size_t>(numel(parameter.theirs[i].shape)));
      seen.insert(seen.end(), part.begin(), part.end());
    }
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(seen, values) << parameter.name;
    EXPECT_EQ(floats(*ours_of(parameter, theirs)), values) << parameter.name;
  }
}

// Reads any range of whole elements, as blocks of a file are read.
TEST_P(HfFamilies, AnyRangeReadsAsPartOfTheWhole) {
  const HfModel model = tiny(GetParam());
  for (const HfParameter& parameter : hf_parameters(model)) {
    if (parameter.name.find("query_key_value.weight") == std::string::npos) continue;
    std::vector<float> values(static_cast<size_t>(numel(parameter.shape)));
    std::iota(values.begin(), values.end(), 0.0f);
    for (const BytesPtr& bytes : theirs_of(parameter, bytes_of(values))) {
      const std::vector<float> whole = floats(*bytes);
      for (size_t begin = 0; begin < whole.size(); begin += 5) {
        std::vector<float> part(std::min<size_t>(31, whole.size() - begin));
        bytes->read(begin * sizeof(float), std::as_writable_bytes(std::span(part)));
        EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<long>(begin)));
      }
    }
  }
}

TEST_P(HfFamilies, ConfigsAndArgsSayTheSame) {
  HfModel model = tiny(GetParam());
  if (GetParam() != std::string("opt")) model.gpt.layernorm_epsilon = 1e-4;  // it has no key
  EXPECT_EQ(&family_of(model.gpt, GetParam()), model.family);
  GptConfig again = gpt_of_args(args_of_gpt(model.gpt));
  again.vocab_size = model.gpt.vocab_size;
  EXPECT_EQ(&family_of(again, GetParam()), model.family);
  EXPECT_EQ(hf_config_text({model.family, again}), hf_config_text(model));
}

TEST(HfParameters, FusedRowsAreOrderedByGroup) {
  HfModel model = tiny("llama");
  model.gpt.hidden_size = model.gpt.num_attention_heads = 4;  // heads of one row
  for (const HfParameter& parameter : hf_parameters(model)) {
    if (parameter.name != "2.self_attention.query_key_value.weight") continue;
    EXPECT_EQ(parameter.theirs[1].name, "model.layers.0.self_attn.k_proj.weight");
    EXPECT_EQ(parameter.theirs[1].shape, (Shape{2, 4}));
    std::vector<BytesPtr> theirs;
    float row = 0;
    for (const size_t rows : {4, 2, 2}) {
      std::vector<float> values;
      for (size_t i = 0; i < rows; ++i, ++row) values.insert(values.end(), 4, row);
      theirs.push_back(bytes_of(values));
    }
    const std::vector<float> ours = floats(*ours_of(parameter, theirs));
    for (const auto& [at, expected] :
         std::vector<std::pair<int, float>>{{0, 0}, {1, 1}, {2, 4}, {3, 6}, {4, 2}, {7, 7}})
      EXPECT_EQ(ours[static_cast<size_t>(4 * at)], expected) << at;
    return;
  }
  FAIL() << "no such parameter";
}

}  // namespace
}  // namespace anymesh
