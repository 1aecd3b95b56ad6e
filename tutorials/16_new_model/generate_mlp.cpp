// Writes text with your own model, from a checkpoint of pretrain_mlp:
//
//   generate_mlp --load checkpoints --prompts "In the beginning"
#include "tools/generate/generate.h"
#include "tutorials/16_new_model/mlp_definition.h"

int main(int argc, char** argv) {
  return anymesh::generate(argc, argv, "generate_mlp",
                           [] { return std::make_unique<anymesh::Mlp>(); });
}
