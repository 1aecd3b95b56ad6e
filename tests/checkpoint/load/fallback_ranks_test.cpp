// Which errors make a load take the checkpoint before: damaged files, and no others.
#include "framework/format/layout.h"
#include "framework/util/errors.h"
#include "tests/support/tiny_run.h"

namespace anymesh {
namespace {

// Two checkpoints, global_step1 and global_step2.
class Fallback : public SharedFolder {
 public:
  void SetUp() override {
    SharedFolder::SetUp();
    run_.train_and_save(2, folder_);
  }

  // Loads, while one rank's reading of global_step2 throws `error`.
  template <class Error>
  LoadResult load_with(const Error& error) {
    const auto read = [&](const Checkpoint& source,
                          const ParamSpec&) -> std::optional<torch::Tensor> {
      if (source.path.filename() == "global_step2" && test_world()->rank() == 3) throw error;
      return std::nullopt;
    };
    return run_.engine.load_checkpoint(folder_, {.custom_load_fn = read});
  }

  template <class Error>
  void expect_no_fallback(const Error& error, const std::string& text) {
    EXPECT_REFUSES(load_with(error), text);
  }

  TinyRun run_{kPipes, 1};
};

RANKS_TEST_F(Fallback, IsForDamagedFiles) {
  const LoadResult loaded = load_with(DamagedFile("layer.pt: cut off"));
  EXPECT_EQ(loaded.path, folder_ / "global_step1");
  ASSERT_FALSE(loaded.report.empty());
  if (test_world()->rank() == 0) {
    EXPECT_THAT(loaded.report[0], HasSubstr("layer.pt: cut off"));
  }
}

RANKS_TEST_F(Fallback, IsNotForErrorsOfTheUser) {
  expect_no_fallback(UserError("--hidden-size 8: the checkpoint has 16"), "--hidden-size 8");
}

RANKS_TEST_F(Fallback, IsNotForFilesThatCannotBeReadNow) {
  expect_no_fallback(Unreadable("layer.pt: cannot open: Permission denied"), "Permission denied");
}

RANKS_TEST_F(Fallback, IsNotForErrorsOfTheSystem) {
  expect_no_fallback(
      fs::filesystem_error("cannot list", std::make_error_code(std::errc::too_many_files_open)),
      "cannot list");
  expect_no_fallback(std::runtime_error("any other"), "any other");
  expect_no_fallback(std::bad_alloc(), "not enough memory");
}

}  // namespace
}  // namespace anymesh
