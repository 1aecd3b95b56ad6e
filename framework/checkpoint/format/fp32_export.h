#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace anymesh {

// A checkpoint's fp32 weights as the files that Hugging Face and torch load, as DeepSpeed's
// zero_to_fp32 leaves them:
//
//   export_fp32({.checkpoint = "checkpoints", .output = "weights"});
//
//   pytorch_model.bin                                    if everything fits max_shard_size; else
//   pytorch_model-00001-of-00003.bin, ..., pytorch_model.bin.index.json
//   model.safetensors, model-00001-of-00003.safetensors  with safetensors = true
//
// From an ordinary checkpoint of any ZeRO stage, tp and pp (DeepSpeed's refuses tp and pp > 1), or
// from a universal folder. Tensors are streamed: memory does not grow with the model. Tied weights
// are one storage in .bin, and written under both names in safetensors. Files of an earlier export in
// the same folder are replaced; each appears under its name when it is whole, the index last.
struct Fp32Options {
  std::filesystem::path checkpoint;  // with `latest`, or a tag or universal folder
  std::string tag;                   // empty: the one of `latest`
  std::filesystem::path output;      // a folder, made if need be
  uint64_t max_shard_size = 5'000'000'000;
  bool safetensors = false;
  bool exclude_frozen = false;
};

struct Fp32Report {
  int64_t tensors = 0;
  uint64_t bytes = 0;
  int files = 0;
  std::string source;  // "ordinary checkpoint of ZeRO 1, tp 2, pp 2, dp 2"
};

// Called after each file, with the bytes done and in all.
using Fp32Progress = std::function<void(uint64_t, uint64_t)>;
Fp32Report export_fp32(const Fp32Options& options, const Fp32Progress& progress);

// "5GB", "300MB", "2GiB" or a plain number of bytes, as Hugging Face reads them.
uint64_t parse_size(const std::string& text);

}  // namespace anymesh
