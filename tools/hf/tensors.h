#pragma once

#include <set>
#include <string>
#include <vector>

#include "tools/hf/export.h"

namespace anymesh {

// Convert fp32 elements as they are read. Their tensors are in the order of `theirs`.
BytesPtr ours_of(const HfParameter& parameter, std::vector<BytesPtr> theirs);  // without `change`
std::vector<BytesPtr> theirs_of(const HfParameter& parameter, BytesPtr ours);

// Throws a UserError unless each element of the parameter has one place in `theirs`.
void validate(const HfParameter& parameter);

// Returns the fp32 elements of a parameter, under the first of two names that `checkpoint` has, and
// removes that name from `left`. Throws if it has neither, or if the shape differs; `by` ends that
// message.
BytesPtr take(const Checkpoint& checkpoint, const std::string& name, const std::string& other_name,
              const Shape& shape, std::set<std::string>& left, const std::string& by = "");

}  // namespace anymesh
