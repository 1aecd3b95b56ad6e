#pragma once

// Writes what DeepSpeed's classes write.
#include "framework/format/write/rank_files.h"  // a rank's optimizer, layers and experts
