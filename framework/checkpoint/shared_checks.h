#pragma once

#include <filesystem>

#include "framework/checkpoint/format/deferred_checks.h"
#include "framework/comm/communicator.h"

namespace anymesh {

// Ends the checks of a load: a record is intact if a rank has read all of it and met its CRC, or if
// the linear CRCs of the parts that ranks have read XOR to it, so that no byte is read twice and
// none goes unchecked. What nobody counted is taken for zeros, as padding is; where the sum says
// otherwise, the first rank that read of the record passes over all of it. Collective; throws
// DamagedCheckpoint.
//
// REQUIRES: what several ranks read counts on one of them (DeferredChecks::count).
void finish_checks(Communicator& world, const std::filesystem::path& folder,
                   const DeferredChecks& checks);

}  // namespace anymesh
