// The cases of gpt_parity_ranks_test: tiny models of every architecture on meshes of up to 8 ranks.
// Not the whole product, but every pair of values, and every mesh with its options.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/gpt/gpt_config.h"

namespace anymesh {

struct ParityCase {
  static constexpr int kSamples = 8;  // of a step
  int tp, pp, dp;
  std::string architecture;
  bool sequence = false;  // sequence parallelism
  int zero_stage = 0;
  int ep = 1;
  bool whole_experts = false;                    // tp does not cut them
  int rows() const { return sequence ? 2 : 1; }  // per micro-batch
};

// Grouped heads are at least as many as tp.
GptConfig tiny_model(const ParityCase& test);

// Cases for gradients, with each architecture at each tp, with and without its sequence cut, and
// with the explicit form of attention.
std::vector<ParityCase> parity_cases();
// Cases for dropout.
std::vector<ParityCase> dropout_cases();

std::string name_of_case(const testing::TestParamInfo<ParityCase>& info);

}  // namespace anymesh
