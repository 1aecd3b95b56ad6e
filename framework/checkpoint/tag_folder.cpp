#include "framework/checkpoint/tag_folder.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <map>
#include <random>
#include <sstream>

#include "framework/checkpoint/format/file_io.h"
#include "framework/checkpoint/format/names.h"
#include "framework/checkpoint/format/stopwatch.h"
#include "framework/checkpoint/format/torch_file.h"
#include "framework/comm/agreement.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// A name that no other has, for first_to_see().
std::string new_mark() {
  std::random_device random;
  return std::to_string(random()) + std::to_string(random());
}

bool is_mark(const std::string& name) {
  return std::ranges::all_of(name, [](char c) { return '0' <= c && c <= '9'; });
}

bool is_of_tag(const fs::path& name) {
  return name == kManifestFile || parse_checkpoint_file_name(name.string());
}

// Whether a temporary folder is what a save left: with files of a tag and a mark alone, or empty
// under a tag's name or a mark's. Others are a conversion's, or the user's.
bool is_of_a_save(const fs::path& folder) {
  std::error_code unreadable;
  const bool empty = fs::is_empty(folder, unreadable);
  if (unreadable) return false;
  if (empty) {
    const std::string name = folder.stem();
    return step_of_tag(name) || is_mark(name);
  }
  return std::ranges::all_of(fs::directory_iterator(folder), [](const fs::directory_entry& entry) {
    fs::path name = entry.path().filename();
    if (name.extension() == kTemporarySuffix) name.replace_extension();
    return is_of_tag(name) || name == kWeightsFile || is_mark(name);
  });
}

// What interrupted saves left goes, but a tag that one was replacing has its name back. What cannot
// be removed is not in the way.
void remove_leftovers(const fs::path& save_dir) {
  for (const fs::directory_entry& entry : fs::directory_iterator(save_dir)) {
    const fs::path& path = entry.path();
    std::error_code ignored;
    if (entry.is_directory() && path.extension() == kTemporarySuffix && is_of_a_save(path) &&
        !restore_replaced(path))
      fs::remove_all(path, ignored);
  }
}

// A tag is replaced, but nothing else that has its name.
void check_is_tag(const fs::path& path) {
  const auto has_files_of_one = [&] {
    return std::ranges::any_of(fs::directory_iterator(path), [](const auto& entry) {
      return is_of_tag(entry.path().filename());
    });
  };
  const bool known =
      !fs::exists(path) || (fs::is_directory(path) && (fs::is_empty(path) || has_files_of_one()));
  TORCH_CHECK(known, path.string(),
              " exists and is no checkpoint; the save would replace it. Rename it, or save "
              "elsewhere");
}

void make_empty(const fs::path& save_dir, const fs::path& path, const fs::path& temporary) {
  fs::create_directories(save_dir);
  remove_leftovers(save_dir);
  check_is_tag(path);
  fs::remove_all(temporary);
  fs::create_directory(temporary);
}

}  // namespace

// Rank 0 puts a mark there, for the next save to remove where a kill leaves it. Of ranks that do
// not see it, those with one host and path are on one file system.
int first_to_see(Communicator& world, const fs::path& folder) {
  const fs::path mark = temporary_of(folder / gather_strings(world, new_mark())[0]);
  all_or_none(world, [&] {
    std::error_code failed;
    if (world.rank() == 0) fs::create_directory(mark, failed);
    TORCH_CHECK(!failed, "cannot write to ", folder.string(), ": ", failed.message());
  });
  std::string mine;  // empty: rank 0's
  all_or_none(world, [&] {
    if (!fs::exists(mark)) mine = host_name() + ":" + fs::absolute(folder).string();
  });
  const std::vector<std::string> places = gather_strings(world, mine);
  all_or_none(world, [&] {
    if (world.rank() == 0) fs::remove(mark);
  });
  return static_cast<int>(std::ranges::find(places, mine) - places.begin());
}

// Rank 0 makes its folder, and of the ranks that do not see that the first on each file system.
TagFolder::TagFolder(Communicator& world, const fs::path& save_dir, const std::string& tag,
                     SaveTimes& times)
    : path_(save_dir / tag), temporary_(temporary_of(path_)), host_(host_name()), times_(times) {
  manifest_.tag = tag;
  const auto make_on = [&](bool leader) {
    all_or_none(world, [&] {
      if (leader) make_empty(save_dir, path_, temporary_);
    });
  };
  make_on(world.rank() == 0);
  leader_ = first_to_see(world, temporary_);
  leads_ = leader_ == world.rank();
  make_on(leads_ && leader_ != 0);
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
    // Of a file in parts it is there once a part with blocks is.
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

void TagFolder::record(const std::string& name, const FileBlocks& file) {
  manifest_.files.push_back({name, file.layout().size, file.crc(), host_});
}

// The ranks tell each other the CRCs of their parts; who has a file's last part puts them into it.
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
    const fs::path old = publish_folder(temporary_, path_);
    std::error_code ignored;  // what cannot be removed is not in the way
    if (!old.empty()) fs::remove_all(old, ignored);
    last();
  });
}

void TagFolder::abandon() const {
  std::error_code ignored;  // it is not in the way: the next save removes it
  if (leads_) fs::remove_all(temporary_, ignored);
}

}  // namespace anymesh
