#pragma once

#include <torch/ordered_dict.h>
#include <torch/types.h>

#include <filesystem>
#include <string>

#include "framework/checkpoint/format/fp32_export.h"

namespace torch::nn {
class Module;
}

namespace anymesh {

struct ProcessGrid;
class StageModule;
class WholeCheckpoint;

// The fp32 weights of a checkpoint, under the names that DeepSpeed's page "Model Checkpointing" has
// for them (deepspeed.utils.zero_to_fp32, deepspeed.checkpoint.utils).
//
//   load_state_dict_from_zero_checkpoint(*model, "checkpoints");           // any torch::nn::Module
//   convert_zero_checkpoint_to_fp32_state_dict("checkpoints", "weights");  // pytorch_model.bin
//
//   const Fp32StateDict weights =
//       get_fp32_state_dict_from_zero_checkpoint("checkpoints", "global_step100", false, true);
//   for (const auto& [name, weight] : weights.pairs())                     // one in memory at a time
//     std::cout << name << weight.sizes() << weight.contiguous().norm() << '\n';
//
// Everywhere: `checkpoint_dir` is a folder with `latest`, or itself a tag folder or a universal
// one; an empty `tag` (DeepSpeed: None) is the one that `latest` names. Read are ordinary
// checkpoints of ZeRO 0 to 3 on any mesh, tp and pp merged (DeepSpeed's own functions know 1 to 3
// at tp = pp = 1), and universal folders. What opens a checkpoint throws, with what the folder
// holds, when there is none, when files are missing or damaged, and when shards do not cover every
// element once. None of these functions communicates: a rank that calls one reads for itself.
//
// An open checkpoint keeps its files open: a universal folder of more than a thousand parameters
// needs `ulimit -n` raised.

// A weight. In lazy mode what DeepSpeed calls a pseudo-tensor: shape and dtype, no data.
class Fp32Tensor {
 public:
  // Lazy, unless its data is given.
  Fp32Tensor(std::string name, TensorRecord record, torch::Tensor data = {})
      : name_(std::move(name)), record_(std::move(record)), data_(std::move(data)) {}

  torch::IntArrayRef sizes() const { return record_.shape; }
  torch::Dtype dtype() const;  // kFloat; buffers of integers and bools keep theirs
  // On the CPU, contiguous, without gradient. In lazy mode read from the files anew by each call.
  torch::Tensor contiguous() const;
  // Whether the two are names of one tied weight.
  bool is_alias_of(const Fp32Tensor& other) const { return record_.bytes == other.record_.bytes; }

 private:
  std::string name_;
  TensorRecord record_;
  torch::Tensor data_;
};

using Fp32StateDict = torch::OrderedDict<std::string, Fp32Tensor>;

// All weights by name, sorted: masters, buffers, and frozen parameters unless excluded. Vocabulary
// tables have their true rows. Without `lazy_mode` the whole model is read into memory, and names
// of a tied weight get the same tensor.
Fp32StateDict get_fp32_state_dict_from_zero_checkpoint(const std::filesystem::path& checkpoint_dir,
                                                       const std::string& tag = "",
                                                       bool exclude_frozen_parameters = false,
                                                       bool lazy_mode = false);

// Overwrites a model's parameters and buffers, one tensor in memory at a time. They stay on their
// devices (DeepSpeed: moved to the CPU) and are rounded to their dtypes. Strict, where DeepSpeed
// skips what does not fit: weights that the checkpoint lacks, that the model lacks, and shapes that
// differ are one error with all of them, and nothing is loaded.
void load_state_dict_from_zero_checkpoint(torch::nn::Module& model,
                                          const std::filesystem::path& checkpoint_dir,
                                          const std::string& tag = "");
// Of a stage: this rank's slice of each of its parameters, under either of their names. Masters and
// moments of a ZeroOptimizer are not touched: the model is for evaluation, as DeepSpeed's then is.
// To resume use load_checkpoint (checkpoint.h). Throws for a parameter that is missing or of
// another shape.
void load_state_dict_from_zero_checkpoint(StageModule& model, const ProcessGrid& grid,
                                          const std::filesystem::path& checkpoint_dir,
                                          const std::string& tag = "");
// The same of one that is open already.
void load_state_dict_from_zero_checkpoint(StageModule& model, const ProcessGrid& grid,
                                          const WholeCheckpoint& checkpoint);

// Writes the weights as files for torch and Hugging Face; see export_fp32 for their names.
// `max_shard_size` as "5GB" or "300MB"; empty (DeepSpeed: None) means one file.
Fp32Report convert_zero_checkpoint_to_fp32_state_dict(const std::filesystem::path& checkpoint_dir,
                                                      const std::filesystem::path& output_dir,
                                                      const std::string& max_shard_size = "5GB",
                                                      bool safe_serialization = false,
                                                      const std::string& tag = "",
                                                      bool exclude_frozen_parameters = false);

// A copy of a tensor, or of lists, tuples and dicts of them, with each tensor cloned on a device:
// contiguous, detached, in a storage of its own size. DeepSpeed needs it before torch.save, which
// writes a view's whole storage. write_torch_file never does, so that here it is for what record_of
// (tensor_io.h) asks for, contiguous tensors on the CPU, and for a snapshot that training does not
// change while it is written. Other values are returned as they are.
c10::IValue clone_tensors_for_torch_save(const c10::IValue& item,
                                         torch::Device device = torch::kCPU);
// The same of what write_torch_file takes: tensors of files or live memory as copies in memory.
Value clone_tensors_for_torch_save(const Value& item);

}  // namespace anymesh
