#pragma once

#include <filesystem>
#include <string>

namespace anymesh {

// The sole right to write an output, for as long as this lives.
//
//   const OutputLock lock = OutputLock::beside(output, "--output_folder");  // built as OUTPUT.tmp
//   const OutputLock lock = OutputLock::inside(folder, "--save");           // files are made in it
//
// It is a flock on a small file, .OUTPUT.lock beside the output, or .anymesh.lock inside the folder
// (which must be there), and says who writes: host, process, program and since when. The destructor
// removes the file. One that a killed process left needs no hand, as its flock went with it; only
// where another machine made it, which does not share its flocks on every file system, it must be
// removed by hand. Without locks of the file system it is by whether that process lives. A child of
// fork() shares the lock until it ends or calls exec(), but does not remove the file.
//
// Throws std::runtime_error, which names the writer and the file, if another process has the right,
// or this one already has it; and if a file of that name is no lock: it is left as it is.
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
  int owner_;  // the process
};

// Whether a file of this name in a folder is the lock of an output, which lists leave out.
bool is_lock_file(const std::string& name);

}  // namespace anymesh
