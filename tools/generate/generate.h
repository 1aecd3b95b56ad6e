#pragma once

#include <string>

#include "framework/run/pretrain.h"

namespace anymesh {

// The main of a program that writes text with a model of yours, from the checkpoints of the program
// that pretrain() makes with the same ModelDefinition:
//
//   int main(int argc, char** argv) {
//     return anymesh::generate(argc, argv, "generate_mlp",
//                              [] { return std::make_unique<anymesh::Mlp>(); });
//   }
//
// The checkpoint gives the model's flags. It may be of any mesh and ZeRO stage, or universal. The
// model's forward() must return logits if the batch has no labels, for texts of any length. It
// computes the whole text again for each token (text_model.h). Returns the exit status.
int generate(int argc, char** argv, const std::string& program, const MakeModel& make_model);

}  // namespace anymesh
