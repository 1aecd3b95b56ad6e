#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace anymesh {

// Writes a run's scalars for TensorBoard, to a file of its own in a folder that runs share:
//
//   TensorBoardWriter events(folder, first_step);
//   if (!events.add(step, {{"lm loss", loss}})) ...
//
//   events.out.tfevents.<seconds since 1970, to the microsecond>.<host>.<process>
//     record...   u64 length, u32 masked CRC-32C of it, data, u32 masked CRC-32C of data (TFRecord)
//     data        Event{1: double wall_time, 2: int64 step, and one of  (tensorboard/event.proto)
//                       3: string file_version     the first record
//                       7: SessionLog{1: START}    the second record
//                       5: Summary{1: Value{1: string tag, 2: float simple_value}...}}
//
// The start of a session makes readers drop the steps from `first_step` on in the folder's older
// files. A run resumed from a checkpoint thus replaces the later steps of its predecessor.
class TensorBoardWriter {
 public:
  struct Scalar {
    std::string tag;
    double value;  // stored as float
  };

  // Creates the folder and the file. Throws std::runtime_error with their path.
  TensorBoardWriter(const std::filesystem::path& folder, int64_t first_step);
  ~TensorBoardWriter();
  TensorBoardWriter(const TensorBoardWriter&) = delete;
  TensorBoardWriter& operator=(const TensorBoardWriter&) = delete;

  // Writes immediately. Returns false if it could not write (a full disk); errno has the reason.
  // The file is then unchanged, so the next event may be tried.
  bool add(int64_t step, const std::vector<Scalar>& scalars);

  const std::filesystem::path& path() const { return path_; }

 private:
  bool append(const std::string& event);

  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
};

// CRC-32C (Castagnoli: polynomial 0x1EDC6F41, reflected), a byte at a time, since records are
// short.
uint32_t crc32c(std::span<const std::byte> bytes);

}  // namespace anymesh
