#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <string>
#include <vector>

#include "framework/format/torch_file.h"

namespace anymesh::python {

// Returns a checkpoint's Python objects as Python's own: None, numbers, texts, lists, tuples and
// dicts. A torch.Size becomes a tuple, a set a list, a class or torch.dtype its dotted name, and an
// object of any other class an argparse.Namespace of its attributes. Tensors become wrap(tensor).
// No code in a file is executed.
nanobind::object to_python(const Value& value,
                           const std::function<nanobind::object(const TensorRecord&)>& wrap);

// Converts texts that need not be UTF-8, as Python converts the names of files.
nanobind::str to_str(const std::string& text);
std::string to_bytes(const nanobind::str& text);
nanobind::list to_list(const std::vector<std::string>& texts);

}  // namespace anymesh::python
