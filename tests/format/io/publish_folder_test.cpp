// Replaces a folder, also where the file system cannot swap two. This file has its own renameat2.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "framework/format/folder/own_entries.h"
#include "framework/format/io/file_io.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"

namespace {

int refusal = 0;  // errno of renameat2; 0: call the kernel's

}  // namespace

extern "C" int renameat2(int from_folder, const char* from, int to_folder, const char* to,
                         unsigned int flags) noexcept {
  if (refusal == 0)
    return static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
  errno = refusal;
  return -1;
}

namespace anymesh {
namespace {

class Publish : public TempFolder {
 protected:
  Publish() { refusal = 0; }
  ~Publish() override { refusal = 0; }

  void make(const fs::path& folder, const std::string& text) const {
    fs::create_directories(folder / "inner");
    write_text_atomically(folder / "inner" / "file", text);
  }
  // Publishes as its callers do.
  static void publish(const fs::path& from, const fs::path& to) {
    if (const fs::path old = publish_folder(from, to); !old.empty()) fs::remove_all(old);
  }
  std::string found() const { return read_text(to_ / "inner" / "file"); }

  const fs::path to_ = folder_ / "tag", from_ = temporary_of(to_),
                 old_ = temporary_of(folder_ / "tag.old");
};

TEST_F(Publish, ReplacesWhateverTheFileSystemCan) {
  for (const int reason : {0, EINVAL, ENOSYS}) {
    refusal = reason;
    for (const char* text : {"new", "newer", "newest"}) {
      make(from_, text);
      publish(from_, to_);
      EXPECT_EQ(found(), text) << reason;
      EXPECT_EQ(list_folder(folder_), "tag") << reason;
    }
    fs::remove_all(to_);
  }
}

TEST_F(Publish, OtherErrorsLeaveBoth) {
  make(to_, "old");
  make(from_, "new");
  refusal = EIO;
  EXPECT_NE(message_of([&] { publish(from_, to_); }), "");
  EXPECT_EQ(found(), "old");
  EXPECT_EQ(list_folder(folder_), "tag, tag.tmp");
}

// A kill came between the two renames.
TEST_F(Publish, WhatMadeRoomGetsItsNameBack) {
  const IsOurs all = [](const fs::path&, bool) { return true; },
               none = [](const fs::path&, bool) { return false; };
  make(old_, "old");
  EXPECT_FALSE(restore_replaced(from_, all));
  EXPECT_FALSE(restore_replaced(old_, none));
  EXPECT_TRUE(restore_replaced(old_, all));
  EXPECT_EQ(found(), "old");
  make(old_, "older");
  EXPECT_FALSE(restore_replaced(old_, all));
  EXPECT_EQ(found(), "old");
  fs::remove_all(to_);
  write_journal(old_, {});  // half of it may be removed
  EXPECT_FALSE(restore_replaced(old_, all));
  EXPECT_FALSE(fs::exists(to_));
}

}  // namespace
}  // namespace anymesh
