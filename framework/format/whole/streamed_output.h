#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "framework/format/io/write_files.h"

namespace anymesh {

class RecordChecksums;

// Steps of a tool that streams one checkpoint folder to another: ds_to_universal and ds_reshard.

inline constexpr const char* kOutputFlag = "--output_folder";  // of both, for messages

// Returns the absolute path, without a final slash.
std::filesystem::path without_trailing_slash(const std::filesystem::path& path);
// Whether the paths, which may lead through links, mean a folder and something in it, or the same.
bool is_inside(const std::filesystem::path& inner, const std::filesystem::path& outer);
// Throws if --input_folder and --output_folder are inside each other.
void expect_apart(const std::filesystem::path& input, const std::filesystem::path& output);

// Returns why files of `bytes` in all do not fit on the disk, or "". Files left by an interrupted
// run already have their space.
std::string lack_of_space(const std::filesystem::path& folder,
                          const std::vector<StreamedFile>& files, uint64_t bytes,
                          uint64_t free_bytes);

// Copies a torch file byte by byte. Each record is checked as it is read.
StreamedFile streamed_copy(const std::filesystem::path& from, const std::filesystem::path& to,
                           RecordChecksums& checks);

// Streams the files and finishes the checks. If replicas differ between ranks, the cause may be a
// damaged file; the error then names the damage.
WriteResult stream_checked(const std::vector<StreamedFile>& files, int threads,
                           RecordChecksums& checks);

// Writes the manifest of files that were written to `folder`.
void write_manifest(const std::filesystem::path& folder, const std::string& tag, int64_t iteration,
                    const std::vector<StreamedFile>& files, const std::vector<uint32_t>& crcs);

}  // namespace anymesh
