#pragma once

#include <string>
#include <vector>

#include "framework/comm/communicator.h"

namespace anymesh {

// Every rank's text, in rank order.
std::vector<std::string> gather_strings(Communicator& comm, const std::string& mine);

}  // namespace anymesh
