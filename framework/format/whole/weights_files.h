#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "framework/format/folder/output_folder.h"
#include "framework/format/io/progress.h"
#include "framework/format/torch_file/safetensors.h"

namespace anymesh {

class RecordChecksums;

// Weights by name, in the files that Hugging Face and torch load, named by Hugging Face's rule:
//
//   pytorch_model.bin                                    if everything fits max_shard_size; else
//   pytorch_model-00001-of-00003.bin, ..., pytorch_model.bin.index.json
//   model.safetensors, model-00001-of-00003.safetensors  with safetensors = true
//
// Tensors are streamed (write_files.h) to a build folder (output_folder.h), and the caller moves
// the files from there. Over a killed export's leftovers, only missing or differing bytes are
// written. In .bin, tensors that share `bytes` share a storage; safetensors has no shared storage.
struct WeightsOptions {
  std::filesystem::path folder;                   // the build folder
  std::function<void(const BuildPlan&)> prepare;  // prepares it for these files
  uint64_t max_shard_size = 5'000'000'000;
  bool safetensors = false;
  std::string stem = safetensors ? "model" : "pytorch_model";  // of the names
};

struct WeightsFile {
  std::string name;
  uint64_t bytes = 0;
  NamedTensors tensors;
};

struct WrittenWeights {
  std::vector<WeightsFile> files;
  std::vector<Manifest::File> listed;  // the same, then the index
  int64_t tensors = 0;                 // names
  uint64_t weights = 0;                // their bytes, the index's total_size
};

// Writes the files and the index. Finishes `checks` once the tensors are written.
WrittenWeights write_weights(const NamedTensors& tensors, const WeightsOptions& options,
                             RecordChecksums& checks, const ProgressCallback& progress);

// Whether write_weights() makes, and replaces, files of this name.
bool is_weights_file(const std::string& name, bool safetensors);

// Parses "5GB", "1.5 GB" and "300mb" as Hugging Face does, and "2GiB" or a plain number of bytes.
uint64_t parse_size(const std::string& text);

}  // namespace anymesh
