#pragma once

#include "tools/hf/gpt/family.h"

namespace anymesh {

// The families, each in a file of its own.
const Family& bloom_family();
const Family& falcon_family();
const Family& gemma_family();
const Family& gpt2_family();
const Family& gpt_neox_family();
const Family& llama_family();
const Family& mistral_family();
const Family& mixtral_family();
const Family& olmoe_family();
const Family& opt_family();
const Family& phi3_family();
const Family& qwen2_family();
const Family& qwen2_moe_family();
const Family& qwen3_family();
const Family& qwen3_moe_family();
const Family& starcoder2_family();

// The tensors of a Llama and of its descendants.
Family::Tensors llama_tensors();
// The experts of most of them.
Family::Tensors::Experts expert_tensors();

}  // namespace anymesh
