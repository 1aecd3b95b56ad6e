// Trains a GPT under tensor, pipeline and data parallelism:
//
//   mpirun -n 8 pretrain_gpt --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2
//   --zero-stage 1 ...                                    eight processes
//   pretrain_gpt --local-ranks 8 ...                      eight threads of this one
//
// framework/run/pretrain.h is the program. To train another model, copy this file and models/gpt,
// and change the names; tutorials/16_new_model does so.
#include "models/gpt/gpt_definition.h"
#include "tools/hf/gpt/convert.h"

namespace anymesh {
namespace {

constexpr const char* kDescription = R"(Trains a GPT under tensor, pipeline and data parallelism.

Examples:
  pretrain_gpt --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32
      --max-position-embeddings 32 --mock-data --vocab-size 256 --global-batch-size 12
      --train-iters 50 --lr 1e-3 --save checkpoints
  pretrain_gpt --local-ranks 8 ... --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2
      the same on tensor 2 x pipeline 2 x data 2, eight ranks in this process
  mpirun -n 6 pretrain_gpt ... --tensor-model-parallel-size 2 --zero-stage 2 --load checkpoints
      goes on with that on tensor 2 x data 3, six processes; optimizer state and gradients are
      partitioned
)";

std::vector<std::string> import_gpt(const ModelDefinition& model,
                                    const std::filesystem::path& folder, bool weights_only) {
  return import_in_place(dynamic_cast<const Gpt&>(model).gpt(), folder, weights_only);
}

}  // namespace
}  // namespace anymesh

int main(int argc, char** argv) {
  return anymesh::pretrain(argc, argv,
                           {.name = "pretrain_gpt",
                            .description = anymesh::kDescription,
                            .model = anymesh::make_model<anymesh::Gpt>,
                            .import = anymesh::import_gpt});
}
