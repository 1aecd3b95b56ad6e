// Trains your own model: pretrain_gpt.cpp with other names.
//
//   mpirun -n 8 pretrain_mlp --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2
//   --zero-stage 1 --num-layers 4 --hidden-size 64 --seq-length 32 --lr 1e-3 --data-path ...
#include "tutorials/16_new_model/mlp_definition.h"

int main(int argc, char** argv) {
  return anymesh::pretrain(argc, argv,
                           {.name = "pretrain_mlp",
                            .description = "Trains an MLP language model on any mesh.",
                            .model = anymesh::make_model<anymesh::Mlp>});
}
