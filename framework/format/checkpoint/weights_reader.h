#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "framework/format/torch_file/value.h"

namespace anymesh {

class RecordChecksums;

// Weights by name, as torch and Hugging Face keep them:
//
//   a file     a torch file with a dict name -> tensor, or *.safetensors
//   a folder   model.safetensors, else the parts that model.safetensors.index.json lists, else
//              pytorch_model.bin, else its parts; a dict in a .bin may be inside a trainer's own,
//              as {"state_dict": {...}, "epoch": 3} is
//
// The index decides: if two parts have a name, the tensor is that of the part which the index
// names. Throws for a name in two parts that the index lacks.
struct StoredWeights {
  std::map<std::string, Value> tensors;
  std::map<std::string, std::filesystem::path> absent;  // the index says that the file has it
  std::string inside;  // the key under which a trainer's file has the weights; empty: none
};
StoredWeights read_weights(const std::filesystem::path& path, RecordChecksums* checks = nullptr);

// Reads the dict name -> tensor of one file.
Value read_weights_file(const std::filesystem::path& file, RecordChecksums* checks = nullptr);

// Returns the file with a folder's weights, or the index of its parts; empty if there is neither.
std::filesystem::path weights_entry(const std::filesystem::path& folder);

}  // namespace anymesh
