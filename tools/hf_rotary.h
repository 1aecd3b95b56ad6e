#pragma once

#include "models/gpt/gpt_config.h"
#include "tools/hf_keys.h"

namespace anymesh {

// Rotary positions as a Llama's config.json and our flags both say them: rope_theta, and how
// wavelengths are scaled, which is rope_scaling's or rope_parameters' rope_type:
//
//   llama3    --use-rope-scaling --rope-scaling-factor, with Llama 3's own other factors
//   linear    --rotary-seq-len-interpolation-factor, an integer
//
// Everything else (dynamic, yarn, longrope) is refused, and so is a part of a head that turns
// alone.

// Throws a ValueError with file, key, what it is and what would do.
void read_rotary(const HfKeys& keys, GptConfig& gpt);

// The value of rope_scaling; null where nothing is scaled.
HfKeys::Json hf_rope_scaling(const GptConfig& gpt);

}  // namespace anymesh
