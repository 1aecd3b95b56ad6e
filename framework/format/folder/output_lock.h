#pragma once

#include <filesystem>
#include <string>

namespace anymesh {

// Holds the sole right to write an output for as long as it lives.
//
//   const OutputLock lock = OutputLock::beside(output, "--output_folder");  // built as OUTPUT.tmp
//   const OutputLock lock = OutputLock::inside(folder, "--save");           // files are made in it
//
// The lock is a flock on a small file: .OUTPUT.lock beside the output, or .anymesh.lock inside the
// folder (which must exist). The file says who writes: host, process, program and start time. The
// destructor removes the file. A file that a killed process left needs no cleanup, because its
// flock is gone. Only a file made on another machine must be removed by hand, because some file
// systems do not share flocks between machines. On a file system without locks, the lock is held
// while the process that it names lives. A child of fork() shares the lock until it ends or calls
// exec(), but does not remove the file.
//
// Throws std::runtime_error, which names the writer and the file, if another process or this one
// already holds the lock. Throws too if a file of that name is not a lock, and leaves that file as
// it is.
class OutputLock {
 public:
  static OutputLock beside(const std::filesystem::path& output, const std::string& what);
  static OutputLock inside(const std::filesystem::path& folder, const std::string& what);

  OutputLock(OutputLock&& other) noexcept;
  OutputLock& operator=(OutputLock&&) = delete;
  ~OutputLock();

 private:
  OutputLock(std::filesystem::path file, const std::string& what);
  bool take(const std::string& what);  // false: the file was removed meanwhile
  void write_holder() const;

  std::filesystem::path file_;
  int descriptor_ = -1;
  int owner_;  // the process that took the lock
};

}  // namespace anymesh
