#include "framework/format/folder/own_entries.h"

#include <sys/stat.h>

#include "framework/format/io/file_io.h"
#include "framework/format/layout/names.h"
#include "tests/support/fixtures.h"

namespace anymesh {
namespace {

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

// It lists the files to come and all that is there, empty folders too.
TEST_F(OwnEntries, AJournalSaysWhatAKilledRunLeft) {
  fs::create_directory(tag_ / "zero" / "empty");
  write_journal(tag_, {"later.pt"});
  const IsOurs left = entries_left(tag_);
  EXPECT_EQ(first_foreign_entry(tag_, left), "");
  EXPECT_TRUE(left("later.pt", false) && left("building.json.0123abcd.tmp", false));
  EXPECT_FALSE(left("notes.txt", false));
  EXPECT_EQ(remove_ours(tag_, left, {"a.pt", kJournalFile}), "");
  EXPECT_EQ(list_folder(tag_), "a.pt, building.json");
  fs::remove(tag_ / kJournalFile);
  EXPECT_EQ(first_foreign_entry(tag_, entries_left(tag_)), (tag_ / "a.pt").string());
}

TEST_F(OwnEntries, ALinkPutInTheWayIsNotFollowed) {
  const fs::path w = tag_ / "zero" / "w", home = folder_ / "home";
  fs::create_directory(home);
  write_file(home / "fp32.pt", "thesis");
  const auto meanwhile = [&](const fs::path& name, bool is_folder) {
    if (name == "zero/w/fp32.pt") {
      fs::rename(w, folder_ / "w");
      fs::create_directory_symlink(home, w);
    }
    return is_ours_(name, is_folder);
  };
  EXPECT_EQ(remove_ours(tag_, meanwhile).find((w / "fp32.pt").string() + ": "), 0u);
  EXPECT_EQ(read_file(home / "fp32.pt"), "thesis");
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
