#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "framework/format/dialects/dcp.h"
#include "framework/format/io/write_files.h"
#include "framework/format/torch_file/value.h"

namespace anymesh {

// An entry of nested dicts and lists: a tensor or another Python object, under its keys and
// indices.
struct DcpEntry {
  std::vector<Value> keys;
  Value content;
};

// Returns the files of a folder of torch.distributed.checkpoint, to be streamed: .metadata, and
// __0_0.distcp with an item for each entry. A large tensor is cut along its first dim, so that a
// rank that loads some rows reads no more than a chunk beside them.
//
//   dcp_files(folder, {{{"model", "layers.0.weight"}, tensor},
//                      {{"optim", "param_groups", 0, "lr"}, 0.1}});
//
// dcp.load() takes them on any number of ranks.
std::vector<StreamedFile> dcp_files(const std::filesystem::path& folder,
                                    const std::vector<DcpEntry>& entries);

// Returns a model and its optimizer as get_state_dict() has them. The groups are there twice, as it
// has them with and without flatten_optimizer_state_dict.
std::vector<DcpEntry> dcp_entries(const DcpModel& model, const std::string& model_key,
                                  const std::string& optimizer_key);

}  // namespace anymesh
