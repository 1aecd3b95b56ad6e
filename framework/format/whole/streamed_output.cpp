#include "framework/format/whole/streamed_output.h"

#include <algorithm>

#include "framework/format/io/file_io.h"
#include "framework/format/layout/names.h"
#include "framework/format/output/manifest.h"
#include "framework/format/torch_file/record_checksums.h"
#include "framework/format/torch_file/zip.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"

namespace anymesh {

namespace fs = std::filesystem;

fs::path without_trailing_slash(const fs::path& path) {
  const fs::path normal = fs::absolute(path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

bool is_inside(const fs::path& inner, const fs::path& outer) {
  std::error_code absent;
  fs::path up = fs::weakly_canonical(inner);
  while (!fs::equivalent(up, outer, absent) && up != up.parent_path()) up = up.parent_path();
  return fs::equivalent(up, outer, absent);
}

void expect_apart(const fs::path& input, const fs::path& output) {
  if (is_inside(output, input) || is_inside(input, output))
    throw UserError(std::string(kOutputFlag) + " " + output.string() + " and --input_folder " +
                    input.string() + " must not be inside each other");
}

std::string lack_of_space(const fs::path& folder, const std::vector<StreamedFile>& files,
                          uint64_t bytes, uint64_t free_bytes) {
  uint64_t there = 0;
  for (const StreamedFile& file : files)
    if (fs::is_regular_file(file.path)) there += fs::file_size(file.path);
  const uint64_t needed = bytes - std::min(bytes, there);
  if (free_bytes >= needed) return "";
  return folder.string() + ": " + size_text(static_cast<double>(needed)) + " are needed, " +
         size_text(static_cast<double>(free_bytes)) + " are free";
}

StreamedFile streamed_copy(const fs::path& from, const fs::path& to, RecordChecksums& checks) {
  const ZipReader zip(from);
  std::vector<const ZipReader::Record*> records;
  for (const ZipReader::Record& record : zip.records()) records.push_back(&record);
  std::ranges::sort(records, {}, &ZipReader::Record::offset);
  FileLayout layout;
  uint64_t at = 0;
  const auto add_to = [&](uint64_t end) {  // the bytes between records
    if (at < end) layout.add(std::make_shared<SubRange>(zip.file(), at, end - at));
  };
  for (const ZipReader::Record* record : records) {
    add_to(record->offset);
    if (record->size > 0) layout.add(zip.open(*record, &checks));
    at = record->offset + record->size;
  }
  add_to(zip.file()->size());
  return {to, std::move(layout)};
}

WriteResult stream_checked(const std::vector<StreamedFile>& files, int threads,
                           RecordChecksums& checks) {
  WriteResult result;
  try {
    result = write_files(files, threads);
  } catch (const DamagedFile&) {
    checks.finish(threads);
    throw;
  }
  checks.finish(threads);
  return result;
}

void write_manifest(const fs::path& folder, const std::string& tag, int64_t iteration,
                    const std::vector<StreamedFile>& files, const std::vector<uint32_t>& crcs) {
  Manifest manifest{.tag = tag, .iteration = iteration};
  for (size_t i = 0; i < files.size(); ++i) {
    const fs::path& path = files[i].path;
    manifest.files.push_back(
        {path.lexically_relative(folder), fs::file_size(path), crcs[i], host_name()});
  }
  write_text_atomically(folder / kManifestFile, manifest.to_json());
}

}  // namespace anymesh
