#pragma once

// The precompiled header: LibTorch's heavy headers, parsed once per build. Sources still include
// the headers they use.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>
