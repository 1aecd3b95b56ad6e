#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "framework/checkpoint/format/value.h"

namespace anymesh {

// Python's pickle, as far as checkpoints need it.
//
// The decoder reads protocols 2 to 5 and executes nothing: torch tensors and dtypes, OrderedDict,
// torch.Size, set and bytes become values of their own kind, every other class becomes an object.
// It refuses truncated or malformed input, a persistent id that is not a torch storage, sizes
// beyond the file, values that contain themselves, nesting deeper than 200, and whatever would take
// more memory than allowed. Attributes that Python code hung on a tensor are dropped. The encoder
// writes protocol 2, as torch.save does.

// Gives the bytes of a storage by its key ("0", "1", ...), which must hold exactly `numel` elements
// of `dtype`.
using OpenStorage = std::function<BytesPtr(const std::string& key, DType dtype, int64_t numel)>;

// `file` is named in messages; `memory` is how many bytes the values may take.
Value decode_pickle(std::span<const std::byte> pickle, const OpenStorage& open_storage,
                    const std::string& file, uint64_t memory = 64 << 20);

// Gives the key of the storage that will hold a tensor; called once for each tensor, in order.
using StoreTensor = std::function<std::string(const TensorRecord& tensor)>;

std::string encode_pickle(const Value& value, const StoreTensor& store_tensor);

}  // namespace anymesh
