#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "framework/format/reshard.h"
#include "framework/format/whole.h"
#include "tools/hf/export.h"
#include "tools/hf/gpt/config.h"
#include "tools/hf/gpt/lora.h"

namespace anymesh {

// Imports Hugging Face models and describes our checkpoints as such. Tensors
// are streamed, so memory does not grow with the model. Imported weights are written in fp32.

// Converts HF_FOLDER to SAVE/global_step0_universal and SAVE/latest_universal. HF_FOLDER has
// config.json, and model.safetensors, pytorch_model.bin or the parts of one with their index, in
// fp32, bf16 or fp16. The result has weights alone. A run of any mesh takes it with --load SAVE
// --universal-checkpoint --finetune. It replaces a universal folder of that name, and appears when
// it is whole. The tokenizer's files are copied to SAVE. Files of these names that no import wrote
// are refused, unless `overwrite`.
//
// `adapter` is a folder with an adapter of PEFT for this model (peft.h). Its parameters go beside
// the model's (lora.h). If it has the optimizer's states, they do too, and the run goes on at its
// step N, from SAVE/global_step<N>_universal without --finetune.
//
// `checkpoint` has the weights instead: a checkpoint of DeepSpeed or of
// torch.distributed.checkpoint whose parameters have transformers' names. If it has the optimizer's
// states, they are joined as the weights are, and the run goes on at its step as with an adapter's.
//
// Throws a DamagedFile with file and key or tensor for a model that ours cannot be (config.h), a
// missing file or tensor, a tensor of another shape, or a tensor that such a model does not have. A
// tied model with another head in its file becomes an untied one, with a note. Unknown keys of
// config.json get a note too, and so does what a trainer's wrappers added to the names.
struct HfImport {
  HfModel model;
  Lora lora = {};                           // of the adapter, if there is one
  bool resumes = false;                     // with the optimizer's states
  int64_t iteration = 0;                    // after which they are
  std::filesystem::path output = {};        // the universal folder
  std::vector<std::string> tokenizer = {};  // files of kHfTokenizerFiles
  int64_t parameters = 0;
  uint64_t bytes = 0;  // of the files
  double seconds = 0;
  std::vector<std::string> notes = {};  // for the user, a line each
};
HfImport import_hf(const std::filesystem::path& folder, const std::filesystem::path& save,
                   const ProgressCallback& progress, bool overwrite = false,
                   const std::filesystem::path& adapter = {},
                   const std::filesystem::path& checkpoint = {});

// Makes a universal checkpoint beside the files of another framework, in their folder, for a run
// that has such a model by its flags: TrainingProgram::import. Returns lines for the user.
std::vector<std::string> import_in_place(const GptConfig& gpt,
                                         const std::filesystem::path& checkpoint,
                                         bool weights_only);

// Says how a checkpoint's adapters are exported (lora.h). Without either, an export refuses them;
// with either, it refuses a checkpoint that has none.
struct LoraExport {
  bool merge = false;  // adds them to the weights
  std::string base;    // exports them alone, for PEFT; the name or the folder of their base model
};

// Describes a GPT for AutoModelForCausalLM.from_pretrained(), or its adapters for PEFT. The family
// follows from the checkpoint's args (family_of), unless `config` is the config.json of such a
// model. Weights have no args and need it. Special tokens that nothing gives are left out.
HfDescription describe_gpt(const Checkpoint& checkpoint, const TokenIds& ids,
                           const std::filesystem::path& config = {},
                           const LoraExport& adapters = {});

// Says what a GPT's parameters and the optimizer's states are called in transformers' model of its
// family or, with `megatron`, in Megatron-Core's, for export_dcp().
SplitParameter split_gpt(const Checkpoint& checkpoint, bool megatron);

// The GPT of a checkpoint's args. A fork may take away what transformers' model lacks, if its
// description sees to that (docs/fork.md).
GptConfig gpt_of_checkpoint(const Checkpoint& checkpoint);
HfDescription describe_gpt(const Checkpoint& checkpoint, const GptConfig& gpt, const TokenIds& ids);

}  // namespace anymesh
