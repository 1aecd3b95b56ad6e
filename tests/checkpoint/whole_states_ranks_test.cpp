// States of whole parameters survive saves, loads on any mesh, ds_to_universal and ds_reshard, bit
// for bit.
#include "framework/format/layout.h"
#include "framework/format/reshard/reshard.h"
#include "framework/format/whole.h"
#include "tests/support/checkpoints.h"
#include "tests/support/tiny_run.h"
#include "tests/support/whole_optimizer.h"

namespace anymesh {
namespace {

struct Place {
  Topology mesh;
  int stage;
  torch::Dtype dtype;
};

TinyOptions options_of(torch::Dtype dtype) {
  TinyOptions options{.dtype = dtype};
  options.optimizer = std::make_shared<WholeOptimizer>();
  options.settings = {{.flag = "num-layers", .dest = "num_layers", .value = 2}};  // for ds_reshard
  return options;
}

class WholeStates : public SharedFolder {
 public:
  // Returns the states of parameters in zero/ of the universal folder that is made from `tag`.
  std::map<std::string, std::string> states_of(const fs::path& tag) {
    const fs::path universal = fs::path(tag).concat("_universal");
    on_first_rank([&] { convert_to_universal({.input = tag, .output = universal}, {}); });
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(universal / kZeroFolder))
      if (entry.is_regular_file() && entry.path().filename() != kOptimizerStateFile)
        files[entry.path().lexically_relative(universal)] = read_file(entry.path());
    test_world()->barrier();
    return files;
  }
};

RANKS_TEST_F(WholeStates, AreTheSameOnEveryMesh) {
  const Place places[] = {{kSplit, 1, torch::kFloat},
                          {kData, 3, torch::kBFloat16},
                          {kSlices, 0, torch::kFloat},
                          {kPipes, 2, torch::kFloat}};
  for (const Place& from : places) {
    clear();
    TinyRun first(from.mesh, from.stage, options_of(from.dtype));
    first.train(2);
    first.engine.save_checkpoint(folder_ / "a");
    const auto expected = states_of(folder_ / "a/global_step2");
    EXPECT_TRUE(expected.contains("zero/2.mlp.dense_h_to_4h.weight/gram.pt"));
    EXPECT_TRUE(expected.contains("zero/tied_modules.embed.word_embeddings.weight/rows.pt"));
    const double next = first.train(1);
    for (const Place& to : places) {
      const double near = from.dtype == to.dtype ? 1e-5 : 1e-2;
      for (const bool universal : {false, true}) {
        TinyRun second(to.mesh, to.stage, options_of(to.dtype));
        if (universal) {
          second.engine.load_checkpoint(folder_ / "a",
                                        {.tag = "global_step2_universal", .universal = true});
        } else {
          second.engine.load_checkpoint(folder_ / "a");
        }
        second.engine.save_checkpoint(folder_ / "b");
        EXPECT_EQ(states_of(folder_ / "b/global_step2"), expected)
            << describe(from.mesh) << " to " << describe(to.mesh) << ", universal " << universal;
        EXPECT_NEAR(second.train(1), next, near);
        test_world()->barrier();
        on_first_rank([&] { fs::remove_all(folder_ / "b"); });
      }
      const Topology& mesh = to.mesh;
      const std::string target = c10::str("tp=", mesh.tp_size, ",pp=", mesh.pp_size,
                                          ",dp=", mesh.dp_size, ",zero=", to.stage, ",dtype=fp32");
      on_first_rank([&] {
        reshard({.input = folder_ / "a/global_step2",
                 .output = folder_ / "c/global_step2",
                 .target = ReshardTarget::parse(target)},
                {});
      });
      EXPECT_EQ(states_of(folder_ / "c/global_step2"), expected) << target;
      TinyRun third(to.mesh, to.stage, options_of(to.dtype));
      third.engine.load_checkpoint(folder_ / "c");
      EXPECT_NEAR(third.train(1), next, near);
      test_world()->barrier();
      on_first_rank([&] { fs::remove_all(folder_ / "c"); });
    }
  }
}

RANKS_TEST_F(WholeStates, AreRefusedWhereTheyDoNotFit) {
  TinyRun run(kSlices, 1, options_of(torch::kFloat));
  run.train_and_save(1, folder_);
  for (const auto& damage : std::initializer_list<std::pair<Edit, const char*>>{
           {[](Value& value) {
              value = Value::dict({{"../size", value.at("size")}});
            },
            "../size"},
           {[](Value& value) { value.set("momentum", value.at("size")); }, "momentum"},
           {[](Value& value) { value.set("rows", value.at("size")); }, "rows"},
           {[](Value& value) { value.erase("rows"); }, "rows"}}) {
    const fs::path tag = folder_ / "global_step1";
    const std::string name = "2.mlp.dense_h_to_4h.weight";
    std::map<fs::path, std::string> kept;
    on_first_rank([&] {
      fs::remove(tag / kManifestFile);  // else sizes tell before contents
      for (const int mp : {0, 1}) {
        const fs::path file = tag / model_states_file(mp);
        kept[file] = read_file(file);
        change(file, {keys::kWholeStates, name}, damage.first);
      }
    });
    TinyRun other(kData, 1, options_of(torch::kFloat));
    EXPECT_REFUSES(other.engine.load_checkpoint(folder_, {.tag = "global_step1"}), damage.second);
    test_world()->barrier();
    on_first_rank([&] {
      for (const auto& [file, content] : kept) write_file(file, content);
    });
  }
}

}  // namespace
}  // namespace anymesh
