#pragma once

#include "framework/format/dialects/dcp.h"
#include "framework/format/torch_file/value.h"

namespace anymesh {

// Another framework's model in DeepSpeed's words, as if one rank had trained it: the contents of
// mp_rank_00_model_states.pt and of a universal folder's optimizer_state.pt, as far as they are
// known.
//
// A tensor that no group of the optimizer has is a second name of a tied weight if it has the bits
// of another one that some group has; only then are tensors read. Otherwise it is a buffer or a
// frozen parameter. Ranks cut parameters and not buffers. Where they cut nothing, a name that ends
// in weight or bias is a parameter's.
// DeepSpeed refuses the other kind at ZeRO 3, and takes both for the same at ZeRO 0 to 2.
struct DeepspeedView {
  Value model_states;
  Value optimizer_state;  // None if the folder tells no groups
};
DeepspeedView deepspeed_view(const DcpModel& model);

// Whether two tensors are the same bits, as those of a tied weight's names.
bool are_same(const TensorRecord& a, const TensorRecord& b);

}  // namespace anymesh
