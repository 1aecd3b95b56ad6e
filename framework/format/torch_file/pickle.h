#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "framework/format/torch_file/value.h"

namespace anymesh {

// Python's pickle, as far as checkpoints need it.
//
// The decoder reads protocols 2 to 5 and executes nothing. Torch tensors and dtypes, OrderedDict,
// torch.Size, set and bytes become values of their own kind. Every other class becomes an object.
// So does a call that makes a tensor of a kind which DType lacks, or an expanded view that would
// swell the file by more than a GiB. Objects also stand for
//
//   a storage outside a tensor           its class, not called, with its bytes as a tensor and its
//                                        number of elements
//   a container inside itself            kItself, with the number of levels up to it, or nothing if
//                                        it is reached in several ways
//   a call of anything but the name of   kCall, with the callee and the arguments
//   a class or function
//
// The decoder refuses truncated or malformed input, a persistent id that is not a torch storage,
// sizes beyond the file, nesting deeper than 200, and input that would take more memory than
// allowed. It drops attributes that Python code hung on a tensor. The encoder writes protocol 2, as
// torch.save does. It refuses a container inside itself if its level is not known.
inline constexpr std::string_view kStorageSuffix = "Storage";  // ends the name of a storage's class
inline const Value::Global kUntypedStorage{"torch.storage", "UntypedStorage"};
inline const Value::Global kItself{"", "a container that it is in"}, kCall{"", "what a call makes"};

// Returns the bytes of the storage with this key ("0", "1", ...). They must hold exactly `numel`
// elements of `dtype`, or any number of them if `numel` is negative.
using OpenStorage = std::function<BytesPtr(const std::string& key, DType dtype, int64_t numel)>;

// `file` is named in messages. `memory` limits the bytes that the values may take.
Value decode_pickle(std::span<const std::byte> pickle, const OpenStorage& open_storage,
                    const std::string& file, uint64_t memory = 64 << 20);

// Returns the key of the storage that will hold a tensor. Called once for each tensor, in order.
using StoreTensor = std::function<std::string(const TensorRecord& tensor)>;

std::string encode_pickle(const Value& value, const StoreTensor& store_tensor);

}  // namespace anymesh
