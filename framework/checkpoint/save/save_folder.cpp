#include "framework/checkpoint/save/save_folder.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include "framework/comm/agreement.h"
#include "framework/format/io.h"
#include "framework/format/layout.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// Returns a unique name for first_to_see(), which is_mark() recognises.
std::string new_mark() {
  std::random_device random;
  return std::to_string(random()) + std::to_string(random());
}

// Creates `folder`. Returns false if it was already there.
bool make_folder(const fs::path& folder, const std::string& what) {
  try {
    const fs::path there = existing_folder(folder);
    std::error_code failed;
    const bool made = fs::create_directories(folder, failed);
    if (failed)
      throw std::runtime_error("cannot write to " + there.string() + ": " + failed.message());
    return made;
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(what + " " + folder.string() + ": " + error.what());
  }
}

// Whether the folder's owner is unknown: it is empty, and named neither like a tag nor like a mark.
bool is_of_nobody(const fs::path& folder) {
  const std::string name = folder.stem();
  std::error_code unreadable;
  return !step_of_tag(name) && !is_mark(name) && fs::is_empty(folder, unreadable);
}

// Removes the leftovers of interrupted saves. A tag that such a save was replacing gets its name
// back. Files that are not ours stay. Leftovers that cannot be removed are ignored.
void remove_leftovers(const fs::path& save_dir) {
  remove_unfinished(save_dir, [](const fs::path& name) {
    return name == kLatestFile || name == kLatestUniversalFile || name == kZeroToFp32File ||
           name == kRecordFile;
  });
  for (const fs::directory_entry& entry : fs::directory_iterator(save_dir)) {
    const fs::path& path = entry.path();
    if (path.extension() != kTemporarySuffix || !entry.is_directory() || is_of_nobody(path))
      continue;
    const IsOurs is_ours = leftover_entries(path);
    if (!restore_replaced(path, is_ours)) remove_ours(path, is_ours);
  }
}

// Makes `temporary` an empty folder. Throws, before anything is written, if the save would replace
// or write into files that are not ours.
void make_empty(const fs::path& save_dir, const fs::path& path, const fs::path& temporary) {
  std::string foreign = first_foreign_entry(path, tag_entries(path));
  TORCH_CHECK(foreign.empty(), foreign, " is no file of a checkpoint, and the save would replace ",
              path.string(), ": move it away, or save elsewhere");
  remove_leftovers(save_dir);
  const IsOurs is_ours = leftover_entries(temporary);
  foreign = first_foreign_entry(temporary, is_ours);
  TORCH_CHECK(foreign.empty(), foreign,
              " is no leftover of an interrupted save, and the save needs ", temporary.string(),
              ": move it away, or save elsewhere");
  const std::string left = remove_ours(temporary, is_ours);
  TORCH_CHECK(left.empty(), "cannot remove the leftovers of an interrupted save: ", left);
  fs::create_directory(temporary);
}

}  // namespace

struct SaveLock::Held {
  Held(const fs::path& save_dir, const std::string& what)
      : folder(save_dir), made(make_folder(folder, what)), lock(OutputLock::inside(folder, what)) {}
  ~Held() {
    lock.reset();
    std::error_code not_empty;
    if (made) fs::remove(folder, not_empty);
  }

  fs::path folder;
  bool made;
  std::optional<OutputLock> lock;
};

// Rank 0 takes its lock first: then no other run's save removes the mark by which ranks recognise
// its folder.
SaveLock::SaveLock(Communicator& world, const fs::path& save_dir, const std::string& what)
    : folder_(save_dir) {
  const auto take_on = [&](bool leader) {
    all_or_none(world, [&] {
      if (leader) held_ = std::make_unique<Held>(folder_, what);
    });
  };
  take_on(world.rank() == 0);
  leader_ = first_to_see(world, folder_);
  leads_ = leader_ == world.rank();
  take_on(leads_ && leader_ != 0);
}

SaveLock::~SaveLock() = default;

// Rank 0 puts a mark in the folder. If a kill leaves it behind, the next save removes it. Ranks
// that do not see the mark share a file system if they have the same host and path.
int first_to_see(Communicator& world, const fs::path& folder) {
  const fs::path mark = temporary_of(folder / gather_strings(world, new_mark())[0]);
  all_or_none(world, [&] {
    std::error_code failed;
    if (world.rank() == 0) fs::create_directory(mark, failed);
    TORCH_CHECK(!failed, "cannot write to ", folder.string(), ": ", failed.message());
  });
  std::string mine;  // empty: rank 0's folder
  all_or_none(world, [&] {
    if (!fs::exists(mark)) mine = host_name() + ":" + fs::absolute(folder).string();
  });
  const std::vector<std::string> places = gather_strings(world, mine);
  all_or_none(world, [&] {
    if (world.rank() == 0) fs::remove(mark);
  });
  return static_cast<int>(std::ranges::find(places, mine) - places.begin());
}

TagFolder::TagFolder(Communicator& world, const SaveLock& lock, const std::string& tag)
    : path_(lock.folder() / tag), temporary_(temporary_of(path_)), leads_(lock.leads()) {
  all_or_none(world, [&] {
    if (leads_) make_empty(lock.folder(), path_, temporary_);
  });
}

int64_t TagFolder::commit(Communicator& world, int64_t iteration, std::vector<Manifest::File> files,
                          const std::function<void()>& last) {
  Manifest whole{path_.filename(), iteration, {}};
  const Manifest mine{whole.tag, iteration, std::move(files)};
  int64_t bytes = 0;
  for (const std::string& rank : gather_strings(world, mine.to_json())) {
    for (Manifest::File& file : Manifest::from_json(rank, "a rank's part of the manifest").files) {
      bytes += static_cast<int64_t>(file.bytes);
      whole.files.push_back(std::move(file));
    }
  }
  all_or_none(world, [&] {
    if (leads_) write_text_atomically(temporary_ / kManifestFile, whole.to_json());
  });
  all_or_none(world, [&] {
    if (!leads_) return;
    const fs::path replaced = publish_folder(temporary_, path_);
    last();
    if (replaced.empty()) return;
    const std::string left = remove_ours(replaced, tag_entries(replaced));
    if (!left.empty())
      std::fprintf(stderr, "WARNING: the tag that this save replaced stays as %s: %s\n",
                   replaced.c_str(), left.c_str());
  });
  return bytes;
}

void TagFolder::abandon() const {
  if (leads_) remove_ours(temporary_, leftover_entries(temporary_));
}

}  // namespace anymesh
