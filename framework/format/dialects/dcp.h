#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "framework/format/dialects/box_tensor.h"
#include "framework/format/layout/names.h"
#include "framework/format/torch_file/value.h"
#include "framework/format/torch_file/zip.h"

namespace anymesh {

// A folder of torch.distributed.checkpoint (DCP), as FSDP2, accelerate, torchtitan and
// Megatron-Core's torch_dist save. `.metadata`, a pickle, says which boxes of which tensors lie
// where in the .distcp files. Each of these is a row of items, and an item is a file of torch.save.
//
//   const DcpFolder folder = read_dcp("checkpoint");
//   folder.tensors.at("model.layers.0.weight").bytes->read(offset, out);
//
// Only .metadata is read. An item is opened when it is first read, and must then be what .metadata
// says. Throws DamagedFile if boxes overlap, leave gaps or lie outside their tensor, if a file ends
// before an item, or if a file's name leads out of the folder; Unreadable for items that are
// transformed, such as compressed.
struct DcpItem {
  std::shared_ptr<const File> file;
  uint64_t offset, length;
  ZipReader open() const;
};

struct DcpFolder {
  std::filesystem::path path;
  std::map<std::string, TensorRecord> tensors;  // by name: the keys of nested dicts and a list's
                                                // indices, with points between them
  std::map<std::string, DcpItem> objects;       // other Python objects, by name
  // The keys of a name, if the writer kept them; else the name alone.
  std::map<std::string, std::vector<std::string>> keys;
  std::vector<std::string> order;                     // all names, as the writer's dicts had them
  std::map<std::string, std::vector<TensorBox>> cut;  // tensors of several boxes
  std::vector<DcpItem> items;                         // all
};

inline constexpr std::string_view kDcpSuffix = ".distcp";

// Returns the folders with a .metadata that make one: the path itself, or accelerate's two below
// it, pytorch_model_fsdp_0 and optimizer_0. None if it is no DcpFolder.
std::vector<std::filesystem::path> dcp_folders(const std::filesystem::path& path);

DcpFolder read_dcp(const std::filesystem::path& path, RecordChecksums* checks = nullptr);

// Returns the step as torch's optimizers keep it.
TensorRecord step_tensor(const Value& step);

// A model and its optimizer.
struct DcpModel {
  struct Parameter {
    TensorRecord weight;
    std::map<std::string, TensorRecord> states;  // `step` is one number
    bool cut = false;                            // in several boxes
  };
  struct Group {
    std::vector<std::string> names;
    Value settings;  // a dict, without `params`
  };
  std::map<std::string, Parameter> parameters;  // and buffers
  std::vector<std::string> order;               // their names, as the model had them
  std::vector<Group> groups;                    // of the optimizer; none if the folder has none
  std::string states_refused;                   // why it has weights alone, if states are there
};

// Finds the model and the optimizer in what was saved: { "model": ..., "optim": ... } under any
// keys, or a model alone, with or without a key of its own. Optimizer states are nested, flattened,
// or Megatron-Core's, with the state before the parameter. Flattened states do not tell groups:
// parameters in a row with the same settings make one. Reads the settings' items. Throws Unreadable
// if states belong to no parameter, and if there is no model.
DcpModel dcp_model(const DcpFolder& folder);

}  // namespace anymesh
