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
// So does a call that makes a tensor of a kind which DType does not have, or an expanded view that
// would swell the file by more than a GiB. Objects also stand for
//
//   a storage outside a tensor           its class, not called, with its bytes as a tensor and its
//                                        number of elements
//   a container inside itself            kItself, with how many containers up it is, or nothing
//                                        where it is reached in several ways
//   the result of a call by other than   kCall, with what is called and its arguments
//   the name of a class or function
//
// It refuses truncated or malformed input, a persistent id that is not a torch storage, sizes
// beyond the file, nesting deeper than 200, and whatever would take more memory than allowed.
// Attributes that Python code hung on a tensor are dropped. The encoder writes protocol 2, as
// torch.save does, and refuses a container inside itself where nothing says which one.
inline constexpr std::string_view kStorageSuffix = "Storage";  // of a storage's class
inline const Value::Global kUntypedStorage{"torch.storage", "UntypedStorage"};
inline const Value::Global kItself{"", "a container that it is in"}, kCall{"", "what a call makes"};

// Gives the bytes of a storage by its key ("0", "1", ...), which must hold exactly `numel` elements
// of `dtype`, or as many as it likes where `numel` is negative.
using OpenStorage = std::function<BytesPtr(const std::string& key, DType dtype, int64_t numel)>;

// `file` is named in messages; `memory` is how many bytes the values may take.
Value decode_pickle(std::span<const std::byte> pickle, const OpenStorage& open_storage,
                    const std::string& file, uint64_t memory = 64 << 20);

// Gives the key of the storage that will hold a tensor; called once for each tensor, in order.
using StoreTensor = std::function<std::string(const TensorRecord& tensor)>;

std::string encode_pickle(const Value& value, const StoreTensor& store_tensor);

}  // namespace anymesh
