#pragma once

#include <nanobind/nanobind.h>

namespace anymesh::python {

// Adds Checkpoint, Parameter, Tensor and read() to the module: the base of anymesh/checkpoint.py,
// which documents them.
void add_checkpoint(nanobind::module_& module);

}  // namespace anymesh::python
