#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "framework/format/checkpoint/model.h"
#include "framework/format/whole/weights_files.h"

namespace anymesh {

// Exports a checkpoint's fp32 weights to the files that Hugging Face and torch load, as DeepSpeed's
// zero_to_fp32 does, or rounds them to another dtype, as its zero_to_torch does:
//
//   export_fp32({.checkpoint = "checkpoints", .output = "weights"}, {});
//   export_fp32({.checkpoint = "checkpoints", .output = "half", .dtype = DType::kBFloat16}, {});
//
// The source is an ordinary checkpoint of any ZeRO stage, tp and pp (DeepSpeed's tool refuses tp
// and pp > 1), a universal folder, or weights to be put into the other format. Tensors are
// streamed, so memory does not grow with the model. Tables have the rows of the true vocabulary
// (DeepSpeed's tool keeps the padding). weights_files.h describes the names of the files and how
// they appear.
//
// Tied weights share one storage in .bin. Safetensors has no shared memory, and DeepSpeed's export
// fails on tied weights. Here each name gets its own copy, so a reader need not know which are
// tied.
//
// An earlier export in the output folder is replaced; .anymesh.json lists its files. Other weights
// are refused, except that `overwrite` replaces those of the same format. A source that is written
// to during the export is an error.
struct Fp32Options {
  std::filesystem::path checkpoint;  // with `latest`, or a tag or universal folder, or weights
  std::string tag;                   // empty: the tag that `latest` names
  std::filesystem::path output;      // a folder, created if missing
  uint64_t max_shard_size = 5'000'000'000;
  bool safetensors = false;
  bool exclude_frozen = false;
  bool overwrite = false;
  // Every floating-point tensor is rounded to this float32, float16 or bfloat16. Without it, half
  // precision becomes float32, and other dtypes (float64, float8) stay.
  std::optional<DType> dtype = {};
};

// Parses fp32, float32, bf16, bfloat16, fp16 and float16, with or without "torch.", as DeepSpeed
// does. Throws UserError for anything else.
DType parse_output_dtype(const std::string& text);

struct Fp32Report : WrittenWeights {
  std::string source = {};   // "ordinary checkpoint of ZeRO 1, tp 2, pp 2, dp 2"
  std::string rounded = {};  // why some weights are the model's rounded ones; empty: all masters
  std::vector<std::string> notes = {};  // for the user, a line each
  double seconds = 0;
};

// Holds the files in the output folder until they are whole.
inline constexpr const char* kWeightsBuildFolder = "weights.tmp";

Fp32Report export_fp32(const Fp32Options& options, const ProgressCallback& progress);

// Returns the tensors to export, by name: masters, buffers, and frozen parameters unless excluded.
// Half precision becomes float32. Other dtypes (counts, masks, packed weights) stay as they are.
// Tied names share `bytes`.
NamedTensors fp32_tensors(const Checkpoint& checkpoint, bool exclude_frozen);

}  // namespace anymesh
