// Exports checkpoints of pretrain_mlp to a folder like Hugging Face's, under names of its own:
//
//   export_mlp checkpoints FOLDER
#include "framework/format/layout.h"
#include "framework/util/format.h"
#include "tools/hf/export.h"

namespace anymesh {
namespace {

HfDescription describe(const Checkpoint& checkpoint, const TokenIds&) {
  const Value args = run_args(checkpoint), info = checkpoint.metadata.at(keys::kUniversalInfo);
  const int64_t layers = args.at("num_layers").as_int(), h = args.at("hidden_size").as_int(),
                context = args.at("context_length").as_int(),
                v = info.at(keys::kOriginalVocabSize).as_int();
  HfDescription mlp{.model = "MLP"};
  mlp.config = string_printf(
      "{\"model_type\": \"anymesh_mlp\", \"num_hidden_layers\": %ld, \"hidden_size\": %ld, "
      "\"context_length\": %ld, \"vocab_size\": %ld}\n",
      layers, h, context, v);
  const auto add = [&](const std::string& ours, const std::string& theirs, const Shape& shape) {
    mlp.parameters.push_back(
        {.name = ours + ".weight", .shape = shape, .theirs = {{theirs + ".weight", shape}}});
  };
  for (int64_t back = 0; back < context; ++back)
    add("1.tables." + std::to_string(back), "embeddings." + std::to_string(back), {v, h});
  for (int64_t i = 0; i < layers; ++i) {
    const std::string ours = std::to_string(i + 2), theirs = "layers." + std::to_string(i);
    add(ours + ".norm", theirs + ".norm", {h});
    add(ours + ".up", theirs + ".up_proj", {4 * h, h});
    add(ours + ".down", theirs + ".down_proj", {h, 4 * h});
  }
  add(std::to_string(layers + 2) + ".norm", "norm", {h});
  add(std::to_string(layers + 2) + ".head", "lm_head", {v, h});
  return mlp;
}

}  // namespace
}  // namespace anymesh

int main(int argc, char** argv) {
  return anymesh::hf_export(argc, argv, "export_mlp", anymesh::describe);
}
