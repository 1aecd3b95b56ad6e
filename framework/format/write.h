#pragma once

// Writes what DeepSpeed's classes write.
#include "framework/format/write/optimizer_state.h"  // state_dict() of an optimizer
