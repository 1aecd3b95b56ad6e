#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "framework/format/checkpoint/model.h"
#include "framework/format/folder/output_folder.h"
#include "framework/format/io/progress.h"

namespace anymesh {

// Returns the tensors of another model that have a parameter's elements, or those of a state of it.
using SplitParameter = std::function<NamedTensors(const std::string& name, std::string_view state,
                                                  const TensorRecord&)>;

// Writes any checkpoint as a folder of torch.distributed.checkpoint, which dcp.load() takes into a
// model of the same names and torch's optimizer, on any number of ranks (FSDP2, torchtitan,
// accelerate):
//
//   export_dcp({.input = "ckpt/global_step100", .output = "dcp"}, {});
//
//   { "model": weights, "optim": { "state": ..., "param_groups": ... } }
//
// Weights are the fp32 masters. The optimizer's states are there nested, and its groups nested and
// flattened, as get_state_dict() has them with and without flatten_optimizer_state_dict. Settings
// that torch's AdamW or SGD has and the source lacks are torch's defaults. Without an optimizer's
// state, the model is written alone.
//
// Tensors are streamed. The folder appears when it is whole, with a manifest of its files' CRCs. It
// replaces one that this function made, and no other.
struct DcpOptions {
  std::filesystem::path input, output;  // the input may also be the folder with `latest`
  std::string model_key = "model", optimizer_key = "optim";
  bool torch_dist = false;  // Megatron-Core's form of it (dialects/torch_dist.h), without the keys
  // Returns how the parameters of a checkpoint go over; null: as they are, under their names.
  std::function<SplitParameter(const Checkpoint&)> split = nullptr;
  int threads = write_threads();
};

struct DcpReport : StreamReport {
  std::string source = {};  // "ordinary checkpoint of ZeRO 1, tp 2, pp 2, dp 2"
  int64_t tensors = 0;
  std::vector<std::string> notes;  // for the user, a line each
};

DcpReport export_dcp(const DcpOptions& options, const ProgressCallback& progress);

}  // namespace anymesh
