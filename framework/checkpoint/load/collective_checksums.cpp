#include "framework/checkpoint/load/collective_checksums.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "framework/checkpoint/load/find_loadable_tags.h"
#include "framework/comm/agreement.h"

namespace anymesh {
namespace {

// A rank's message to the others about a record. Two names with the same hash are less likely than
// a CRC that matches by chance.
struct Told {
  uint64_t record = 0, bytes = 0;
  uint64_t crc = 0;
};

Told told(const RecordChecksums::Part& part) {
  return {std::hash<std::string>()(part.name), part.bytes, part.read};
}

struct Sum {
  int first_rank = 0;
  uint64_t bytes = 0, most = 0, crc = 0;
};

std::unordered_map<uint64_t, Sum> sums_over(Communicator& world,
                                            const std::vector<RecordChecksums::Part>& mine) {
  std::string text;
  for (const auto& part : mine) {
    const Told t = told(part);
    text.append(reinterpret_cast<const char*>(&t), sizeof t);
  }
  std::unordered_map<uint64_t, Sum> sums;
  int rank = 0;
  for (const std::string& theirs : gather_strings(world, text)) {
    for (size_t at = 0; at < theirs.size(); at += sizeof(Told)) {
      Told t;
      std::memcpy(&t, theirs.data() + at, sizeof t);
      Sum& sum = sums.try_emplace(t.record, Sum{.first_rank = rank}).first->second;
      sum.bytes += t.bytes;
      sum.most = std::max(sum.most, t.bytes);
      sum.crc ^= t.crc;
    }
    ++rank;
  }
  return sums;
}

}  // namespace

void finish_checks(Communicator& world, const std::filesystem::path& folder,
                   const RecordChecksums& checks) {
  std::vector<RecordChecksums::Part> mine;
  read_together(world, folder, [&] { mine = checks.finish_own(); });
  const auto sums = sums_over(world, mine);
  read_together(world, folder, [&] {
    for (const auto& part : mine) {
      const Sum& sum = sums.at(told(part).record);
      const bool by_one = sum.most == part.size,
                 by_all = sum.crc == part.whole && sum.bytes <= part.size;
      if (!by_one && !by_all && sum.first_rank == world.rank()) checks.check(part);
    }
  });
}

}  // namespace anymesh
