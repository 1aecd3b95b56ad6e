#include "framework/checkpoint/save/tag_folder.h"

#include <c10/util/StringUtil.h>

#include <cstdio>
#include <map>
#include <sstream>

#include "framework/checkpoint/save/tag_entries.h"
#include "framework/comm/agreement.h"
#include "framework/format/io.h"
#include "framework/format/layout.h"
#include "framework/format/torch_file.h"
#include "framework/util/stopwatch.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// Whether the folder's owner is unknown: it is empty, and named neither like a tag nor like a mark.
bool is_of_nobody(const fs::path& folder) {
  const std::string name = folder.stem();
  std::error_code unreadable;
  return !step_of_tag(name) && !is_mark(name) && fs::is_empty(folder, unreadable);
}

// Removes the leftovers of interrupted saves. A tag that such a save was replacing gets its name
// back. Files that are not ours stay. Leftovers that cannot be removed are ignored.
void remove_leftovers(const fs::path& save_dir) {
  for (const fs::directory_entry& entry : fs::directory_iterator(save_dir)) {
    const fs::path& path = entry.path();
    const auto text = made_beside(path.filename());
    if (text == kLatestFile || text == kZeroToFp32File) {
      std::error_code ignored;
      if (entry.symlink_status().type() == fs::file_type::regular) fs::remove(path, ignored);
      continue;
    }
    if (path.extension() != kTemporarySuffix || !entry.is_directory() || is_of_nobody(path))
      continue;
    const IsOurs is_ours = entries_of_leftover(path);
    if (first_foreign_entry(path, is_ours).empty() && !restore_replaced(path))
      remove_ours(path, is_ours);
  }
}

// Makes `temporary` an empty folder. Throws, before anything is written, if the save would replace
// or write into files that are not ours.
void make_empty(const fs::path& save_dir, const fs::path& path, const fs::path& temporary) {
  std::string foreign = first_foreign_entry(path, entries_of_tag(path));
  TORCH_CHECK(foreign.empty(), foreign, " is no file of a checkpoint, and the save would replace ",
              path.string(), ": move it away, or save elsewhere");
  remove_leftovers(save_dir);
  const IsOurs is_ours = entries_of_leftover(temporary);
  foreign = first_foreign_entry(temporary, is_ours);
  TORCH_CHECK(foreign.empty(), foreign,
              " is no leftover of an interrupted save, and the save needs ", temporary.string(),
              ": move it away, or save elsewhere");
  const std::string left = remove_ours(temporary, is_ours);
  TORCH_CHECK(left.empty(), "cannot remove the leftovers of an interrupted save: ", left);
  fs::create_directory(temporary);
}

}  // namespace

TagFolder::TagFolder(Communicator& world, const SaveLock& lock, const std::string& tag,
                     SaveTimes& times)
    : path_(lock.folder() / tag),
      temporary_(temporary_of(path_)),
      host_(host_name()),
      leads_(lock.leads()),
      times_(times) {
  manifest_.tag = tag;
  all_or_none(world, [&] {
    if (leads_) make_empty(lock.folder(), path_, temporary_);
  });
}

void TagFolder::write(const std::string& name, const Value& value, FilePart part, int threads) {
  const fs::path path = temporary_ / name;
  double whole = 0, fsync = 0;
  Shared shared{name, nullptr, {}};
  {
    const Stopwatch timing(whole);
    shared.file = std::make_unique<SharedFile>(streamed_torch_file(path, value), part);
    shared.parts = shared.file->write(threads, [this](uint64_t bytes) { written_ += bytes; });
    if (part.count == 1) shared.file->finish(shared.parts);
  }
  {
    const Stopwatch timing(fsync);
    // A shared file exists only once some part has written a block.
    if (part.count == 1 || !shared.parts.empty()) sync_file(path);
  }
  const double waited = shared.file->blocks().write_seconds() / threads;
  const std::scoped_lock lock(mutex_);
  times_.serialise += whole - waited;
  times_.write += waited;
  times_.fsync += fsync;
  if (part.count == 1) {
    record(name, shared.file->blocks());
  } else {
    shared_.push_back(std::move(shared));
  }
}

void TagFolder::record(const std::string& name, const BlockWriter& file) {
  manifest_.files.push_back({name, file.layout().size, file.crc(), host_});
}

// The ranks exchange their parts' CRCs. The rank with a file's last part writes them into the file.
void TagFolder::complete(Communicator& world, Communicator& sharers) {
  std::vector<std::string> mine;
  for (const Shared& shared : shared_)
    for (const TensorExtent& part : shared.parts)
      mine.push_back(c10::str(part.offset, ' ', part.size, ' ', part.crc, ' ', shared.name));
  std::map<std::string, std::vector<TensorExtent>> parts;
  for (const std::string& line : gather_lines(sharers, mine)) {
    std::istringstream in(line);
    TensorExtent part;
    std::string name;
    in >> part.offset >> part.size >> part.crc >> name;
    parts[name].push_back(part);
  }
  all_or_none(world, [&] {
    for (const Shared& shared : shared_) {
      if (!shared.file->part().is_last()) continue;
      shared.file->finish(parts[shared.name]);
      sync_file(temporary_ / shared.name);
      record(shared.name, shared.file->blocks());
    }
    shared_.clear();
  });
}

void TagFolder::commit(Communicator& world, int64_t iteration, const std::function<void()>& last) {
  manifest_.iteration = iteration;
  Manifest whole = manifest_;
  whole.files.clear();
  for (const std::string& rank : gather_strings(world, manifest_.to_json())) {
    const Manifest part = Manifest::from_json(rank, "a rank's part of the manifest");
    whole.files.insert(whole.files.end(), part.files.begin(), part.files.end());
    for (const Manifest::File& file : part.files) bytes_ += static_cast<int64_t>(file.bytes);
  }
  all_or_none(world, [&] {
    if (leads_) write_text_atomically(temporary_ / kManifestFile, whole.to_json());
  });
  all_or_none(world, [&] {
    if (!leads_) return;
    const fs::path replaced = publish_folder(temporary_, path_);
    last();
    if (replaced.empty()) return;
    const std::string left = remove_ours(replaced, entries_of_tag(replaced));
    if (!left.empty())
      std::fprintf(stderr, "WARNING: the tag that this save replaced stays as %s: %s\n",
                   replaced.c_str(), left.c_str());
  });
}

void TagFolder::abandon() const {
  if (leads_) remove_ours(temporary_, entries_of_leftover(temporary_));
}

}  // namespace anymesh
