#include "tests/tools/ckpt_support.h"
#include "tests/tools/plots.h"
#include "tools/plot/figure.h"

namespace anymesh {
namespace {

// Returns the rectangles that are parts of a tensor: not the bars of 4 pixels at texts. They lie a
// pixel apart.
std::vector<Rectangle> parts_of(const std::string& svg) {
  std::vector<Rectangle> parts = rectangles(svg, "s\\d+");
  std::erase_if(parts, [](const Rectangle& part) { return part.width == 4; });
  for (Rectangle& part : parts) ++part.width, ++part.height;
  return parts;
}

TEST_F(Ckpt, FigureShowsFilesByRank) {
  const Figure figure = checkpoint_figure(fixture(kMesh) / "checkpoint");
  EXPECT_EQ(figure.title, "global_step10");
  for (const char* text :
       {">bf16_zero_pp_rank_0_mp_rank_03_optim_states.pt<", ">tp 1, pp 1, dp 0<",
        ">6 x layer_*-model_*-model_states.pt<", "tp 2, pp 2, dp 1; 20 files, 4.0 MB"})
    EXPECT_THAT(figure.body, HasSubstr(text));
  EXPECT_THAT(figure.seen, HasSubstr("20 files"));
}

TEST_F(Ckpt, FigureOfAUniversalFolderHasARowForEachState) {
  const Figure figure = checkpoint_figure(fixture("z1-bf16-tp1pp1dp2") / "universal");
  for (const char* text : {">52 x zero/*/fp32.pt<", ">52 x zero/*/exp_avg_sq.pt<"})
    EXPECT_THAT(figure.body, HasSubstr(text));
}

TEST_F(Ckpt, FigureOfAParameterNamesItsPlaces) {
  const std::string name = "3.mlp.dense_4h_to_h.weight";
  const Figure figure = parameter_figure(fixture(kMesh) / "checkpoint", name);
  EXPECT_EQ(figure.title, name + " [64, 256]");
  const SavedParameter parameter = open_checkpoint(tag_of(kMesh), 2).parameter(name);
  for (const ParameterShard& shard : *parameter.shards)
    for (const auto& [state, held] : shard.states) {
      const FileRange place =
          tensor_of(held.fragments.at(0), held.dtype).bytes->places(0, 4 * 8192).at(0);
      EXPECT_THAT(figure.body, HasSubstr(place.file.filename().string()));
      EXPECT_THAT(figure.body, HasSubstr(state + ": 32768 bytes at " +
                                         std::to_string(place.offset) + ", in data/"));
    }
  EXPECT_EQ(parts_of(figure.body).size(), 2u);
}

// The parts of each parameter fill a rectangle.
TEST_F(Ckpt, FiguresOfParametersHaveNoHoles) {
  size_t most = 0;
  for (const char* saved : {"z0-fp32-tp2dp2", "z2-bf16-dp3", "z1-bf16-tp2pp1dp1-llama",
                            "z1-bf16-tp2pp2dp1", "z3-fp32-dp3-frozen"}) {
    const auto tag = tag_of(saved);
    const Checkpoint whole = open_checkpoint(tag, 2);
    for (const std::string& name : whole.names()) {
      const std::vector<Rectangle> parts = parts_of(parameter_figure(tag, name).body);
      double area = 0, right = 0, bottom = 0, left = INFINITY, top = INFINITY;
      for (const auto& [x, y, width, height, style] : parts) {
        area += width * height;
        left = std::min(left, x);
        top = std::min(top, y);
        right = std::max(right, x + width);
        bottom = std::max(bottom, y + height);
      }
      EXPECT_NEAR(area / ((right - left) * (bottom - top)), 1, 0.02) << tag << " " << name;
      most = std::max(most, parts.size());
    }
  }
  EXPECT_GT(most, 4u);
}

}  // namespace
}  // namespace anymesh
