#include "framework/format/folder/output_file.h"

#include "framework/format/io/file_io.h"
#include "tests/support/fixtures.h"

namespace anymesh {
namespace {

class ClaimedOutput : public TempFolder {
 protected:
  std::string refusal(const fs::path& path, const std::vector<fs::path>& inputs = {}) const {
    return message_of([&] {
      claim_output("--loss-csv", path, {"a loss CSV", "iteration,"}, inputs);
    });
  }
  const fs::path output_ = folder_ / "loss.csv";
};

TEST_F(ClaimedOutput, ReplacesItsKindAlone) {
  EXPECT_EQ(refusal(output_), "");
  for (const char* text : {"", "iteration,", "iteration,lm_loss\n1,2\n"}) {
    write_file(output_, text);
    EXPECT_EQ(refusal(output_), "") << text;
  }
  for (const char* text : {"MMIDIDX", "iteration", "thesis\niteration,"}) {
    write_file(output_, text);
    EXPECT_THAT(refusal(output_), HasSubstrs("--loss-csv " + output_.string(),
                                             "is not a loss CSV, which begins with 'iteration,'"));
    EXPECT_EQ(read_file(output_), text);
  }
  fs::create_symlink(output_, folder_ / "link");
  EXPECT_THAT(refusal(folder_ / "link"), HasSubstr("is not a loss CSV"));
  EXPECT_THAT(refusal(folder_), HasSubstr("is no file"));
  EXPECT_THAT(refusal(folder_ / "no" / "such"), HasSubstr("there is no folder"));
  EXPECT_EQ(list_folder(folder_), "link, loss.csv");
}

TEST_F(ClaimedOutput, IsNoInput) {
  const fs::path input = folder_ / "input.csv";
  write_file(input, "iteration,lm_loss\n");
  fs::create_symlink(input, folder_ / "link");
  fs::create_hard_link(input, folder_ / "hard");
  for (const fs::path& output :
       {input, folder_ / "link", folder_ / "hard", folder_ / "." / "input.csv"})
    EXPECT_THAT(refusal(output, {folder_ / "absent", input}),
                HasSubstr("is an input, " + input.string()));
  EXPECT_EQ(refusal(output_, {folder_ / "absent", input}), "");
}

TEST_F(ClaimedOutput, IsOneProcesss) {
  const auto lock = claim_output("--loss-csv", output_, {"a loss CSV", "iteration,"});
  EXPECT_THAT(refusal(output_), HasSubstr("is being written by"));
  EXPECT_FALSE(claim_output("--loss-csv", "/dev/null", {"a loss CSV", "iteration,"}));
  EXPECT_FALSE(fs::exists("/dev/.null.lock"));
}

}  // namespace
}  // namespace anymesh
