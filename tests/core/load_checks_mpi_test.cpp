// What a load on another mesh reads, and that it checks all of it: no byte twice, and none that is
// damaged goes unseen.
#include <fstream>

#include "framework/checkpoint/format/convert.h"
#include "framework/checkpoint/format/names.h"
#include "framework/checkpoint/format/zip.h"
#include "framework/comm/agreement.h"
#include "tests/support/tiny_run.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using LoadChecks = SharedFolder;

// Bytes that this process has read from files.
int64_t bytes_read() {
  std::ifstream io("/proc/self/io");
  std::string name;
  int64_t bytes = 0;
  io >> name >> bytes;
  EXPECT_EQ(name, "rchar:");
  return bytes;
}

// Of weights and moments in this rank's partition.
int64_t bytes_held(TinyRun& run) {
  int64_t bytes = 0;
  for (const auto& group : run.engine.optimizer().groups()) {
    for (const auto& piece : group.pieces) bytes += 3 * 4 * piece.master.numel();
  }
  return bytes;
}

// Saved, and made universal.
void save_both(const fs::path& folder, const TinyOptions& options, Topology saved, int stage) {
  TinyRun run(saved, stage, options);
  run.train(2);
  run.engine.save_checkpoint(folder, {.tag = "step2"});
  all_or_none(*mpi_world(), [&] {
    if (mpi_world()->rank() == 0)
      convert_to_universal({.input = folder / "step2", .output = folder / "step2_universal"}, {});
  });
}

TEST_F(LoadChecks, ARankReadsWhatItHolds) {
  TinyOptions options;
  options.gpt.hidden_size = 384;
  options.gpt.num_layers = 4;
  options.gpt.vocab_size = 1000;
  for (const auto& [saved, stage] :
       {std::pair(kSlices, 1), std::pair(kSlices, 3), std::pair(kPipes, 0)}) {
    save_both(folder_, options, saved, stage);
    for (const bool universal : {false, true}) {
      for (const auto& [mesh, zero] :
           {std::pair(kData, 1), std::pair(kSplit, 0), std::pair(kPipes, 2), std::pair(kSlices, 3),
            std::pair(kData, 3)}) {
        if (!universal && mesh == saved && zero == stage) continue;  // its own files
        TinyRun run(mesh, zero, options);
        const int64_t before = bytes_read();
        run.engine.load_checkpoint(folder_, {.universal = universal});
        const double share =
            static_cast<double>(bytes_read() - before) / static_cast<double>(bytes_held(run));
        SCOPED_TRACE(c10::str("ZeRO ", stage, " to dp ", mesh.dp_size, ", tp ", mesh.tp_size,
                              ", ZeRO ", zero, universal ? ", universal" : ""));
        EXPECT_GE(share, 1);
        EXPECT_LE(share, 1.02);
      }
    }
    if (mpi_world()->rank() == 0) fs::remove_all(folder_);
    mpi_world()->barrier();
  }
}

// The first, the last and a middle byte of every tensor, padding included.
TEST_F(LoadChecks, NoFlippedByteGoesUnseen) {
  save_both(folder_, {}, kSlices, 1);
  for (const bool universal : {false, true}) {
    std::vector<fs::path> files;
    const fs::path tag = folder_ / (universal ? "step2_universal" : "step2");
    for (const auto& entry : fs::recursive_directory_iterator(universal ? tag / "zero" : tag)) {
      const std::string name = entry.path().filename();
      if (universal ? entry.is_regular_file() && name != "step.pt" && name != kOptimizerStateFile
                    : name.find("optim_states") != std::string::npos)
        files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    mpi_world()->barrier();
    int flips = 0;
    for (const auto& [mesh, zero] :
         {std::pair(kData, 1), std::pair(kSplit, 0), std::pair(kPipes, 2), std::pair(kSlices, 3)}) {
      TinyRun run(mesh, zero);
      for (const fs::path& file : files) {
        const ZipReader zip(file);
        for (const auto& record : zip.records()) {
          if (record.name.find("/data/") == std::string::npos || record.size == 0) continue;
          for (const uint64_t at : {uint64_t{0}, record.size / 2, record.size - 1}) {
            if (mpi_world()->rank() == 0) flip(file, record.offset + at);
            mpi_world()->barrier();
            EXPECT_THAT(
                message_of([&] { run.engine.load_checkpoint(folder_, {.universal = universal}); }),
                AllOf(HasSubstr(file), HasSubstr("is damaged"),
                      HasSubstr(std::to_string(record.offset))))
                << at << " of " << record.name;
            mpi_world()->barrier();
            if (mpi_world()->rank() == 0) flip(file, record.offset + at);
            mpi_world()->barrier();
            ++flips;
          }
        }
      }
      run.engine.load_checkpoint(folder_, {.universal = universal});
    }
    EXPECT_GT(flips, universal ? 500 : 100);
  }
}

}  // namespace
}  // namespace anymesh
