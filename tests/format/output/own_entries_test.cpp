#include "framework/format/output/own_entries.h"

#include <sys/stat.h>

#include "framework/format/io/file_io.h"
#include "tests/support/fixtures.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

class OwnEntries : public TempFolder {
 protected:
  OwnEntries() {
    fs::create_directories(tag_ / "zero" / "w");
    write_file(tag_ / "a.pt", "a");
    write_file(tag_ / "zero" / "w" / "fp32.pt", "w");
    write_file(tag_ / "manifest.json", "{}");
  }
  std::string foreign() const { return first_foreign_entry(tag_, is_ours_); }
  // `extra` is the one foreign entry.
  void expect_left(const fs::path& extra) const {
    EXPECT_EQ(foreign(), extra.string());
    EXPECT_EQ(remove_ours(tag_, is_ours_), extra.string() + " is not ours");
    EXPECT_EQ(read_file(tag_ / "a.pt"), "a");
  }

  const fs::path tag_ = folder_ / "tag";
  const IsOurs is_ours_ = entries_of(
      {.tag = "tag", .iteration = 0, .files = {{.name = "a.pt"}, {.name = "zero/w/fp32.pt"}}});
};

TEST_F(OwnEntries, WhollyOursIsRemoved) {
  EXPECT_EQ(foreign(), "");
  EXPECT_EQ(remove_ours(tag_, is_ours_), "");
  EXPECT_EQ(list_folder(folder_), "nothing");
  EXPECT_EQ(foreign(), "");
  EXPECT_EQ(remove_ours(tag_, is_ours_), "");
}

TEST_F(OwnEntries, OneForeignEntryKeepsAll) {
  for (const fs::path& extra : {tag_ / "notes.txt", tag_ / "zero" / "w" / "mine.pt"}) {
    write_file(extra, "thesis");
    expect_left(extra);
    fs::remove(extra);
  }
  fs::create_directory(tag_ / "data");  // empty
  expect_left(tag_ / "data");
}

TEST_F(OwnEntries, LinksAndPipesAreForeign) {
  const fs::path file = tag_ / "zero" / "w" / "fp32.pt";
  write_file(folder_ / "thesis", "thesis");
  fs::remove(file);
  fs::create_symlink(folder_ / "thesis", file);
  expect_left(file);
  fs::remove(file);
  ASSERT_EQ(mkfifo(file.c_str(), 0666), 0);
  expect_left(file);
  fs::remove_all(tag_ / "zero");
  fs::create_directory_symlink(folder_, tag_ / "zero");
  expect_left(tag_ / "zero");
  fs::create_directory_symlink(tag_, folder_ / "link");
  EXPECT_EQ(first_foreign_entry(folder_ / "link", is_ours_), (folder_ / "link").string());
  EXPECT_EQ(read_file(folder_ / "thesis"), "thesis");
}

}  // namespace
}  // namespace anymesh
