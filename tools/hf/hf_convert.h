#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "framework/format/whole.h"
#include "tools/hf/config.h"

namespace anymesh {

// Imports Hugging Face models (GPT-2, Llama, BLOOM) and exports our checkpoints as such. Tensors
// are streamed, so memory does not grow with the model. All weights are written in fp32.

// Converts HF_FOLDER to SAVE/global_step0_universal and SAVE/latest_universal. HF_FOLDER has
// config.json, and model.safetensors, pytorch_model.bin or the parts of one with their index, in
// fp32, bf16 or fp16. The result has weights alone. A run of any mesh takes it with --load SAVE
// --universal-checkpoint --finetune. It replaces a universal folder of that name, and appears when
// it is whole. The tokenizer's files are copied to SAVE. Files of these names that no import wrote
// are refused, unless `overwrite`.
//
// Throws a DamagedFile with file and key or tensor for a model that ours cannot be (config.h), a
// missing file or tensor, a tensor of another shape, or a tensor that such a model does not have. A
// tied model with another head in its file becomes an untied one, with a note. Unknown keys of
// config.json get a note too.
struct HfImport {
  HfModel model;
  std::filesystem::path output;        // the universal folder
  std::vector<std::string> tokenizer;  // files of kHfTokenizerFiles
  int64_t parameters = 0;
  uint64_t bytes = 0;  // of the files
  double seconds = 0;
  std::vector<std::string> notes;  // for the user, a line each
};
HfImport import_hf(const std::filesystem::path& folder, const std::filesystem::path& save,
                   const ProgressCallback& progress, bool overwrite = false);

// Exports a checkpoint to a folder that AutoModelForCausalLM.from_pretrained() loads. The
// checkpoint is ours, ordinary (of any mesh and ZeRO stage) or universal, or weights exported from
// one. The folder gets config.json, model.safetensors (in parts beyond max_shard_size) and the
// tokenizer's files. It appears when it is whole. It replaces an earlier export of that name,
// recognised by its .anymesh.json. Anything else is refused, a downloaded model too.
//
// The ids of special tokens in config.json are the imported model's. Failing that, they come from
// the tokenizer's files, then from the tokenizer of the checkpoint's run. If none of these gives
// them, they are left out.
//
// The family follows from the checkpoint's args (family_of). Weights have no args, and need the
// config.json of such a model.
struct HfExportOptions {
  std::filesystem::path checkpoint;  // has `latest`, or is a tag or universal folder, or weights
  std::string tag;                   // empty: the one of `latest`
  std::filesystem::path output;
  std::filesystem::path config;     // empty: from the checkpoint's args
  std::filesystem::path tokenizer;  // folder of the tokenizer's files; empty: `checkpoint`
  uint64_t max_shard_size = 5'000'000'000;
};
struct HfExport {
  HfModel model;
  std::vector<std::string> tokenizer;  // files of kHfTokenizerFiles
  std::string source;                  // "ordinary checkpoint of ZeRO 1, tp 2, pp 2, dp 2"
  WrittenWeights written;
  double seconds = 0;
  std::vector<std::string> notes;
};
HfExport export_hf(const HfExportOptions& options, const ProgressCallback& progress);

}  // namespace anymesh
