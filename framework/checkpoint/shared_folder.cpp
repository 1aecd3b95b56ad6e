#include "framework/checkpoint/shared_folder.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <random>

#include "framework/checkpoint/format/file_io.h"
#include "framework/comm/agreement.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

std::string random_text() {
  std::random_device random;
  return std::to_string(random()) + std::to_string(random());
}

}  // namespace

// Rank 0 puts a mark there, a name that no other has, for the next save to remove where a kill
// leaves it. Of ranks that do not see it, those with one host and path are on one file system.
int first_to_see(Communicator& world, const fs::path& folder) {
  const fs::path mark = temporary_of(folder / gather_strings(world, random_text())[0]);
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
  return static_cast<int>(std::find(places.begin(), places.end(), mine) - places.begin());
}

}  // namespace anymesh
