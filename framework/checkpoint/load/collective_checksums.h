#pragma once

#include <filesystem>

#include "framework/comm/communicator.h"
#include "framework/format/torch_file.h"

namespace anymesh {

// Finishes the checks of a load. A record is intact if one rank has read all of it and found its
// CRC, or if the linear CRCs of the parts that ranks have read XOR to it. So no byte is read twice,
// and none goes unchecked. Bytes that nobody counted are taken as zeros, as padding is. If the sum
// differs, the first rank that read some of the record reads all of it. Collective; throws
// DamagedCheckpoint.
//
// REQUIRES: bytes that several ranks read count on only one of them (RecordChecksums::count).
void finish_checks(Communicator& world, const std::filesystem::path& folder,
                   const RecordChecksums& checks);

}  // namespace anymesh
