#include "framework/format/folder/output_lock.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "framework/format/io/file_io.h"
#include "tests/support/fixtures.h"

namespace {

int refusal_of_flock = 0;  // its errno; 0: call the kernel's

}  // namespace

extern "C" int flock(int descriptor, int operation) noexcept {
  if (refusal_of_flock == 0) return static_cast<int>(syscall(SYS_flock, descriptor, operation));
  errno = refusal_of_flock;
  return -1;
}

namespace anymesh {
namespace {

class Lock : public TempFolder {
 protected:
  std::string refusal() const {
    return message_of([this] { OutputLock::beside(output_, "--output_folder"); });
  }
  const fs::path output_ = folder_ / "o", file_ = folder_ / ".o.lock";
};

// Another process, which runs `work` and then stops until it is killed.
class Other {
 public:
  template <class Work>
  explicit Other(Work work) {
    pid_ = fork();
    if (pid_ != 0) {
      int status;
      waitpid(pid_, &status, WUNTRACED);
      return;
    }
    work();
    raise(SIGSTOP);
    _exit(0);
  }
  ~Other() { kill_it(); }
  void kill_it() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  std::string pid() const { return std::to_string(pid_); }

 private:
  pid_t pid_;
};

TEST_F(Lock, TheSecondIsToldWhoWrites) {
  std::optional<OutputLock> lock;
  const Other other([&] { lock.emplace(OutputLock::beside(output_, "--output_folder")); });
  EXPECT_THAT(refusal(), HasSubstrs("--output_folder " + output_.string() + " is being written by ",
                                    "process " + other.pid() + " on " + host_name() + " since 20",
                                    file_.string()));
  EXPECT_EQ(message_of([&] { OutputLock::inside(folder_, "--save"); }), "");
}

TEST_F(Lock, AKilledProcessNeedsNoHand) {
  std::optional<OutputLock> lock;
  Other other([&] { lock.emplace(OutputLock::beside(output_, "--output_folder")); });
  other.kill_it();
  EXPECT_TRUE(fs::exists(file_));
  EXPECT_EQ(refusal(), "");
  EXPECT_FALSE(fs::exists(file_));
}

TEST_F(Lock, ListsLeaveItOut) {
  const OutputLock one = OutputLock::beside(output_, "x"), two = OutputLock::inside(folder_, "x");
  EXPECT_EQ(list_folder(folder_), "nothing");
}

TEST_F(Lock, OfAnotherMachineIsRemovedByHand) {
  write_file(file_,
             "anymesh lock\nelsewhere\nid\n7\npretrain_gpt, process 7 on elsewhere since then");
  EXPECT_THAT(refusal(), HasSubstrs("pretrain_gpt, process 7 on elsewhere since then",
                                    "remove " + file_.string()));
  EXPECT_TRUE(fs::exists(file_));
  write_file(file_, "anymesh lock\n" + host_name() + "\nbefore it was started again\n7\nx");
  EXPECT_EQ(refusal(), "");
}

// A living process keeps the right. A killed one leaves the file, but not the right.
TEST_F(Lock, WithoutLocksOfTheFileSystem) {
  refusal_of_flock = ENOSYS;
  std::optional<OutputLock> lock;
  Other other([&] { lock.emplace(OutputLock::beside(output_, "--output_folder")); });
  EXPECT_THAT(refusal(), HasSubstr("process " + other.pid() + " on "));
  other.kill_it();
  EXPECT_EQ(refusal(), "");
  refusal_of_flock = 0;
}

// A child's destructor must not give the parent's lock up.
TEST_F(Lock, AChildDoesNotReleaseIt) {
  std::optional<OutputLock> lock(OutputLock::beside(output_, "--output_folder"));
  const Other child([&] { lock.reset(); });
  EXPECT_THAT(refusal(), HasSubstr("is being written by"));
}

TEST_F(Lock, WhatIsNoLockIsLeftAsItIs) {
  const fs::path thesis = folder_ / "thesis.txt";
  write_file(thesis, "thesis");
  fs::create_symlink(thesis, file_);
  EXPECT_NE(refusal(), "");
  fs::remove(file_);
  fs::create_hard_link(thesis, file_);
  EXPECT_NE(refusal(), "");
  fs::remove(file_);
  write_file(file_, "another program's");
  EXPECT_THAT(refusal(), HasSubstr("is no lock file of ours"));
  EXPECT_EQ(read_file(file_), "another program's");
  fs::remove(file_);
  ASSERT_EQ(mkfifo(file_.c_str(), 0666), 0);
  EXPECT_NE(refusal(), "");
  EXPECT_TRUE(fs::exists(file_));
  EXPECT_EQ(read_file(thesis), "thesis");
}

// Each process that gets the lock adds one to a number. A lost addition shows that it was not
// alone. They take and release it so often that some open the file just before it goes.
TEST_F(Lock, OneAtATime) {
  constexpr int kProcesses = 4, kEach = 200;
  const fs::path number = folder_ / "number";
  write_file(number, "0");
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    for (int done = 0; done < kEach;) {
      try {
        const OutputLock lock = OutputLock::beside(output_, "x");
        write_file(number, std::to_string(std::stoi(read_file(number)) + 1));
        ++done;
      } catch (const std::runtime_error&) {
      }
    }
    _exit(0);
  }
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(read_file(number), std::to_string(kProcesses * kEach));
  EXPECT_FALSE(fs::exists(file_));
}

}  // namespace
}  // namespace anymesh
