#pragma once

#include <filesystem>

#include "framework/comm/communicator.h"

namespace anymesh {

// The first of the ranks that see the folder that this rank sees under the name `folder`: 0
// everywhere where all share a file system. Rank 0 has `folder`; others need not have it yet.
// Collective.
int first_to_see(Communicator& world, const std::filesystem::path& folder);

}  // namespace anymesh
