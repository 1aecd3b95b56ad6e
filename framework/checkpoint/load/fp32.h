#pragma once

#include <torch/ordered_dict.h>
#include <torch/types.h>

#include <filesystem>
#include <string>

#include "framework/format/whole.h"

namespace torch::nn {
class Module;
}

namespace anymesh {

struct ProcessGrid;
class StageModule;

// Functions for the fp32 weights of a checkpoint, named as on DeepSpeed's page "Model
// Checkpointing" (deepspeed.utils.zero_to_fp32, deepspeed.checkpoint.utils).
//
//   load_state_dict_from_zero_checkpoint(*model, "checkpoints");           // any torch::nn::Module
//   convert_zero_checkpoint_to_fp32_state_dict("checkpoints", "weights");  // pytorch_model.bin
//
//   const Fp32StateDict weights =
//       get_fp32_state_dict_from_zero_checkpoint("checkpoints", "global_step100", false, true);
//   for (const auto& [name, weight] : weights.pairs())                 // one in memory at a time
//     std::cout << name << weight.sizes() << weight.contiguous().norm() << '\n';
//
// In every function, `checkpoint_dir` is a folder with `latest`, or itself a tag folder or a
// universal one. An empty `tag` (DeepSpeed: None) means the tag that `latest` names. The functions
// read universal folders, and ordinary checkpoints of ZeRO 0 to 3 on any mesh, with tp and pp
// merged. (DeepSpeed's own read ZeRO 1 to 3 at tp = pp = 1.) Opening a checkpoint throws if there
// is none, if files are missing or damaged, and if the shards do not cover every element exactly
// once; the message lists the folder's contents. None of these functions communicates: a rank that
// calls one reads for itself.
//
// An open checkpoint keeps its files open, so a universal folder with more than a thousand
// parameters needs a higher `ulimit -n`.

// A weight. In lazy mode it has a shape and a dtype but no data (DeepSpeed's pseudo-tensor).
class Fp32Tensor {
 public:
  // The weight is lazy unless `data` is given.
  Fp32Tensor(std::string name, TensorRecord record, torch::Tensor data = {})
      : name_(std::move(name)), record_(std::move(record)), data_(std::move(data)) {}

  torch::IntArrayRef sizes() const { return record_.shape; }
  torch::Dtype dtype() const;  // kFloat; integer and bool buffers keep their own
  // Returns a contiguous CPU tensor without gradient. In lazy mode each call reads the files again.
  torch::Tensor contiguous() const;
  // Whether both are names of the same tied weight.
  bool is_alias_of(const Fp32Tensor& other) const { return record_.bytes == other.record_.bytes; }

 private:
  std::string name_;
  TensorRecord record_;
  torch::Tensor data_;
};

using Fp32StateDict = torch::OrderedDict<std::string, Fp32Tensor>;

// Returns all weights, sorted by name: masters, buffers, and frozen parameters unless excluded.
// Vocabulary tables have their true rows. Without `lazy_mode` the whole model is read into memory,
// and all names of a tied weight share one tensor.
Fp32StateDict get_fp32_state_dict_from_zero_checkpoint(const std::filesystem::path& checkpoint_dir,
                                                       const std::string& tag = "",
                                                       bool exclude_frozen_parameters = false,
                                                       bool lazy_mode = false);

// Overwrites a model's parameters and buffers, with one tensor in memory at a time. They stay on
// their devices (DeepSpeed moves them to the CPU), and values are rounded to their dtypes. Loading
// is strict, where DeepSpeed skips mismatches: one error lists all weights that the checkpoint or
// the model lacks and all shapes that differ, and nothing is loaded.
void load_state_dict_from_zero_checkpoint(torch::nn::Module& model,
                                          const std::filesystem::path& checkpoint_dir,
                                          const std::string& tag = "");
// Loads this rank's slice of each parameter of a stage, under either of its names. A
// ZeroOptimizer's masters and moments are not touched, so the model is for evaluation, as it is in
// DeepSpeed. To resume, use load_checkpoint (checkpoint.h). Throws if a parameter is missing or has
// another shape.
void load_state_dict_from_zero_checkpoint(StageModule& model, const ProcessGrid& grid,
                                          const std::filesystem::path& checkpoint_dir,
                                          const std::string& tag = "");
// The same, from a checkpoint that is already open. A `base` has what that leaves out.
void load_state_dict_from_zero_checkpoint(StageModule& model, const ProcessGrid& grid,
                                          const Checkpoint& checkpoint,
                                          const Checkpoint* base = nullptr);

// Writes the weights as files for torch and Hugging Face; see export_fp32 for their names.
// `max_shard_size` is a size such as "5GB" or "300MB"; empty (DeepSpeed: None) means one file.
Fp32Report convert_zero_checkpoint_to_fp32_state_dict(const std::filesystem::path& checkpoint_dir,
                                                      const std::filesystem::path& output_dir,
                                                      const std::string& max_shard_size = "5GB",
                                                      bool safe_serialization = false,
                                                      const std::string& tag = "",
                                                      bool exclude_frozen_parameters = false);

// The same, with every floating-point tensor rounded to `dtype`: kFloat, kHalf or kBFloat16. Throws
// for any other. Integer and bool buffers keep their own dtype.
Fp32Report convert_zero_checkpoint_to_state_dict(const std::filesystem::path& checkpoint_dir,
                                                 const std::filesystem::path& output_dir,
                                                 torch::Dtype dtype = torch::kFloat,
                                                 const std::string& max_shard_size = "5GB",
                                                 bool safe_serialization = false,
                                                 const std::string& tag = "",
                                                 bool exclude_frozen_parameters = false);

// Returns a copy of a tensor, or of lists, tuples and dicts of tensors. Each tensor is cloned to
// `device`: contiguous, detached, in a storage of its own size. Other values are returned
// unchanged. DeepSpeed needs this before torch.save, which writes a view's whole storage.
// write_torch_file never does that. Here the function makes the contiguous tensors that record_of
// (torch_bridge.h) requires, and a snapshot that training cannot change while it is written.
c10::IValue clone_tensors_for_torch_save(const c10::IValue& item,
                                         torch::Device device = torch::kCPU);
// The same for a Value, as write_torch_file takes it. Tensors in files are copied to memory, too.
Value clone_tensors_for_torch_save(const Value& item);

}  // namespace anymesh
