#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "framework/format/whole.h"
#include "tools/hf/tokenizer_files.h"

namespace anymesh {

// Exports a model's checkpoints to folders like Hugging Face's: config.json, model.safetensors, the
// tokenizer's files, and generation_config.json with the ids of special tokens that config.json
// has. A function says what the model is called there. The main of such a program for a model of
// yours:
//
//   int main(int argc, char** argv) {
//     return anymesh::hf_export(argc, argv, "export_mlp", describe);
//   }
//
// tutorials/16_new_model has a whole one. hf_convert export is one for GPTs. Tensors are streamed,
// so memory does not grow with the model.
inline constexpr const char* kHfConfigFile = "config.json";

struct HfTensor {
  std::string name;
  Shape shape;
};

// A parameter of the checkpoint, and the exported tensors that hold its numbers.
struct HfParameter {
  struct Rows {
    int64_t begin, count;
  };
  // Changes elements as they are read. The first of them has the index `first` in the parameter.
  using Change = std::function<void(int64_t first, std::span<float> elements)>;

  std::string name, other_name = {};  // the checkpoint has one of them; empty: no other
  Shape shape;
  // Elements of the first tensor, then of the next. None: it is not exported.
  std::vector<HfTensor> theirs = {};
  bool transposed = false;       // each of their matrices is the transpose of its rows here
  std::vector<Rows> order = {};  // where their rows, one after the other, are; empty: the same
  Change change = {};            // empty: they are the same numbers
};

struct HfDescription {
  // The names of the files, the second without .safetensors.
  struct Files {
    const char *config = kHfConfigFile, *weights = "model";
  };
  std::string model;                    // "GPT-2", for messages
  std::string config;                   // the text of config.json
  std::vector<HfParameter> parameters;  // all that the checkpoint has
  std::vector<std::string> notes = {};  // for the user, a line each
  Files files = {};
};

// Describes the model of a checkpoint, mostly from its args (args.h). `ids` are those of the
// imported model, else of the tokenizer's files, else of the tokenizer of the checkpoint's run.
using DescribeHf = std::function<HfDescription(const Checkpoint&, const TokenIds& ids)>;

// The checkpoint is ours, ordinary (of any mesh and ZeRO stage) or universal, or weights exported
// from one. The folder appears when it is whole. It replaces an earlier export of that name,
// recognised by its .anymesh.json. Anything else is refused, a downloaded model too.
struct HfExportOptions {
  std::filesystem::path checkpoint;  // has `latest`, or is a tag or universal folder, or weights
  std::string tag;                   // empty: the one of `latest`
  std::filesystem::path output;
  std::filesystem::path tokenizer;          // folder of its files; empty: `checkpoint`
  uint64_t max_shard_size = 5'000'000'000;  // a larger model.safetensors is cut in parts
  // All weights are rounded to this float32, float16 or bfloat16. Then config.json's dtype is it.
  DType dtype = DType::kFloat32;
};
struct HfExport {
  std::string model;
  std::vector<std::string> tokenizer;  // files of kHfTokenizerFiles
  std::string source;                  // "ordinary checkpoint of ZeRO 1, tp 2, pp 2, dp 2"
  WrittenWeights written;
  double seconds = 0;
  std::vector<std::string> notes;
};

// Throws a DamagedFile if the checkpoint lacks a parameter, has another shape or one that is left
// over, and a UserError for a description that is at odds with itself.
HfExport export_hf(const HfExportOptions& options, const DescribeHf& describe,
                   const ProgressCallback& progress);

// The same as a program. The first function takes its flags from a command line. Both return the
// exit status; the second one leaves exceptions to the caller.
int hf_export(int argc, char** argv, const std::string& program, const DescribeHf& describe);
int export_and_report(const HfExportOptions& options, const DescribeHf& describe);

// Prints what ends the report of an export and of an import.
void print_rest(const std::filesystem::path& folder, const std::vector<std::string>& tokenizer,
                const std::vector<std::string>& notes);

}  // namespace anymesh
