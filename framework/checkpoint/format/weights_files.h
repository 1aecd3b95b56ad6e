#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "framework/checkpoint/format/build_folder.h"
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
// Tensors are streamed (stream_files.h) to a build folder, whence the caller gives the files their
// names. What an export that was killed has left there is gone over, and only what is missing or
// differs is written. In .bin, tensors that share `bytes` are one storage; safetensors has no such
// thing.
struct WeightsOptions {
  std::filesystem::path folder;          // that is made (build_folder.h)
  std::vector<std::string> others = {};  // that the caller will write there
  IsOurs otherwise = nullptr;            // what may be there without a list, as of a build folder
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
  std::vector<Manifest::File> listed;  // the same, and the index, last
  int64_t tensors = 0;                 // names
  uint64_t weights = 0;                // bytes of them, the total_size of the index
};

// `checks` are finished at the end.
WrittenWeights write_weights(const NamedTensors& tensors, const WeightsOptions& options,
                             DeferredChecks& checks, const ProgressCallback& progress);

// Whether a file of this name is one that write_weights() makes, and replaces.
bool is_weights_file(const std::string& name, bool safetensors);

// "5GB", "1.5 GB", "300mb", as Hugging Face reads them, and "2GiB" or a plain number of bytes.
uint64_t parse_size(const std::string& text);

}  // namespace anymesh
