// Files that the dp ranks write together.
#include "framework/checkpoint/torch_bridge.h"
#include "framework/format/folder.h"
#include "framework/format/layout.h"
#include "framework/format/torch_file.h"
#include "framework/util/input_file.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/tiny_run.h"

namespace anymesh {
namespace {

using SharedSave = SharedFolder;
using SharedSaveOfProcesses = SharedFolder;

GptConfig large() {  // its weights fill two parts, with an optimizer's state four
  GptConfig config = tiny();
  config.hidden_size = 256;
  config.vocab_size = 18'000;
  return config;
}

// Compares the file with one rewritten from one process, which must have the same bytes.
void expect_whole(const fs::path& tag, const std::string& name) {
  on_first_rank([&] {
    const fs::path again = tag.parent_path() / name;
    write_torch_file(again, read_torch_file(tag / name));
    EXPECT_TRUE(read_file(again) == read_file(tag / name)) << tag / name;
    EXPECT_EQ(checksum_damage(tag, read_manifest(tag)->files), "");
  });
}

RANKS_TEST_F(SharedSave, HasTheBytesThatOneRankWrites) {
  for (const Topology& mesh : {kData, kPipes}) {
    for (const int stage : {0, 2}) {
      TinyRun run(mesh, stage, {.gpt = large()});
      run.train(1);
      const bool async = (mesh.pp_size > 1) == (stage == 0);  // each with both meshes and stages
      run.engine.save_checkpoint(folder_, {.tag = "t", .async = async});
      run.engine.finish_save();
      test_world()->barrier();
      expect_whole(folder_ / "t", model_states_file(0));
      if (mesh.pp_size > 1) expect_whole(folder_ / "t", layer_states_file(1, 0));
      TinyRun other(mesh, stage, {.gpt = large()});
      other.engine.load_checkpoint(folder_);
      EXPECT_EQ(other.train(1), run.train(1));
    }
  }
}

RANKS_TEST_F(SharedSaveOfProcesses, NeedsEveryRank) {
  TinyRun run(kData, 0, {.gpt = large()});
  for (const int rank : {1, 2, 3}) {
    for (const bool async : {false, true}) {
      std::optional<FileSizeLimit> full;
      if (test_world()->rank() == rank) full.emplace(1 << 20);
      EXPECT_THAT(message_of([&] {
                    run.engine.save_checkpoint(folder_, {.tag = "t", .async = async});
                    run.engine.finish_save();
                  }),
                  HasSubstrs("[rank " + std::to_string(rank) + "]", "File too large"));
      test_world()->barrier();
      EXPECT_FALSE(fs::exists(folder_ / "t"));
    }
  }
}

// A client's state may differ between ranks. Then dp rank 0's is saved, as it has always been.
RANKS_TEST_F(SharedSave, IsOneRanksWhereWhatTheyGiveDiffers) {
  TinyRun run(kData, 0, {.gpt = large()});
  run.train(1);
  for (const bool in_a_tensor : {false, true}) {
    const int64_t rank = test_world()->rank();
    const Value mine = in_a_tensor ? Value(record_of(torch::full({3}, rank))) : Value(rank);
    run.engine.save_checkpoint(
        folder_, {.tag = "t", .client_state = Value::dict({{"mine", mine}}), .async = in_a_tensor});
    run.engine.finish_save();
    test_world()->barrier();
    expect_whole(folder_ / "t", model_states_file(0));
    const Value saved = read_torch_file(folder_ / "t" / model_states_file(0)).at("mine");
    EXPECT_EQ(saved, in_a_tensor ? Value(record_of(torch::zeros({3}, torch::kLong))) : Value(0));
  }
}

}  // namespace
}  // namespace anymesh
