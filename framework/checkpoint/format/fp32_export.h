#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "framework/checkpoint/format/weights_files.h"
#include "framework/checkpoint/format/whole_checkpoint.h"

namespace anymesh {

// A checkpoint's fp32 weights as the files that Hugging Face and torch load, as DeepSpeed's
// zero_to_fp32 leaves them:
//
//   export_fp32({.checkpoint = "checkpoints", .output = "weights"}, {});
//
// From an ordinary checkpoint of any ZeRO stage, tp and pp (DeepSpeed's refuses tp and pp > 1),
// from a universal folder, or from weights, in their other format. Tensors are streamed: memory
// does not grow with the model. Tables have the rows of the true vocabulary (DeepSpeed's: its
// padding too). weights_files.h has the names of the files, and how they appear.
//
// Tied weights are one storage in .bin. Safetensors has no shared memory, and DeepSpeed's fails on
// them; here each name has its copy, so that a reader needs not know which are tied.
//
// Earlier exports there are replaced, by .anymesh.json, which lists what they made; other weights
// are refused, unless `overwrite`. Sources that are written to meanwhile are an error.
struct Fp32Options {
  std::filesystem::path checkpoint;  // with `latest`, or a tag or universal folder
  std::string tag;                   // empty: the one of `latest`
  std::filesystem::path output;      // a folder, made if need be
  uint64_t max_shard_size = 5'000'000'000;
  bool safetensors = false;
  bool exclude_frozen = false;
  bool overwrite = false;
};

struct Fp32Report : WrittenWeights {
  std::string source = {};   // "ordinary checkpoint of ZeRO 1, tp 2, pp 2, dp 2"
  std::string rounded = {};  // why some are the model's rounded weights; empty: all are masters
  double seconds = 0;
};

Fp32Report export_fp32(const Fp32Options& options, const ProgressCallback& progress);

// The tensors that it writes, by name: masters, frozen parameters unless excluded, buffers. Half precision
// becomes float32; what is of another dtype, as counts, masks and packed weights are, keeps it. Tied
// names share `bytes`.
NamedTensors fp32_tensors(const WholeCheckpoint& checkpoint, bool exclude_frozen);

}  // namespace anymesh
