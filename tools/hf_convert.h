#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "framework/checkpoint/format/weights_files.h"
#include "tools/hf_config.h"

namespace anymesh {

// Models of Hugging Face, GPT-2, Llama and BLOOM, in and out of our checkpoints. Tensors are
// streamed: memory does not grow with the model. All is written in fp32.

// HF_FOLDER (config.json, and model.safetensors, pytorch_model.bin or the parts of one with their
// index; fp32, bf16 or fp16) -> SAVE/global_step0_universal and SAVE/latest_universal: weights
// alone, which a run of any mesh takes with --load SAVE --universal-checkpoint --finetune. A
// universal folder of that name is replaced; it appears when it is whole. The tokenizer's files go
// to SAVE, where others of these names that no import wrote are refused, unless `overwrite`.
//
// Refused, by ValueError with file and key or tensor: what our model is not (hf_config.h), a
// missing file or tensor, a tensor of another shape, one that such a model does not have. A tied
// model with another head in its file becomes an untied one, with a note, as do keys of config.json
// that are not known.
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

// A checkpoint of ours, ordinary of any mesh and ZeRO stage or universal, or weights that were
// exported from one -> a folder that AutoModelForCausalLM.from_pretrained() loads: config.json and
// model.safetensors, in parts beyond max_shard_size, and the tokenizer's files. The folder appears
// when it is whole; an earlier export of that name is replaced, by its .anymesh.json, anything else
// is refused, a model that was downloaded too.
//
// The ids of special tokens in config.json are those of the model that was imported; else what the
// tokenizer's files say, or the tokenizer of the checkpoint's run. Where nothing does they are left
// out.
//
// Which family it is follows from the checkpoint's args (family_of); weights have none, and need
// the config.json of such a model.
struct HfExportOptions {
  std::filesystem::path checkpoint;  // with `latest`, or a tag or universal folder, or weights
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
