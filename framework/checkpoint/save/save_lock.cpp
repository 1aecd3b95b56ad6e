#include "framework/checkpoint/save/save_lock.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <random>

#include "framework/comm/agreement.h"
#include "framework/format/folder.h"
#include "framework/format/io.h"

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

}  // namespace anymesh
