#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "framework/checkpoint/format/progress.h"
#include "framework/checkpoint/format/safetensors.h"

namespace anymesh {

class DeferredChecks;

// Weights by name, as the files that Hugging Face and torch load, by Hugging Face's rule:
//
//   pytorch_model.bin                                    if everything fits max_shard_size; else
//   pytorch_model-00001-of-00003.bin, ..., pytorch_model.bin.index.json
//   model.safetensors, model-00001-of-00003.safetensors  with safetensors = true
//
// Tensors are streamed (stream_files.h). Files of this format in the folder are an earlier export's,
// and replaced; they appear under their names when all are whole, the index last. What an export
// that was killed has left beside them is gone over, and only what is missing or differs is
// written. In .bin, tensors that share `bytes` are one storage; safetensors has no such thing.
struct WeightsOptions {
  std::filesystem::path output;  // a folder that is there
  uint64_t max_shard_size = 5'000'000'000;
  bool safetensors = false;
};

struct WeightsFile {
  std::string name;
  uint64_t bytes = 0;
  NamedTensors tensors;
};

struct WrittenWeights {
  std::vector<WeightsFile> files;
  int64_t tensors = 0;   // names
  uint64_t weights = 0;  // bytes of them, the total_size of the index
};

// `checks` are finished before a file gets its name.
WrittenWeights write_weights(const NamedTensors& tensors, const WeightsOptions& options,
                             DeferredChecks& checks, const ProgressCallback& progress);

// Whether a file of this name is one that write_weights() makes, and replaces.
bool is_weights_file(const std::string& name, bool safetensors);

// "5GB", "1.5 GB", "300mb", as Hugging Face reads them, and "2GiB" or a plain number of bytes.
uint64_t parse_size(const std::string& text);

}  // namespace anymesh
